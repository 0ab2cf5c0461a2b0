"""A live report: served on this machine alone, drawn anew when the run has changed, and written nowhere."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from patience import patience
from test_report import CHILD, SEED, episode, metrics
from test_report_pieces import unpacked

from cojax.pool import make_task_record
from cojax.report import live
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, write_json

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    write_json(folder / "config.json", {"config": {"steps": 5}})
    Log(folder / "metrics.jsonl").append([metrics(1)])
    Log(folder / "tasks.jsonl").append([make_task_record(SEED), make_task_record(CHILD)])
    Episodes(folder / "episodes").write(1, [episode(1, SEED, 0, 1.0, []), episode(1, SEED, 1, 0.0, ["rare"])])
    return folder


@pytest.fixture
def address(run: Path) -> Iterator[str]:
    # A suite that was started in the background by a script ignores SIGINT, and its children would inherit that.
    code = "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); runpy.run_module"
    command = [sys.executable, "-c", f"{code}('experiments.report', run_name='__main__')", str(run), "--live"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("live, until Ctrl-C: ").strip()
            process.send_signal(signal.SIGINT)
            assert process.wait(patience(60)) == 0
        finally:
            process.kill()


def test_the_command_serves_the_page_and_what_is_new(run: Path, address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    before = sorted(path.name for path in run.iterdir())
    with httpx.Client(base_url=address, timeout=60) as client:
        page = client.get("")
        assert (page.status_code, "connect-src 'self'" in page.text) == (200, True)
        first = client.get("data.json?after=0").json()
        assert (first["live"], first["headline"]["step"], first["episodes"], first["counts"]["episodes"]) == (
            1,
            1,
            [],
            2,
        )
        stamp, name, held = unpacked(client.get("report_files/episodes-000001.js").text)
        assert (stamp, name, held[1]["id"], held[1]["signals"]) == (
            "live", "episodes-000001", f"1-{SEED.id}-1", [["rare", ""]],
        )  # fmt: skip
        Episodes(run / "episodes").write(2, [episode(2, CHILD, 0, 1.0, [])])
        Log(run / "metrics.jsonl").append([metrics(2)])
        second = client.get("data.json?after=1").json()
        assert (second["live"] > 1, second["headline"]["step"], second["counts"]["episodes"]) == (True, 2, 3)
        for path in ("report_files/episodes-000009.js", "report_files/../config.json", "config.json", "etc/passwd"):
            assert client.get(path).status_code == 404
        refused = client.get("", headers={"Host": "evil.example"})
        assert (refused.status_code, refused.text) == (403, f"open {address}")
        assert client.post("").status_code == 501
    assert sorted(path.name for path in run.iterdir()) == before


def test_nothing_is_read_while_nothing_changes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_WAIT_S", 0.0)
    report, drawn = live.LiveReport(run), []
    draw = live.LiveReport._draw_page
    monkeypatch.setattr(live.LiveReport, "_draw_page", lambda self: (drawn.append(1), draw(self)))
    assert report.read_data()["live"] == 1
    assert [report.wait_for_newer(1), report.wait_for_newer(1), len(drawn)] == [None, None, 1]


def test_steps_that_a_resumed_run_plays_again_are_read_again(run: Path) -> None:
    report = live.LiveReport(run)
    assert [len(row["r"]) for _, (row,) in report.read_data()["index"]["steps"]] == [2]
    Episodes(run / "episodes").write(1, [episode(1, CHILD, sample, 0.0, []) for sample in range(3)])
    Log(run / "metrics.jsonl").append([metrics(2)])
    report._next_draw_time = 0.0
    assert [len(row["r"]) for _, (row,) in report.read_data()["index"]["steps"]] == [3]


def test_a_folder_that_is_no_run_and_a_port_that_is_none_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cojax.report.command import main

    def said(*arguments: str) -> tuple[Any, str]:
        try:
            status: Any = main(list(arguments))
        except SystemExit as error:
            status = error.code
        return status, capsys.readouterr().err.strip().splitlines()[-1]

    status, line = said(str(run / "nowhere"), "--live")
    assert (status, "not found; pass the workdir of a run" in line) == (2, True)
    status, line = said(str(run), "--live", "--port=70000")
    assert (status, "--port=70000; expected 0 to 65535" in line) == (2, True)
    with live.ReportServer(live.LiveReport(run)) as taken:
        status, line = said(str(run), "--live", f"--port={taken.server_port}")
        assert (status, "choose another --port" in line) == (2, True)
    status, line = said(str(run), str(run))
    assert (status, f"{run} is named twice; name each run once" in line) == (2, True)
    status, line = said(str(run), str(run.parent), "--live")
    assert (status, "--live, --task and --draft take one run; name one" in line) == (2, True)


@pytest.fixture
def server(run: Path) -> Iterator[ThreadingHTTPServer]:
    with live.ReportServer(live.LiveReport(run)) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield made
        made.shutdown()


def half_open(server: ThreadingHTTPServer, text: bytes = b"GET / HT") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=patience(30))
    connection.sendall(text)
    return connection


def test_many_who_ask_for_nothing_take_a_bounded_number_of_threads(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_CONNECTIONS", 4)
    before = set(threading.enumerate())
    held = [half_open(server, b"GET / HT" if number % 2 else b"") for number in range(40)]
    assert httpx.get(f"http://127.0.0.1:{server.server_port}/").status_code == 200
    # For the new ones, those that had waited longest were cut off.
    assert {connection.recv(1) for connection in held[:36]} == {b""}
    serving = set(threading.enumerate()) - before
    while len(serving) > 4:  # those that were cut off end
        serving = {thread for thread in serving if thread.join(0.01) or thread.is_alive()}
    for connection in held:
        connection.close()


def test_a_request_that_does_not_come_is_not_waited_for(
    server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "READ_TIMEOUT_S", 0.1)
    with half_open(server) as connection:
        assert connection.recv(1) == b""

"""The campaign counts what breaks: the same seed plays the same cases, and a planted break of each kind is found."""

from __future__ import annotations

import collections
import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign import __main__ as command
from campaign import disk, episodes, faults, leaks, servers
from campaign.cases import COUNTS, Canary, Case, kinds
from campaign.desk import DeskCases
from campaign.hostile_cases import HostileCases
from campaign.tools import ToolCases
from patience import patience

from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.explorer.llm.chat_client import ChatClient
from cojax.host import processes
from cojax.types import Evaluation, Message, Observation
from environments.desk import Desk

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")


@pytest.fixture(autouse=True)
def _nobody_elses_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other programs do in /tmp is not these tests' business; the campaign's real test searches there."""
    monkeypatch.setattr(leaks, "_SHARED", (str(tmp_path),))


def campaign(capsys: Capture, broken: Callable[[Any], Any], count: int = 12) -> tuple[int, dict[str, Any]]:
    """Exit status and last line of a campaign on that desk."""
    worlds = {"desk": lambda canary: DeskCases(canary, broken(Desk()))}
    status = command.main([f"--episodes={count}", "--faults=0", "--only=desk", "--json"], worlds)
    return status, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_shares_are_those_that_are_promised() -> None:
    played = collections.Counter(episodes.plan(10_000))
    assert played == {
        "bfcl": 3_800, "desk": 3_800, "wild": 1_000, "appworld": 600, "drafts": 400, "mcp": 200, "tools": 200
    }  # fmt: skip
    injected = collections.Counter(faults.plan(1_000))
    assert injected == {
        "worker": 280, "mutation": 270, "server": 180, "disk": 120, "foreign": 100, "kill": 50
    }  # fmt: skip
    assert kinds({"a": 2, "b": 1}, only=("b",)) == ("b",)
    assert episodes.plan(500) == episodes.plan(10_000)[:500]


def cases(make: Callable[[Canary], Any], seed: int) -> list[Case]:
    world = make(Canary("x"))
    return [world.case(f"e{number}", seed) for number in range(40)]


def test_a_seed_makes_the_same_cases_again() -> None:
    def wild(canary: Canary) -> HostileCases:
        world = object.__new__(HostileCases)
        world.canary = canary
        return world

    for make in (lambda canary: DeskCases(canary, Desk()), wild, ToolCases):
        first, again, other = (
            [dataclasses.replace(case, seconds=0.0) for case in cases(make, seed)] for seed in (3, 3, 4)
        )
        assert first == again
        assert sum(one != two for one, two in zip(first, other, strict=True)) > 30
        assert {case.expected for case in first} == {"full", "less"}


def test_an_honest_desk_breaks_nothing(capsys: Capture) -> None:
    status, told = campaign(capsys, lambda desk: desk, count=60)
    assert (status, told["violations"]) == (0, [])
    assert [told[name] for name in ("episodes", "faults", *COUNTS)] == [60, 0, 0, 0, 0, 0]


def test_no_call_erases_the_verdict_of_a_world_of_functions(capsys: Capture) -> None:
    status = command.main(["--episodes=40", "--faults=0", "--only=tools", "--json"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status, told["violations"], told["kinds"]) == (0, [], {"tools": 40})


class Judged(WrappedEpisode):
    def __init__(self, episode: Any, reward: float | None) -> None:
        super().__init__(episode)
        self.reward = reward

    def evaluate(self) -> Evaluation:
        if self.reward is None:
            raise RuntimeError("the child is gone")
        return Evaluation(self.reward)


@pytest.mark.parametrize(
    ("reward", "reason"), [(1.0, "is forged"), (0.0, "is denied"), (None, "is erased")]
)  # fmt: skip
def test_verdicts_forged_denied_and_erased_are_counted(capsys: Capture, reward: float | None, reason: str) -> None:
    status, told = campaign(capsys, lambda desk: Wrapped(desk, lambda task: Judged(desk.start(task), reward)))
    assert status == 1
    assert told["forged"] > 0
    assert all(reason in line for line in told["violations"])
    assert [told[name] for name in COUNTS[1:]] == [0, 0, 0]


def test_what_one_episode_leaves_for_another_is_counted(capsys: Capture) -> None:
    written: list[str] = []

    def leaking(desk: Any) -> Wrapped:
        def start(task: Any) -> WrappedEpisode:
            episode = desk.start(task)

            def step(action: Any) -> Observation:
                seen = episode.step(action)
                written.extend(str(value) for call in action.calls for value in call.arguments.values())
                notes = " ".join(word for word in written if word.startswith("n") and word.endswith("x"))
                return dataclasses.replace(seen, messages=(*seen.messages, Message("tool", notes)))

            return WrappedEpisode(episode, step=step)

        return Wrapped(desk, start)

    status, told = campaign(capsys, leaking, count=40)
    assert (status, told["traces"] > 0, told["forged"], told["lost"], told["leaked"]) == (1, True, 0, 0, 0)
    assert "shows what case e" in told["violations"][0]


def test_an_interrupt_within_a_lock_ends_it_in_order_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main(["--episodes=1", "--faults=0"]) == 130


def found_on_disk(canary: Canary, since: float) -> set[str]:
    """Names of what holds a canary, and the reason of a violation that names no such thing."""
    reasons = [violation.reason for violation in leaks.traces(canary, since)]
    return {Path(one.removesuffix(" holds a canary")).name if one.endswith("canary") else one for one in reasons}


def test_a_word_that_lies_on_disk_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    canary, began = Canary("y"), time.time() - 1
    (tmp_path / "note").write_text(f"remember {canary.word('e7')}")
    os.utime(tmp_path / "note", (1.0, 1.0))  # the time of a file is whatever its writer says
    (tmp_path / canary.word("e8")).mkdir()
    (tmp_path / "large").write_text("." * 2**20 + canary.word("e9"))
    (tmp_path / "other").write_text("nothing")
    assert found_on_disk(canary, began) == {"note", "large", canary.word("e8")}
    assert {Path(path).name for path in leaks.canary_paths(canary, time.time() + 60)} == {canary.word("e8")}


def test_the_temporary_folder_is_searched_whole_whatever_else_lies_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, shared, canary = tmp_path / "own", tmp_path / "shared", Canary("y")
    for folder in (own / "deep", shared / "open", shared / "closed"):
        folder.mkdir(parents=True)
        (folder / "note").write_text(f"{folder.name} {canary.word('e7')}")
        for number in range(20):
            (folder / f"{number}").touch()
    (shared / "closed").chmod(0o700 if os.geteuid() == 0 else 0)  # to the users of children
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    monkeypatch.setattr(leaks, "_SHARED", (str(shared), str(tmp_path / "no such folder")))
    assert [Path(path).parent.name for path in leaks.canary_paths(canary, 0.0)] == ["deep", "open"]
    (shared / "closed").chmod(0o700)
    monkeypatch.setattr(leaks, "_ENTRIES", 21)
    assert found_on_disk(canary, 0.0) == {
        "note", f"the search for traces is not complete: {shared}: not searched, after 22 files elsewhere"
    }  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
def test_an_ordinary_user_cannot_hide_what_it_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are that user too, so what they close to themselves is to be searched."""
    canary = Canary("y")
    with tempfile.TemporaryDirectory() as folder:
        own, shared = Path(folder, "own"), Path(folder, "shared")
        monkeypatch.setattr(tempfile, "tempdir", str(own))
        monkeypatch.setattr(leaks, "_SHARED", (str(shared),))
        for path in (own / "file", own / "inner/note", shared / "others/note"):
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(canary.word("e7"))
        (shared / "others").chmod(0o711)  # another user's: nothing in it is a child's
        for path in (Path(folder), own, own / "file", own / "inner", own / "inner/note"):
            os.chown(path, 65534, 65534)
        found = []
        for path in (own / "file", own / "inner"):
            path.chmod(0)
            os.seteuid(65534)
            try:
                found.append(found_on_disk(canary, 0.0))
            finally:
                os.seteuid(0)
            path.chmod(0o700)
    incomplete = "the search for traces is not complete: {}: Permission denied"
    assert found == [{"note", incomplete.format(own / "file")}, {"file", incomplete.format(own / "inner")}]


def test_a_folder_that_cannot_be_searched_fails_the_campaign(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refusing(folder: Any) -> Any:
        if str(folder) == str(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(leaks, "_SHARED", (str(tmp_path),))
    monkeypatch.setattr(os, "scandir", refusing)
    status, told = campaign(capsys, lambda desk: desk)
    assert (status, told["traces"]) == (1, 1)
    assert f"the search for traces is not complete: {tmp_path}: Permission denied" in told["violations"][0]


def test_what_stays_behind_is_counted(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    settled = leaks.wait_until_settled
    monkeypatch.setattr(leaks, "wait_until_settled", lambda before, supervisors=(): settled(before, supervisors, 0.2))
    kept: list[Any] = []
    first = threading.Lock()  # episodes begin side by side; it is taken once

    def littering(desk: Any) -> Wrapped:
        def start(task: Any) -> Any:
            if first.acquire(blocking=False):
                kept.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
                kept.append(open("/dev/null"))  # noqa: SIM115
                kept.append(tempfile.mkstemp(prefix="cojax-left-"))
            return desk.start(task)

        return Wrapped(desk, start)

    status, told = campaign(capsys, littering)
    kept[1].close()
    assert kept[0].wait(patience(5)) == -signal.SIGKILL
    assert (status, told["forged"], told["traces"], told["lost"]) == (1, 0, 0, 0)
    assert told["leaked"] >= 3
    found = " ".join(told["violations"])
    assert all(words in found for words in ("processes stay", "descriptors here", "files stay", "cojax-left-"))


def test_an_exception_that_is_no_failure_is_counted_as_lost(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(*_: Any, **__: Any) -> None:
        raise KeyError("choices")

    monkeypatch.setattr(ChatClient, "reply", reply)
    monkeypatch.setattr(servers, "_CLIENTS", {"explorer's client": servers._CLIENTS["explorer's client"]})
    status = command.main(["--episodes=0", "--faults=3", "--only=server", "--json"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status, told["faults"], told["lost"]) == (1, 3, 3)
    assert "raised KeyError" in told["violations"][0]


def test_a_reply_that_was_not_said_is_counted_as_forged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatClient, "reply", lambda *_, **__: dataclasses.make_dataclass("R", ["text"])("pear"))
    monkeypatch.setattr(servers, "_CLIENTS", {"explorer's client": servers._CLIENTS["explorer's client"]})
    assert [found.count for found in servers.inject("f0", 0)] == ["forged"]


def test_logs_keep_what_they_acknowledged_on_a_full_disk(tmp_path: Path) -> None:
    told: list[None] = []
    ids = [f"f{number}" for number in (0, 1, 2, 3, 5, 7)]
    assert disk.inject(ids, 0, tmp_path, lambda: told.append(None)) == []
    assert len(told) == 6


@pytest.mark.parametrize(
    "argument",
    [
        "--episodes=-1",
        "--episodes=many",
        "--faults=1.5",
        "--seed=",
        "--case=x1",
        "--case=e",
        "--only=no",
        "--epi=1",
        "word",
    ],
)
def test_a_bad_flag_is_one_line(argument: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([argument])
    told = capsys.readouterr()
    assert ended.value.code == 2
    assert (told.out, told.err.count("\n"), told.err.startswith("error: ")) == ("", 1, True)


def test_an_interrupt_ends_it_and_every_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.campaign", "--episodes=100000", "--faults=0", "--only=wild"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + patience(60)
    while len(family := processes.family(process.pid)) < 5:
        assert time.monotonic() < until, "no episode was begun"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=patience(60))
    assert process.returncode == 130, words
    assert words.endswith("stopped; nothing is counted\n")
    assert not [pid for pid in family if Path(f"/proc/{pid}/exe").exists()]

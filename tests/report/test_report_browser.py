"""The pages in headless Chromium: nothing overflows, links and searches do what they say, pieces are loaded."""

from __future__ import annotations

import json
import queue
import random
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from browser import DEADLINE, OVERFLOW, dom, found
from large_run import write_run
from test_report import ATTACK, CHILD, GRANDCHILD, SEED, SOURCE, episode, metrics

from cojax.pool import make_task_record
from cojax.report import live
from cojax.report.comparison import write_comparison
from cojax.report.page import write_evaluation_report, write_report
from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES, Episodes
from cojax.storage.files import Log, write_json
from cojax.types import Signal, to_json

pytestmark = pytest.mark.real
WIDTHS = (400, 1_000, 1_600)
LONG = "unbroken" * 40


def write(folder: Path, seed: int = 0, **settings: Any) -> Path:
    """A run whose figures and texts are as long and as awkward as those of real runs, and hostile."""
    config = {"environment": {"name": "desk"}, "steps": 1_000, "learner": {"advantage": "group_relative"}, **settings}
    hardware = {
        "processor": "A processor with a name",
        "cores": 128,
        "devices": ["gpu"] * 8,
        "caches": {"L1": [0] * 90},
    }
    write_json(folder / "config.json", {"config": config, "seed": seed, "commit": "abc", "hardware": hardware})
    parts = ("generation", "environment", "update", "sync", "feedback", "evaluation", "checkpoint")
    seconds = {**{name: 60.0 + 7 * place for place, name in enumerate(parts)}, "total": 700.0}
    verdicts = {"accepted": 13, "retained": 1, "discarded": 7, "added": {"boundary": 12, "rare": 1}}
    probe = {"origins": {"boundary": {"candidates": 160, "episodes": 1_280, "turns": 123_456}}}
    origins = {"boundary": {"groups": 16, "live": 9}, LONG[:90]: {"groups": 16, "live": 0}}
    Log(folder / "metrics.jsonl").append(
        metrics(step, tasks=100 + step, seconds=seconds, live_groups=0.4, partial=0.6, logprob_mismatch=1e-6)
        | {"origins": origins, "grad_norm": 0.123456}
        | ({"evolution": {**verdicts, "probe": probe}, "dev": {"success": 0.4}} if step % 5 == 0 else {})
        for step in range(1, 41)
    )
    Log(folder / "tasks.jsonl").append(make_task_record(task) for task in (SEED, CHILD, GRANDCHILD))
    Log(folder / "signals.jsonl").append([{"step": 1, **to_json(Signal("boundary", SEED.id, SOURCE, "1 of 8 solved"))}])
    verdict = {"status": "discarded", "evidence": ["new, and no evaluation task", f"does not run: {ATTACK}{LONG}"]}
    drafts = [{"step": step, "origin": "rare", "draft": {"query": LONG}, "verdict": verdict} for step in (0, 0, 0, 5)]
    Log(folder / "drafts.jsonl").append(drafts)
    ran = {"status": "accepted", "evidence": ["solved without hints: 1 of 3 attempts on the query alone"]}
    guess = {"predicted": {"beliefs": 0.25, "probe": 0.5}}
    accepted = {"step": 2, "origin": "boundary", "draft": {"query": CHILD.query}, "verdict": ran, "task": CHILD.id}
    Log(folder / "drafts.jsonl").append([accepted | guess])
    for step in range(1, 4):
        group = [
            episode(step, SEED, sample, float(sample < 3), ["boundary"] if sample == 1 else []) for sample in range(8)
        ]
        Episodes(folder / "episodes").write(
            step, [*group, *(episode(step, CHILD, sample, 0.0, []) for sample in range(8))]
        )
    rng = random.Random(seed)
    for name, beside, chance in (("zero_shot", ZERO_SHOT_EPISODES, 0.3), ("final", FINAL_EPISODES, 0.6)):
        scores = {f"{number:016x}": float(rng.random() < chance) for number in range(200)}
        tools = {tool: {"success": chance, "tasks": 90} for tool in ("mail", LONG[:90], ATTACK)}
        write_json(folder / f"{name}.json", {"success": sum(scores.values()) / 200, "tasks": scores, "by_tool": tools})
        (folder / beside).write_bytes((folder / "episodes/000001.jsonl.gz").read_bytes())
    totals = {"total": 402.0, "warm_start": 143.0, **{name: 50.0 for name in parts}}
    summary = {
        "steps": 1_000,
        "tasks_initial": 12_345,
        "tasks_final": 22_100,
        "seconds": totals,
        "zero_shot": 0.2,
        "final": 0.6,
    }
    write_json(folder / "summary.json", summary)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("runs") / "a run <img src=x onerror=alert(1)>")
    write_report(folder)
    return folder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_overflows(run: Path, tmp_path: Path, width: int, dark: bool) -> None:
    seen = found(run / "report.html", OVERFLOW, tmp_path, width, dark)
    assert seen == {"faults": [], "dark": "rgb(15, 19, 25)" if dark else "rgb(246, 247, 249)"}


def test_nothing_overflows_in_a_comparison(run: Path, tmp_path: Path) -> None:
    other = write(tmp_path / LONG[:200], 1, batch_size=LONG)
    page = write_comparison([run, other], tmp_path / "compare.html")
    for width in (400, 1_600):
        assert found(page, OVERFLOW, tmp_path, width)["faults"] == []
    script = """
      const rows = [...document.querySelectorAll("#results tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
      type("search query or id", "zebra");
      const none = document.querySelector("#tasks tbody").textContent;
      type("search query or id", "00000000000000c");
      document.querySelectorAll("#tasks th button")[2].click();
      const sorted = [...document.querySelectorAll("#tasks tbody tr")].map((row) => row.children[2].textContent);
      return {rows, none, sorted};
    """  # noqa: E501
    seen = found(page, script, tmp_path)
    assert seen["rows"][0][4:6] == ["baseline", ""]
    assert seen["rows"][1][5] in ("better", "worse", "not distinguishable")
    assert seen["none"] == "No task has “zebra” in its id or query. Change the search or the filter."
    assert seen["sorted"] == sorted(seen["sorted"], reverse=True)
    assert len(seen["sorted"]) == 9


def test_the_page_runs_nothing_of_its_data(run: Path, tmp_path: Path) -> None:
    shown = dom((run / "report.html").as_uri(), tmp_path)
    assert "<title>cojax · a run &lt;img src=x onerror=alert(1)&gt;</title>" in shown
    body = shown.partition("</head>")[2].partition('id="data"')[0]
    assert "<img" not in body
    assert "&lt;/script&gt;&lt;script&gt;" in body


def test_what_tasks_were_worth_is_shown_by_origin_and_the_gain_by_tool(run: Path, tmp_path: Path) -> None:
    script = """
      const read = (id) => [...document.querySelectorAll(`#${id} tr`)].map((row) => [...row.children].map((cell) => cell.textContent));
      return {worth: read("worth"), gains: read("gains"), text: document.querySelector("#worth").textContent};
    """  # noqa: E501
    seen = found(run / "report.html", script, tmp_path)
    head, *rows = seen["worth"]
    assert head == [
        "origin", "tasks", "groups", "live groups", "tools first solved", "explored: episodes", "explored: actions",
        "probed: episodes", "probed: actions", "attempts", "rank correlation, beliefs", "rank correlation, probe",
        "gradient norm",
    ]  # fmt: skip
    # Eight evolutions probed 1,280 episodes each; one task has a prediction, too few for a correlation.
    (row,) = [row for row in rows if row[0] == "boundary"]
    assert row[1:] == ["1", "640", "360 (56 %)", "0", "0", "0", "10,240", "987,648", "3", "– (1)", "– (1)", "0.123"]
    why = "No rank correlation for beliefs: 1 task with a prediction and a known first visit; 5 are needed."
    assert why in seen["text"]
    assert seen["gains"][0] == ["tool", "evaluation tasks", "first", "last", "gain ↓", "tasks added"]
    assert ["mail", "90", "30 %", "60 %", "+30.0 points", "1"] in seen["gains"]
    assert ATTACK in [row[0] for row in seen["gains"]]


@pytest.mark.parametrize("width", [400, 1_600])
@pytest.mark.parametrize("kind", ["episode", "group", "task"])
def test_an_address_leads_to_what_it_names(run: Path, tmp_path: Path, width: int, kind: str) -> None:
    script = """
      const card = document.querySelector(`#${KIND === "task" ? "tasks" : "episodes"} .detail`), box = card.getBoundingClientRect();
      return {top: box.top, bottom: box.bottom, high: innerHeight, text: card.textContent};
    """  # noqa: E501
    name = CHILD.id if kind == "task" else f"2-{SEED.id}-5"
    seen = found(run / "report.html", f"const KIND = '{kind}'; {script}", tmp_path, width, address=f"#{kind}={name}")
    assert -5 < seen["top"] < 0.5 * seen["high"]
    if kind == "group":
        assert [f"sample {number}" in seen["text"] for number in range(1, 9)] == [True] * 8
        assert seen["text"].count("advantage +1.21") == 3
        assert seen["text"].count("advantage −0.72") == 5
    else:
        assert name in seen["text"]


def test_searches_charts_and_figures_say_what_is(run: Path, tmp_path: Path) -> None:
    script = """
      const text = (name) => document.querySelector(name).textContent;
      const ticks = [...document.querySelectorAll(".chart svg")].map((svg) => [...svg.querySelectorAll("text")].filter((node) => node.getAttribute("text-anchor") === "end").map((node) => node.textContent));
      const colours = [...document.querySelectorAll("#evolution .splitrow .swatch")].map((node) => getComputedStyle(node).backgroundColor.match(/[0-9]+/g).map(Number));
      type("search query, task or episode id", "zebra");
      type("search query, id, tool", "zebra");
      const saved = [];
      URL.createObjectURL = (blob) => { saved.push(blob); return "#"; };
      const empty = [text("#episodes .list"), text("#tasks tbody")];
      type("search query, task or episode id", "");
      document.querySelectorAll("#episodes .controls button")[0].click();
      const pool = [...document.querySelectorAll("#evolution .card")].find((card) => card.textContent.startsWith("Pool"));
      const tops = [...pool.querySelectorAll("polygon")].flatMap((node) => node.getAttribute("points").split(" ").map((point) => point.split(",").map(Number)));
      return {ticks, colours, empty, csv: await saved[0].text(), gain: text(".hero .gain"), drafts: text("#tasks > details > summary"),
        marks: [...document.querySelectorAll("#tasks .evidence li")].slice(-2).map((node) => node.className), widths: tops.map(([x]) => x)};
    """  # noqa: E501
    seen = found(run / "report.html", script, tmp_path, 1_600)
    assert all(len(set(labels)) == len(labels) for labels in seen["ticks"])
    pairs = [(a, b) for n, a in enumerate(seen["colours"][:8]) for b in seen["colours"][:n]]
    assert min(sum(abs(x - y) for x, y in zip(a, b, strict=True)) for a, b in pairs) > 60
    assert seen["empty"] == [
        "No episode has “zebra” in it. Change the search or the filters.",
        "No task has “zebra” in it. Change the search or the filters.",
    ]
    lines = seen["csv"].lstrip("\ufeff").splitlines()
    assert lines[0] == "id,step,task,query,origin,outcome,reward,turns,signals,agent,advantage"
    assert lines[1].startswith(f'1-{SEED.id}-0,1,{SEED.id},"mail ana </script>')
    assert len(lines) == 49
    assert seen["gain"] == "+40.0 points"
    assert seen["drafts"] == "Drafts that were not accepted: 1 of the evolutions and 3 of the initial tasks"
    assert seen["marks"] == ["yes", "no"]


def test_a_run_measured_once_claims_no_gain(tmp_path: Path) -> None:
    write_json(tmp_path / "run/config.json", {"config": {}})
    Log(tmp_path / "run/metrics.jsonl").append([metrics(1, dev={"success": 0.2})])
    page = write_report(tmp_path / "run")
    script = "return [document.querySelector('.big').textContent, document.querySelectorAll('.gain').length];"
    assert found(page, script, tmp_path) == ["20.0 %", 0]


def test_a_formula_is_saved_as_text(run: Path, tmp_path: Path) -> None:
    page = run / "report.html"
    text = page.read_text()
    inside = text.replace("\ndraw(data);", "\nglobalThis.cell = csvCell; draw(data);", 1)
    probed = tmp_path / "report.html"
    probed.write_text(inside)
    script = """return ["=1+1", "@x", "-2", "a,b", 'say "x"', -2, null].map(globalThis.cell);"""
    assert found(probed, script, tmp_path) == ["'=1+1", "'@x", "'-2", '"a,b"', '"say ""x"""', "-2", ""]


def test_the_page_of_an_evaluation_shows_its_groups(tmp_path: Path) -> None:
    share = {"value": 0.5, "low": 0.25, "high": 0.75, "count": 2}
    split = {"tasks": 2, "avg_at_k": share, "pass_at_k": {"1": share, "4": share}, "measures": {}, "partial": 0.5}
    split |= {"turns": 1.0, "lost": 0, "by": {LONG[:90]: {"tasks": 2, "success": 0.5}}, "by_key": "kind"}
    result = {
        "splits": {"eval": split},
        "samples": 4,
        "temperature": 1.0,
        "environment": "desk",
        "policy": {"run": LONG},
    }
    write_json(tmp_path / "result.json", {**result, "interval": "Wilson's"})
    write_json(tmp_path / "config.json", {"config": {}, "commit": "abc"})
    played = [episode(0, SEED, sample, float(sample == 1), []) for sample in range(4)]
    Log(tmp_path / "episodes.jsonl").append({"split": "eval", **one} for one in played)
    page = write_evaluation_report(tmp_path)
    assert found(page, OVERFLOW, tmp_path, 400)["faults"] == []
    script = (
        "return [document.querySelector('#episodes .detail').textContent, document.querySelectorAll('.column').length];"
    )
    text, columns = found(page, script, tmp_path, address=f"#group=0-{SEED.id}-2")
    assert (columns, text.count("reward 1, finished"), "advantage" in text) == (4, 1, False)


def _seconds_to_open(page: Path, folder: Path) -> float:
    """From the request to the drawn page, by the machine's clock."""
    timed = folder / "timed.html"
    timed.write_text(page.read_text() + "<script>document.title = `opened ${performance.now()}`</script>")
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", timed.read_text())
    timed.write_text(text)
    match = re.search(r"<title>opened ([0-9.]+)</title>", dom(timed.as_uri(), folder, budget=None))
    assert match
    return float(match[1]) / 1_000


@pytest.mark.nightly
def test_a_live_page_draws_what_is_new_and_says_when_it_ends(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "live"
    shutil.copytree(run, folder)
    (folder / "summary.json").unlink()
    asked: queue.Queue[int] = queue.Queue()
    ended = threading.Event()
    newer = live.LiveReport.wait_for_newer

    def noted(report: live.LiveReport, version: int) -> Any:
        if ended.is_set():  # as when the process ends, which closes what is open
            raise ConnectionResetError
        asked.put(version)
        return newer(report, version)

    monkeypatch.setattr(live.LiveReport, "wait_for_newer", noted)
    monkeypatch.setattr(live, "MAX_WAIT_S", 0.5)
    with live.ReportServer(live.LiveReport(folder)) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever)
        shown = threads.submit(dom, f"http://127.0.0.1:{server.server_port}/", tmp_path)
        try:
            assert asked.get(timeout=DEADLINE) == 1
            Log(folder / "metrics.jsonl").append([metrics(41)])
            while asked.get(timeout=DEADLINE) != 2:
                pass
        finally:
            ended.set()
            server.shutdown()
            server.server_close()
        page = shown.result(timeout=DEADLINE)
    assert "unfinished: step 41 of 1000" in page
    assert "no longer live: the command has ended" in page


def test_five_thousand_tasks_and_a_hundred_thousand_episodes(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    write_run(folder, tasks=5_000, episodes=100_000)
    page = write_report(folder)
    assert page.stat().st_size < 10_000_000
    index = json.loads(page.read_text().partition('id="data">')[2].partition("</script>")[0])["index"]
    assert sum(len(group["r"]) for _, groups in index["steps"] for group in groups) == 100_000
    # Moved, with its pieces and without.
    moved, alone = tmp_path / "moved", tmp_path / "alone"
    alone.mkdir()
    shutil.copytree(folder / "report_files", moved / "report_files")
    for other in (moved, alone):
        shutil.copy(page, other)
    last = index["steps"][700][0]
    task = index["tasks"][index["steps"][700][1][3]["t"]][0]
    address = f"#group={last}-{task}-4"
    place = 700 * 128 + 3 * 8 + 4 + 1  # in the list; two earlier ones are listed too
    script = """
      const opened = performance.getEntriesByType("navigation")[0].loadEventEnd;
      const card = document.querySelector("#episodes .detail").textContent, one = document.querySelector("#tasks tbody tr:nth-child(2)");
      one.click();
      await settled();
      return {card, task: document.querySelector("#tasks .detail").textContent, id: one.dataset.id, list: document.querySelector("#episodes .status").textContent};
    """  # noqa: E501
    seen = found(moved / "report.html", script, tmp_path, address=address)
    assert seen["card"].count("what the environment said about it") == 16
    assert "No episode" not in seen["card"]
    assert "examination 6" in seen["task"]
    assert seen["list"].startswith(f"100,000 episodes found, {place - 2:,} to {place + 247:,} listed")
    seen = found(alone / "report.html", script, tmp_path, address=address)
    assert f"report_files/episodes-{last:06d}.js is missing. It was written beside report.html" in seen["card"]
    assert "report_files/tasks-" in seen["task"]
    assert min(_seconds_to_open(page, tmp_path) for _ in range(3)) < 3.0
    # A page of another version of the report.
    (moved / "report.html").write_text(page.read_text().replace('"stamp":"', '"stamp":"0'))
    seen = found(moved / "report.html", script, tmp_path, address=address)
    assert "belongs to another version of this report" in seen["card"]

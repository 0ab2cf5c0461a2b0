"""The report of a small run written by hand, whose figures are easily counted."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from browser import dom

from cojax.pool import make_task_record
from cojax.report.command import main
from cojax.report.episodes import pick_varied, pick_within
from cojax.report.figures import average_first_and_last, build_headline, count_pool, evenly, list_evolutions, sum_totals
from cojax.report.lineage import TaskVisit, add_visit, read_histories, read_lineage
from cojax.report.page import build_contents, embed_json, write_report
from cojax.report.run import read_run
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, write_json
from cojax.types import Action, Call, Check, Lineage, Message, Observation, Signal, Task, Trajectory, Turn, to_json

ATTACK = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\"><!--"
FINISH = Action(calls=(Call("finish", {"answer": "four"}),))
SEED = Task("desk", f"mail ana {ATTACK}", {"box": 1}, (FINISH,), "unguided", Lineage(verdict="accepted"))
SOURCE = f"1-{SEED.id}-1"
CHILD = Task(
    "desk",
    "mail ana, then flag it",
    {"box": 1},
    (Action(calls=(Call("mail", {"to": "ana"}),)), FINISH),
    "boundary",
    Lineage(SEED.id, "1 of 2 solved", SOURCE, "scripted", (0, 2), "accepted", ("runs: 2 actions", ATTACK), 2),
)
GRANDCHILD = Task(
    "desk", "flag it", {"box": 1}, (FINISH,), "rare", Lineage(CHILD.id, "seldom", f"3-{CHILD.id}-0", step=4)
)


def episode(step: int, task: Task, sample: int, reward: float, signals: list[str], **other: Any) -> dict[str, Any]:
    turn = Turn(
        Action(text=f"thinking {ATTACK}", calls=(Call("mail", {"to": ATTACK}),)),
        Observation((Message("tool", ATTACK),), ok=False),
        prompt_tokens=(1, 2, 3),
        action_tokens=(4, 5),
        action_logprobs=(-0.125, -2.5),
        weights_version=step - 1,
    )
    trajectory = Trajectory(
        task,
        f"{step}-{task.id}-{sample}",
        (Message("user", task.query),),
        (turn,),
        reward,
        (Check("sent", reward == 1),),
    )
    return {**to_json(dataclasses.replace(trajectory, **other)), "signals": signals}


def metrics(step: int, **other: Any) -> dict[str, Any]:
    counts = {"signals": {"boundary": 2, "rare": step}, "outcomes": {"finished": 2}}
    return {"step": step, "success": 0.5, "reward": 0.5, "tasks": 1, **counts, "seconds": {"update": 2.0}, **other}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    write_json(folder / "config.json", {"config": {"environment": "desk", "steps": 5}, "seed": 0, "commit": "abc"})
    evolution = {"drafts": 3, "accepted": 1, "retained": 0, "discarded": 2, "added": {"boundary": 1}}
    Log(folder / "metrics.jsonl").append(
        [metrics(1, dev={"success": 0.2}), metrics(2, evolution=evolution, loss=None), metrics(3, dev={"success": 0.4})]
    )
    Log(folder / "tasks.jsonl").append(make_task_record(task) for task in (SEED, CHILD, GRANDCHILD))
    found = Signal("boundary", SEED.id, SOURCE, "1 of 2 solved")
    Log(folder / "signals.jsonl").append([{"step": 1, **to_json(found)}])
    draft = {"query": ATTACK}
    verdict = {"status": "discarded", "evidence": ["does not run"]}
    Log(folder / "drafts.jsonl").append([{"step": 2, "origin": "boundary", "draft": draft, "verdict": verdict}])
    episodes = Episodes(folder / "episodes")
    episodes.write(1, [episode(1, SEED, 0, 1.0, ["boundary"]), episode(1, SEED, 1, 0.0, ["boundary", "rare"])])
    episodes.write(
        3,
        [
            episode(3, CHILD, 0, 0.0, []),
            episode(3, CHILD, 1, 0.5, []),
            episode(3, SEED, 0, 1.0, []),
            episode(3, CHILD, 2, 1.0, [], outcome="environment_error"),
        ],
    )
    episodes.write(5, [episode(5, CHILD, 0, 1.0, []), episode(5, CHILD, 1, 0.0, [], outcome="timeout")])
    return folder


def data_of(page: str) -> Any:
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(block)


def test_lineage_answers_why_and_whether_it_helped(run: Path) -> None:
    story = read_lineage(run, CHILD.id[:8])
    assert (story.id, story.origin, story.step, story.verdict) == (CHILD.id, "boundary", 2, "accepted")
    assert story.solution == ("mail(to='ana')", "finish(answer='four')")
    assert [parent[:2] for parent in story.parents] == [(SEED.id, "unguided")]
    assert (story.signal, story.signal_evidence, story.source_episode) == ("boundary", "1 of 2 solved", SOURCE)
    assert (story.explorer, story.runs, story.verdict_evidence) == ("scripted", (0, 2), ("runs: 2 actions", ATTACK))
    # The environment's failure at step 3 says nothing; the timeout at step 5 is a failure like any other.
    assert story.visits == (TaskVisit(3, 2, 0, 0.25), TaskVisit(5, 2, 1, 0.5))
    assert story.parent_visits == (TaskVisit(1, 2, 1, 0.5), TaskVisit(3, 1, 1, 1.0))


def test_the_parent_chain_ends_at_the_first_task(run: Path) -> None:
    assert [id for id, _, _ in read_lineage(run, GRANDCHILD.id).parents] == [CHILD.id, SEED.id]
    assert read_lineage(run, SEED.id).parents == ()


def test_a_parent_that_is_not_in_the_pool_is_named_by_its_id(run: Path) -> None:
    orphan = dataclasses.replace(GRANDCHILD, query="other", lineage=Lineage(parent="feedfacefeedface", step=4))
    Log(run / "tasks.jsonl").append([make_task_record(orphan)])
    assert read_lineage(run, orphan.id).parents == (("feedfacefeedface", "", ""),)


def test_an_unknown_or_ambiguous_id_says_what_to_give(run: Path) -> None:
    with pytest.raises(KeyError, match="'zz' not among 3 tasks; give an id"):
        read_lineage(run, "zz")
    with pytest.raises(KeyError, match="fits 3 tasks"):
        read_lineage(run, "")


def test_figures(run: Path) -> None:
    read = read_run(run)
    assert count_pool(read) == {
        "step": [0, 1, 2, 3],
        "origins": {"unguided": [1, 1, 1, 1], "boundary": [0, 0, 1, 1], "rare": [0, 0, 0, 0]},
    }
    first, still_open = list_evolutions(read)
    assert (first["step"], first["signals"]) == (2, {"boundary": 4, "rare": 3})
    assert first["verdicts"] == {"accepted": 1, "retained": 0, "discarded": 2}
    assert still_open == {"step": 3, "signals": {"boundary": 2, "rare": 3}, "open": True}
    assert sum_totals(read) == {
        "seconds": {"update": 6.0},
        "outcomes": {"finished": 6},
        "signals": {"boundary": 6, "rare": 6},
        "verdicts": {"accepted": 1, "retained": 0, "discarded": 2},
    }
    said = build_headline(read)
    assert (said["finished"], said["step"], said["steps"], said["dev"]) == (False, 3, 5, [0.2, 0.4])
    assert (said["tasks_initial"], said["tasks_final"]) == (1, 3)


def test_a_finished_run_shows_its_summary(run: Path) -> None:
    summary = {
        "zero_shot": 0.24,
        "final": 0.49,
        "steps": 5,
        "tasks_initial": 7,
        "seconds": {"update": 9.0, "total": 9.5},
    }
    write_json(run / "summary.json", summary)
    read = read_run(run)
    said = build_headline(read)
    assert (said["finished"], said["zero_shot"], said["final"], said["tasks_initial"]) == (True, 0.24, 0.49, 7)
    assert sum_totals(read)["seconds"] == {"update": 9.0, "total": 9.5}


def test_success_compares_first_and_last_visit_of_the_same_tasks(run: Path) -> None:
    read, rewards = read_run(run), dict[str, dict[int, list[float]]]()
    for step in (1, 3, 5):
        for line in read.episodes.read(step):
            add_visit(rewards, CHILD.id if line["task"]["query"] == CHILD.query else SEED.id, step, line)
    assert average_first_and_last(read_histories(read, rewards)) == [
        {"origin": "unguided", "tasks": 1, "first": 0.5, "last": 1.0},
        {"origin": "boundary", "tasks": 1, "first": 0.0, "last": 0.5},
    ]


def test_the_page_holds_sources_of_lineages_and_says_what_it_leaves_out(run: Path) -> None:
    read = read_run(run)
    data = build_contents(read)
    assert data["counts"] == {"tasks": 2, "histories": 2, "episodes": 8, "sources": [2, 2], "drafts": [0, 1]}
    source = next(one for one in data["episodes"] if one["id"] == SOURCE)
    assert source["signals"] == [["boundary", "1 of 2 solved"], ["rare", ""]]
    assert (source["task"], source["step"], source["checks"]) == (SEED.id, 1, [["sent", False]])
    (turn,) = source["turns"]
    assert (turn["logprobs"], turn["tokens"], turn["prompt"], turn["weights"]) == ([-0.125, -2.5], 2, 3, 0)
    assert turn["calls"] == [["mail", {"to": ATTACK}]]


def test_untrusted_text_stays_text(run: Path) -> None:
    page = write_report(run).read_text()
    assert ATTACK in data_of(page)["tasks"][0]["verdict_evidence"]

    class Tags(html.parser.HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.append(tag)

    Tags().feed(page)
    assert (Tags.found.count("script"), Tags.found.count("img")) == (2, 0)


def test_the_page_asks_nothing_of_any_server(run: Path) -> None:
    page = write_report(run).read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert policy is not None
    assert script is not None
    assert style is not None
    assert policy[1].startswith("default-src 'none'; ")
    for source in (script[1], style[1]):
        assert base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() in policy[1]
    assert not re.findall(r"(?:src|href)=|@import|url\(|fetch\(|XMLHttpRequest", style[1] + page.split("<style>")[0])
    assert set(re.findall(r"https?://[^\s\"'`]+", script[1])) == {"http://www.w3.org/2000/svg"}  # a name, not a request


def test_embedded_json_cannot_close_its_block_and_has_no_nan() -> None:
    text = embed_json({"a": "</script>&\u2028", "b": float("nan"), "c": [float("inf")]})
    assert text == '{"a":"\\u003c/script\\u003e\\u0026\\u2028","b":null,"c":[null]}'


@pytest.mark.parametrize("missing", ["episodes", "tasks.jsonl", "metrics.jsonl", "drafts.jsonl"])
def test_any_part_of_a_run_may_be_missing(run: Path, missing: str) -> None:
    path = run / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    data = data_of(write_report(run).read_text())
    assert len(data["tasks"]) == (0 if missing == "tasks.jsonl" else 2)
    assert data["counts"]["episodes"] == (0 if missing == "episodes" else 8)


def test_a_run_that_only_just_began_has_a_page(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"config": {}})
    assert data_of(write_report(tmp_path).read_text())["curves"]["step"] == []


def test_a_kind_of_signal_from_outside_is_drawn_in_its_colour(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    code = {
        "signals.slow": {"name": "mine:slow", "kind": "slow", "colour": "#228833"},
        "signals.odd": {"name": "mine:odd", "kind": "odd", "colour": "url(//evil)"},
        "learner.loss": {"name": "grpo"},
    }
    write_json(run / "config.json", {**config, "code": code})
    rows = list(Log(run / "metrics.jsonl").read())
    Log(run / "metrics.jsonl").truncate(0)
    Log(run / "metrics.jsonl").append({**row, "signals": {**row["signals"], "slow": 2}} for row in rows)
    data = build_contents(read_run(run))
    assert data["kinds"] == {"forgetting": "", "boundary": "", "rare": "", "slow": "#228833", "odd": ""}
    assert data["evolutions"][0]["signals"] == {"boundary": 4, "rare": 3, "slow": 4}
    assert {row["origin"]: row["signals"] for row in data["conversion"]["funnel"]}["slow"] == 6


def test_a_torn_last_line_is_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"step": 4, "succ')
    assert data_of(write_report(run).read_text())["curves"]["step"] == [1, 2, 3]


def test_evenly_keeps_the_ends() -> None:
    assert evenly(range(10), 4) == [0, 3, 6, 9]
    assert evenly([1, 2], 4) == [1, 2]


def test_within_spreads_what_it_keeps() -> None:
    items = [{"n": n} for n in range(8)]  # 8 bytes each
    assert pick_within(items, 32) == [{"n": 1}, {"n": 3}, {"n": 5}, {"n": 7}]
    assert pick_within(items, 64) == items


def test_varied_takes_each_kind_in_turn() -> None:
    kinds = [("finished", 1.0), ("finished", 1.0), ("finished", 0.0), ("timeout", 0.0)]
    episodes = [{"outcome": outcome, "reward": reward, "n": n} for n, (outcome, reward) in enumerate(kinds)]
    assert [line["n"] for line in pick_varied(episodes, 3)] == [2, 0, 3]


def test_the_command_rebuilds_and_tells(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    assert (run / "report.html").exists()
    assert main([str(run), f"--task={CHILD.id[:6]}"]) == 0
    said = capsys.readouterr().out
    for line in (
        "signal     boundary: 1 of 2 solved",
        f"parent     {SEED.id}  unguided  {SEED.query}",
        "visits     0/2 solved at step 3, 1/2 solved at step 5",
        "its parent before: 1/2 solved at step 1",
    ):
        assert line in said, line


def test_the_command_explains_bad_input(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run / "nowhere")]) == 2
    assert main([str(run / "episodes")]) == 2
    assert main([str(run), "--task=zz"]) == 2
    first, second, third = capsys.readouterr().err.splitlines()
    assert "not found; pass the workdir of a run" in first
    assert "holds neither config.json nor metrics.jsonl" in second
    assert "task 'zz' not among 3 tasks" in third


@pytest.mark.real
def test_a_browser_draws_the_page_and_runs_nothing_of_the_data(run: Path, tmp_path: Path) -> None:
    shown = dom(f"{write_report(run).as_uri()}#task={CHILD.id}", tmp_path)
    assert "<title>cojax · desk</title>" in shown
    body = shown.split('id="data"')[0]
    assert "0/2 at step 3, 1/2 at step 5" in body
    assert "before: 50 % over 1 visit; after: 100 % over 1 visit" in body
    assert "<img" not in body
    assert "&lt;/script&gt;&lt;script&gt;" in body

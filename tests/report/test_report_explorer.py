"""The report of a run whose explorer had a model: the expedition of a task, and the exact texts sent and received."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from page_text import drawn, needs_node
from test_report import ATTACK, CHILD, GRANDCHILD, SEED, SOURCE, data_of, episode, metrics

from cojax.explorer.llm.chat_model import Journal
from cojax.pool import make_task_record
from cojax.report import exchanges
from cojax.report.command import main
from cojax.report.exchanges import find_places, read_exchanges
from cojax.report.figures import build_conversion, build_quality_curves, count_lengths, measure_feedback
from cojax.report.lineage import read_lineage
from cojax.report.page import build_contents, write_report
from cojax.report.run import read_run
from cojax.signals import kinds
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, write_json
from cojax.types import to_json
from cojax.unicode_forms import plain

LONG = "documentation " * 2_000
REFUSED = {"environment": "desk", "query": "wipe it all", "setup": {"box": 1}, "solution": [], "description": ""}
REFUSED_ID = "27533438e3251dd2"


def record(place: str, *messages: str, text: str | None = "said", **other: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant")
    sent = [{"role": roles[min(n, 1) if n < 2 else 2 - n % 2], "content": m} for n, m in enumerate(messages)]
    about = {"place": place, "model": "m", "sent": {"model": "m", "temperature": 0.7, "messages": sent}}
    answer = {} if text is None else {"text": text, "truncated": False}
    return {**about, **answer, "usage": [12, 3], "tokens": 15, "requests": 1, **other}


# Out of order, as calls end; D_0's, another task's and another expedition's among them.
CALLS = [
    record("0/1/3/run 1/turn 1", "SYSTEM", LONG, text="left"),
    record("0/1/3/run 0/turn 2", "SYSTEM", LONG, "move", "moved", text="stay"),
    record("0/1/3/reflect", "REFLECT", f"evidence {ATTACK}", text=f'{{"summary": "{ATTACK[:9]}"}}'),
    record("0/1/3/run 0/turn 1", "SYSTEM", LONG, text="move"),
    record("0/1/3/run 10/turn 1", "SYSTEM", LONG, text="late"),
    record("0/1/3/abstract", "ABSTRACT", "runs", text="not json"),
    record("0/1/3/abstract/repair", "ABSTRACT", "runs", "not json", "again", text="\x1b[2Jdrafts\u202e"),
    record("0/1/4/reflect", "REFLECT", "of another expedition"),
    record("0/initial/3/run 0/turn 1", "SYSTEM", "survey of D_0"),
    record(f"0/1/task {CHILD.id}/attempt 1/turn 1", "SOLVE", "query", text=None, kind="timeout", reason="no\nreply"),
    record(f"0/1/task {CHILD.id}/attempt 0/turn 1", "SOLVE", "query", text="done"),
    record(f"judge/{CHILD.id}", "JUDGE", "query and solution", text='{"consistent": true}'),
    record(f"judge/{REFUSED_ID}", "JUDGE", "of the refused draft", text='{"safe": false}'),
    record("elsewhere", "SYSTEM", "no place that is known"),
]
QUALITY = {
    "tasks": 2,
    "turns": 2.0,
    "sr_at_k": 0.5,
    "ed_rel": 0.02,
    "max_similarity": {"mean": 0.4, "max": 0.6, "histogram": [0] * 8 + [1] + [0] * 3 + [1] + [0] * 7},
    "initial": {
        "tasks": 1, "turns": 1.0, "max_similarity": {"mean": 0.6, "max": 0.6, "histogram": [0] * 12 + [1] + [0] * 7},
    },
    "synthesized": {"tasks": 1, "turns": 2.0, "max_similarity": {"mean": 0.4, "max": 0.4, "histogram": [0] * 20}},
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    write_json(folder / "config.json", {"config": {"steps": 5, "quality": {"k": 5, "embedding": "local"}}})
    counts = {"expeditions": 2, "drafts": 3, "accepted": 1, "retained": 0, "discarded": 2}
    evolution = {**counts, "added": {"boundary": 1}, "quality": QUALITY}
    first = metrics(1, seconds={"feedback": 1.0, "total": 8.0})
    second = metrics(2, evolution=evolution, seconds={"feedback": 3.0, "total": 8.0})
    Log(folder / "metrics.jsonl").append([first, second])
    Log(folder / "tasks.jsonl").append(make_task_record(task) for task in (SEED, CHILD))
    context = {"kind": "boundary", "episode": SOURCE, "summary": f"it failed {ATTACK}", "objectives": ["mail", "flag"]}
    runs = [{"run": 0, "actions": 2, "ok": 1}]
    about = {"step": 2, "origin": "boundary", "task": SEED.id, "signal": "1 of 2 solved"}
    Log(folder / "expeditions.jsonl").append(
        [
            {**about, "expedition": 3, "context": context, "runs": runs, "failures": ["run 1: lost"], "error": ""},
            {**about, "expedition": 4, "context": None, "runs": [], "failures": [], "error": "refused: no"},
        ]
    )
    accepted = {"status": "accepted", "evidence": ["runs: 2 actions"], "difficulty": 0.5, "quarantine": ""}
    unsafe = {"status": "discarded", "evidence": ["set aside"], "difficulty": None, "quarantine": "destructive"}
    child = {name: value for name, value in to_json(CHILD).items() if name in REFUSED}
    where = {"step": 2, "expedition": 3, "origin": "boundary", "signal": "1 of 2 solved", "parent": SEED.id}
    Log(folder / "drafts.jsonl").append(
        [
            {"step": 0, "expedition": 0, "origin": "unguided", "draft": REFUSED, "verdict": unsafe, "task": ""},
            {**where, "draft": {**REFUSED, "query": f"{ATTACK}\x1b[31m"}, "verdict": unsafe, "task": ""},
            {**where, "draft": child, "verdict": accepted, "task": CHILD.id},
            {**where, "draft": REFUSED, "verdict": unsafe, "task": ""},
        ]
    )
    Episodes(folder / "episodes").write(1, [episode(1, SEED, 1, 0.0, ["boundary"])])
    journal = Journal(folder / "journal.jsonl")
    for number, call in enumerate(CALLS):
        journal.add(f"{number:032x}", call)
    return folder


def exchanges_of(journal: Path, key: tuple[int, int] | str) -> list[dict[str, Any]]:
    return read_exchanges(journal, find_places(journal).get(key, ()))


def test_the_exchanges_of_an_expedition_come_in_the_order_of_its_parts(run: Path) -> None:
    found = exchanges_of(run / "journal.jsonl", (2, 3))
    assert [(one["place"], one["text"], one["shared"]) for one in found] == [
        ("reflect", CALLS[2]["text"], 0),
        ("run 0/turn 1", "move", 0),
        ("run 0/turn 2", "stay", 2),
        ("run 1/turn 1", "left", 0),
        ("run 10/turn 1", "late", 2),
        ("abstract", "not json", 0),
        ("abstract/repair", "\x1b[2Jdrafts\u202e", 2),
    ]
    # Word for word, whatever stands in it.
    assert found[0]["messages"] == [("system", "REFLECT"), ("user", f"evidence {ATTACK}")]
    assert found[2]["messages"] == [("system", "SYSTEM"), ("user", LONG), ("assistant", "move"), ("user", "moved")]
    assert found[1]["settings"] == {"model": "m", "temperature": 0.7}


def test_a_validation_is_found_by_the_task(run: Path) -> None:
    found = exchanges_of(run / "journal.jsonl", CHILD.id)
    assert [(one["place"], one["text"]) for one in found] == [
        ("judge", '{"consistent": true}'),
        ("attempt 0/turn 1", "done"),
        ("attempt 1/turn 1", None),
    ]
    assert found[2]["facts"]["kind"] == "timeout"
    assert [one["messages"][1][1] for one in exchanges_of(run / "journal.jsonl", (0, 3))] == ["survey of D_0"]


def test_damaged_and_foreign_lines_are_passed_over(run: Path) -> None:
    path = run / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:90] + b'"' + lines[3][91:]
    place = b'{"place":"0/1/3/reflect"'
    strange = [place + b"}\n", place + b',"sent":{"messages":[1]}}\n', place + b"\n", b"\xff\n", b"[]\n"]
    path.write_bytes(b"".join([*lines, *strange, lines[2][:-20]]))
    places = [one["place"] for one in exchanges_of(path, (2, 3))]
    assert places == ["reflect", "run 0/turn 2", "run 1/turn 1", "run 10/turn 1", "abstract", "abstract/repair"]
    assert not exchanges_of(path, (9, 9))
    assert not find_places(run / "nowhere.jsonl")


def test_a_number_of_too_many_digits_is_no_place(tmp_path: Path) -> None:
    digits = "1" * 5_000
    Log(journal := tmp_path / "journal.jsonl").append(
        [record(f"initial/{digits}/reflect"), record(f"{digits}/1/reflect"), record(f"0/1/2/run {digits}/turn 1")]
    )
    assert list(exchanges_of(journal, (2, 1))) == []
    assert [kinds.step_of(f"{number}-a-0") for number in ("²", digits, "x", "12")] == [0, 0, 0, 12]


def test_the_history_of_a_task_names_its_expedition_and_its_difficulty(run: Path) -> None:
    story = read_lineage(run, CHILD.id)
    assert (story.expedition, story.difficulty) == ((2, 3), 0.5)
    assert (read_lineage(run, SEED.id).expedition, read_lineage(run, SEED.id).difficulty) == (None, None)


def test_the_page_holds_each_text_once_and_as_it_was(run: Path) -> None:
    data = data_of(write_report(run).read_text())
    held = data["exchanges"]
    (task,) = data["tasks"]
    assert task["expedition"] == "2/3"
    assert task["explored"]["context"]["summary"] == f"it failed {ATTACK}"
    assert set(held["expeditions"]) == {"2/3"}
    reflect, first, second, *_ = held["expeditions"]["2/3"]
    assert [held["texts"][text] for _, text in reflect["messages"]] == ["REFLECT", f"evidence {ATTACK}"]
    assert [held["texts"][text] for _, text in second["messages"]] == ["move", "moved"]
    assert second["shared"] == 2
    cut = held["texts"][first["messages"][1][1]]
    assert (
        cut == f"{LONG[: exchanges.MAX_TEXT_CHARACTERS]} … "
        f"[{len(LONG) - exchanges.MAX_TEXT_CHARACTERS:,} characters more]"
    )
    assert len(held["texts"]) == len(set(held["texts"]))
    assert [row["text"] is None for row in held["tasks"][CHILD.id]] == [False, False, True]
    assert "kind timeout · reason no reply" in held["tasks"][CHILD.id][2]["about"]


def test_the_page_has_a_bound_and_holds_what_fits_evenly(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stories = build_contents(read_run(run))["tasks"]
    assert len(stories) == 1
    monkeypatch.setattr(exchanges, "MAX_CHARACTERS", 0)
    data = build_contents(read_run(run))["exchanges"]
    assert data == {"texts": [], "expeditions": {}, "tasks": {}}
    order = exchanges._spread_evenly(list(range(8)))  # type: ignore[arg-type]
    assert order == [0, 4, 2, 6, 1, 5, 3, 7]


def test_quality_of_the_task_set_over_evolutions(run: Path) -> None:
    found = build_quality_curves(read_run(run))
    assert found["step"] == [0, 2]
    assert found["pool"] == {
        "sr_at_k": [None, 0.5], "ed_rel": [None, 0.02], "similarity": [0.6, 0.4], "turns": [1.0, 2.0],
    }  # fmt: skip
    assert found["synthesized"]["similarity"] == [None, 0.4]
    assert found["histogram"]["initial"][12] == 1
    assert found["greatest"] == {"initial": 0.6, "synthesized": 0.4}
    assert (found["k"], found["embedding"]) == (5, "local")
    Log(run / "metrics.jsonl").truncate(0)
    assert build_quality_curves(read_run(run)) == {}


def test_what_feedback_brings_and_costs(run: Path) -> None:
    read = read_run(run)
    assert measure_feedback(read) == {"step": [1, 2], "share": [0.125, 0.25]}
    assert count_lengths(read) == {
        "actions": ["1", "2"],
        "counts": {"initial": [1, 0], "synthesized": [0, 1]},
        "mean": {"initial": 1.0, "synthesized": 2.0},
    }
    found = build_conversion(read)
    assert found["funnel"] == [
        {"origin": "boundary", "signals": 4, "expeditions": 2, "fruitful": 1, "drafts": 3, "tasks": 1},
        {"origin": "rare", "signals": 3, "expeditions": 0, "fruitful": 0, "drafts": 0, "tasks": 0},
    ]
    assert (found["step"], found["pass_rate"], found["fruitful"]) == ([2], [1 / 3], [0.5])


def test_a_task_is_printed_with_all_that_was_sent_and_received(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), f"--task={CHILD.id[:6]}"]) == 0
    said = capsys.readouterr().out
    for line in (
        "difficulty 50 % of the attempts on the query alone failed",
        "context    kind: boundary",
        f"           summary: it failed {ATTACK}",
        "run 0      1 of 2 actions worked",
        "failure    run 1: lost",
        "exploration: 7 calls to a model",
        "validation: 3 calls to a model",
        f"sent, user:\n  evidence {ATTACK}",
        "sent: the 2 messages of the call before, word for word, then\nsent, assistant:\n  move",
        "received:\n  stay",
        "received:\nnothing",
        "received:\n  \\x1b[2Jdrafts\\u202e",
    ):
        assert line in said, line
    assert LONG in said
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_a_draft_that_became_no_task_can_be_looked_up(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run), "--draft=2"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line[:11].strip() for line in listed] == ["2/0", "2/1", "2/2"]
    assert listed[1].endswith(f"accepted, boundary: {CHILD.query}")
    assert main([str(run), "--draft=2/2"]) == 0
    said = capsys.readouterr().out
    for line in (
        "draft      2/2  wipe it all",
        "set aside  destructive",
        "exploration: 7 calls to a model",
        "validation: 1 call to a model",
        'received:\n  {"safe": false}',
    ):
        assert line in said, line
    assert main([str(run), "--draft=7"]) == 2
    assert "draft '7' not found; give STEP or STEP/NUMBER. Steps with drafts in" in capsys.readouterr().err


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert plain("é 明\t\n\x1b]0;x\x07\x9b\u2066\u200b\ud800") == "é 明\t\n\\x1b]0;x\\x07\\x9b\\u2066\\u200b\\ud800"


def test_a_run_without_journal_and_expeditions_is_printed_as_before(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("journal.jsonl", "expeditions.jsonl"):
        (run / name).unlink()
    lines = list(Log(run / "drafts.jsonl").read())
    old = [{name: value for name, value in line.items() if name not in ("expedition", "task")} for line in lines]
    Log(run / "drafts.jsonl").truncate(0)
    Log(run / "drafts.jsonl").append(old)
    assert main([str(run), f"--task={CHILD.id}"]) == 0
    assert "to a model" not in capsys.readouterr().out
    data = data_of(write_report(run).read_text())
    assert (data["tasks"][0]["expedition"], data["tasks"][0]["explored"]) == ("", None)
    assert data["exchanges"] == {"texts": [], "expeditions": {}, "tasks": {}}
    assert main([str(run), "--draft=2/2"]) == 0


@needs_node
def test_the_script_draws_every_chart_and_opens_every_exchange(run: Path, tmp_path: Path) -> None:
    page = write_report(run).read_text()
    shown = drawn(page, data_of(page), tmp_path)
    for text in (
        "Diversity: SR@5",
        "25.0 %",  # of the wall time
        "From signal to task",
        "initial tasks 1.0, synthesized tasks 2.0",
        "difficulty 50 %",
        f"evidence {ATTACK}",
        "sent: the 2 messages of the exchange before, then",
        "received",
        "run 0: 1 of 2 actions worked",
    ):
        assert text in shown, text
    assert GRANDCHILD.id not in shown

"""What tasks were worth by origin, and held-out success by tool: literal figures of runs written by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_report import CHILD, GRANDCHILD, SEED, data_of, episode, metrics, run  # noqa: F401

from cojax.pool import make_task_record
from cojax.report.lineage import TaskVisit
from cojax.report.origins import (
    average_norms,
    build_gains,
    build_worth,
    correlate_ranks,
    count_attempted,
    count_explored,
    count_groups,
    count_probed,
    first_solved,
    pair_predictions,
)
from cojax.report.page import build_contents, write_report
from cojax.report.run import read_run
from cojax.storage.episodes import Episodes
from cojax.storage.files import Log, write_json
from cojax.types import Action, Call, Lineage, Task

FINISH = Action(calls=(Call("finish"),))


def row_of(found: dict[str, Any], origin: str) -> dict[str, Any]:
    (row,) = [row for row in found["rows"] if row["origin"] == origin]
    return row


def test_groups_costs_and_norms_are_summed_by_origin() -> None:
    rows: list[dict[str, Any]] = [
        {"grad_norm": 2.0, "origins": {"rare": {"groups": 4, "live": 1}, "seed": {"groups": 2, "live": 0}}},
        {"grad_norm": None, "origins": {"rare": {"groups": 1, "live": 1}}},
        {"evolution": {"probe": {"origins": {"rare": {"candidates": 2, "episodes": 8, "turns": 19}}}}},
        {"grad_norm": 4.0, "origins": {"rare": {"groups": 4, "live": 3}}, "evolution": {"drafts": 0}},
    ]
    assert count_groups(rows) == {"rare": {"groups": 9, "live": 5}, "seed": {"groups": 2, "live": 0}}
    # The live groups weight the steps: (2 · 1 + 4 · 3) / 4.
    assert average_norms(rows) == {"rare": 3.5}
    assert count_probed(rows) == {"rare": {"episodes": 8, "actions": 19}}
    assert count_probed([*rows, {"evolution": {"probe": {"episodes": 8, "turns": 9}}}]) is None
    runs = [{"run": 0, "actions": 9, "ok": 8}, {"run": 2, "actions": 5, "ok": 5}]
    expeditions = [{"origin": "rare", "runs": runs}, {"origin": "rare", "runs": runs[:1]}, {"origin": "seed"}]
    assert count_explored(expeditions) == {
        "rare": {"episodes": 3, "actions": 23},
        "seed": {"episodes": 0, "actions": 0},
    }
    lines = ("runs", "solved without hints: 1 of 3 attempts on the query alone")
    none = ("said: solved without hints: 1 of 9 attempts on the query alone",)
    drafts = [{"origin": name, "verdict": {"evidence": said}} for name, said in (("rare", lines), ("seed", none))]
    assert count_attempted(drafts) == {"rare": {"episodes": 3}}


def test_the_first_task_to_solve_a_tool_earns_it_for_its_origin() -> None:
    def seen(*visits: tuple[int, int]) -> list[TaskVisit]:
        return [TaskVisit(step, 4, successes, successes / 4) for step, successes in visits]

    assert first_solved(
        [
            ("seed", ("a", "b"), seen((1, 0), (5, 1))),
            ("rare", ("b", "c"), seen((3, 2), (4, 4))),
            ("boundary", ("c",), seen((3, 1))),
            ("uniform", ("d",), seen((2, 0))),
            ("uniform", ("a",), ()),
        ]
    ) == {"boundary": ["c"], "rare": ["b", "c"], "seed": ["a"]}


def test_rank_correlation_by_hand() -> None:
    rising = [(0.1, 0.0), (0.2, 0.25), (0.5, 0.5), (0.6, 0.75), (0.9, 1.0)]
    assert correlate_ranks(rising)["rho"] == pytest.approx(1.0)
    assert correlate_ranks([(p, 1 - s) for p, s in rising])["rho"] == pytest.approx(-1.0)
    # Ranks 1 to 5 against 2 1 4 3 5: 1 − 6 · 4 / (5 · 24).
    found = correlate_ranks([(0.1, 0.2), (0.2, 0.1), (0.3, 0.4), (0.4, 0.3), (0.5, 0.9)])
    assert (found["rho"], found["pairs"], found["why"]) == (pytest.approx(0.8), 5, "")
    # Ties have the mean rank: 1.5 1.5 3.5 3.5 5 against 1 2 3 4 5 is 9 / √(9 · 10).
    tied = correlate_ranks([(0.1, 0.1), (0.1, 0.2), (0.3, 0.3), (0.3, 0.4), (0.5, 0.5)])
    assert tied["rho"] == pytest.approx(9 / 90**0.5)


def test_a_rank_correlation_is_not_made_up() -> None:
    four = correlate_ranks([(0.1, 0.0), (0.2, 0.25), (0.5, 0.5), (0.6, 0.75)])
    assert (four["rho"], four["pairs"]) == (None, 4)
    assert four["why"] == "4 tasks with a prediction and a known first visit; 5 are needed"
    assert correlate_ranks([(0.1, 0.0)])["why"].startswith("1 task with")
    assert correlate_ranks([])["rho"] is None
    assert correlate_ranks([(0.5, x / 9) for x in range(9)])["why"] == "the predicted success of all 9 tasks is 0.50"
    assert correlate_ranks([(x / 9, 0.0) for x in range(9)])["why"] == "the realised success of all 9 tasks is 0.00"


def test_drafts_pair_what_was_predicted_with_the_first_visit() -> None:
    drafts: list[dict[str, Any]] = [
        {"origin": "rare", "task": "a", "predicted": {"beliefs": 0.25, "probe": None}},
        {"origin": "rare", "task": "b", "predicted": {"beliefs": 0.0, "probe": 0.5}},
        {"origin": "rare", "task": "", "predicted": {"beliefs": 0.5, "probe": 0.5}},
        {"origin": "rare", "task": "unseen", "predicted": {"beliefs": 0.5, "probe": 0.5}},
        {"origin": "seed", "task": "b"},  # an older record
    ]
    realised = {"a": 0.0, "b": 1.0}.get
    assert pair_predictions(drafts, "beliefs", realised) == {"rare": [(0.25, 0.0), (0.0, 1.0)]}
    assert pair_predictions(drafts, "probe", realised) == {"rare": [(0.5, 1.0)]}


def grown(folder: Path, predicted: bool = True, first: int = 1) -> Path:
    """Six tasks from rare signals after step 2, of which task n of 0 to 5 is solved in n of 5 episodes at step 3."""
    write_json(folder / "config.json", {"config": {"explorer": {"ending": "finish"}}})
    tasks = [
        Task("desk", f"task {n}", {}, (Action(calls=(Call(f"tool_{n % 3}"),)), FINISH), "rare", Lineage(step=2))
        for n in range(6)
    ]
    other = {"origins": {"rare": {"groups": 6, "live": 4}}, "grad_norm": 0.5}
    Log(folder / "metrics.jsonl").append([metrics(1), metrics(2), metrics(3, **other)])
    Log(folder / "tasks.jsonl").append(make_task_record(task) for task in (SEED, *tasks))
    verdict = {"status": "accepted", "evidence": ["runs"]}
    Log(folder / "drafts.jsonl").append(
        {"step": 2, "origin": "rare", "draft": {"query": task.query}, "verdict": verdict, "task": task.id}
        | ({"predicted": {"beliefs": 0.1 + n / 10, "probe": 1 - n / 5}} if predicted else {})
        for n, task in enumerate(tasks)
    )
    played = Episodes(folder / "episodes")
    for step in range(first, 3):
        played.write(step, [episode(step, SEED, 0, 1.0, [])])
    played.write(3, [episode(3, task, k, float(k < n), []) for n, task in enumerate(tasks) for k in range(5)])
    played.write(4, [episode(4, task, 0, 1.0, []) for task in tasks])
    return folder


def test_the_report_says_what_each_origin_was_worth(tmp_path: Path) -> None:
    found = build_contents(read_run(grown(tmp_path / "run")))["worth"]
    row = row_of(found, "rare")
    assert (row["tasks"], row["groups"], row["live"], row["norm"]) == (6, 6, 4, 0.5)
    # Task 0 is not solved at its first visit; tool_0 is first solved by task 3, in the same step.
    assert row["solved"] == ["tool_0", "tool_1", "tool_2"]
    assert row_of(found, "unguided") | {"ranks": {}} == {
        "origin": "unguided", "tasks": 1, "groups": None, "live": None, "solved": [], "explored": [0, 0],
        "probed": [0, 0], "attempted": 0, "norm": None, "ranks": {},
    }  # fmt: skip
    # Only the first visit counts, not step 4, where all are solved.
    assert row["ranks"]["beliefs"] == {"rho": pytest.approx(1.0), "pairs": 6, "why": ""}
    assert row["ranks"]["probe"]["rho"] == pytest.approx(-1.0)
    assert found["ranks"]["beliefs"]["pairs"] == 6
    assert found["notes"] == []


def test_records_of_an_older_version_have_no_rank_correlation(tmp_path: Path) -> None:
    found = build_contents(read_run(grown(tmp_path / "run", predicted=False)))["worth"]
    assert row_of(found, "rare")["ranks"]["beliefs"]["rho"] is None
    assert found["notes"] == [
        "No draft has a success predicted by beliefs.",
        "No draft has a success predicted by a probe.",
    ]


def test_a_first_visit_that_is_no_longer_stored_is_not_known(tmp_path: Path) -> None:
    folder = grown(tmp_path / "run")
    for step in (1, 2):
        Episodes(folder / "episodes").path(step).unlink()
    # The tasks joined after step 2: their first visits are stored, but not those of D_0.
    found = build_contents(read_run(folder))["worth"]
    assert row_of(found, "rare")["ranks"]["beliefs"]["pairs"] == 6
    assert row_of(found, "rare")["solved"] is None
    note = "Tools first solved are not known: the episodes of steps before 3 are not stored (episodes_kept)."
    assert found["notes"] == [note]
    Episodes(folder / "episodes").path(3).unlink()
    found = build_contents(read_run(folder))["worth"]
    assert row_of(found, "rare")["ranks"]["beliefs"]["pairs"] == 0
    assert found["notes"][1] == (
        "No rank correlation for beliefs: 0 tasks with a prediction and a known first visit; 5 are needed."
    )


def test_too_few_pairs_are_told(run: Path) -> None:  # noqa: F811
    verdict = {"status": "accepted", "evidence": []}
    Log(run / "drafts.jsonl").append(
        [{"step": 2, "origin": "boundary", "draft": {"query": "x"}, "verdict": verdict, "task": CHILD.id,
          "predicted": {"beliefs": 0.5, "probe": None}}]
    )  # fmt: skip
    found = build_contents(read_run(run))["worth"]
    assert row_of(found, "boundary")["ranks"]["beliefs"]["pairs"] == 1
    assert found["notes"] == [
        "Groups by origin are not known: an older version made this run.",
        "No rank correlation for beliefs: 1 task with a prediction and a known first visit; 5 are needed.",
        "No draft has a success predicted by a probe.",
    ]
    assert row_of(found, "rare")["tasks"] == 1
    assert GRANDCHILD.origin == "rare"


def test_torn_lines_and_a_run_that_only_began_have_a_card_or_none(tmp_path: Path) -> None:
    folder = grown(tmp_path / "run")
    for name in ("drafts.jsonl", "metrics.jsonl", "tasks.jsonl"):
        with open(folder / name, "a") as file:
            file.write('{"step": 3, "origin": "ra')
    assert row_of(data_of(write_report(folder).read_text())["worth"], "rare")["ranks"]["beliefs"]["pairs"] == 6
    shutil.rmtree(folder / "episodes")
    assert row_of(data_of(write_report(folder).read_text())["worth"], "rare")["solved"] is None
    write_json(tmp_path / "new" / "config.json", {"config": {}})
    new = read_run(tmp_path / "new")
    assert build_worth(new, ())["rows"] == build_worth(new, ())["notes"] == build_gains(new)["rows"] == []


def test_the_gain_by_tool_is_of_tools_that_both_evaluations_know(tmp_path: Path) -> None:
    folder = grown(tmp_path / "run")
    tool = {"success": 0.25, "tasks": 8}
    write_json(folder / "zero_shot.json", {"success": 0.25, "by_tool": {"tool_0": tool, "gone": tool}, "by": {"x": 0}})
    assert build_gains(read_run(folder)) == {"of": "kind", "rows": []}
    write_json(folder / "final.json", {"success": 1.0, "by_tool": {"tool_0": {"success": 1.0, "tasks": 8}}})
    assert build_gains(read_run(folder)) == {
        "of": "tool",
        "rows": [{"name": "tool_0", "first": 0.25, "last": 1.0, "gain": 0.75, "tasks": 8, "added": 2}],
    }


def test_without_success_by_tool_the_kinds_of_evaluation_by_are_shown(tmp_path: Path) -> None:
    folder = grown(tmp_path / "run")
    Log(folder / "metrics.jsonl").append([metrics(4, dev={"success": 0.2, "success/long": 0.25})])
    assert build_gains(read_run(folder))["rows"] == []
    Log(folder / "metrics.jsonl").append([metrics(5, dev={"success": 0.2, "success/long": 0.5, "success/new": 1.0})])
    row = {"name": "long", "first": 0.25, "last": 0.5, "gain": 0.25, "tasks": None, "added": None}
    assert build_gains(read_run(folder)) == {"of": "kind, development split", "rows": [row]}
    for name, share in (("zero_shot", 0.0), ("final", 0.75)):
        write_json(folder / f"{name}.json", {"success": share, "by": {"long": share}})
    config = json.loads((folder / "config.json").read_text())
    config["config"]["evaluation"] = {"by": "classes"}
    write_json(folder / "config.json", config)
    assert build_gains(read_run(folder)) == {
        "of": "classes",
        "rows": [row | {"first": 0.0, "last": 0.75, "gain": 0.75}],
    }

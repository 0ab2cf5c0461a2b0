"""The part of the report that shows evaluation tasks before training and after it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from page_text import drawn, needs_node

from cojax.report.episodes import MAX_BYTES, pair_up
from cojax.report.page import write_report
from cojax.report.run import read_run
from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES
from cojax.storage.files import StorageError, write_json
from cojax.storage.run_files import RunFiles
from cojax.types import Action, Call, Message, Observation, Task, Trajectory, Turn

ATTACK = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\"><!--"
CONFIG = {"config": {"environment": "desk", "steps": 5, "evaluation": {"temperature": 0.0}}}


def episode(name: str, said: str, reward: float, tokens: int = 2) -> Trajectory:
    turn = Turn(
        Action(said, (Call("mail", {"to": name}),)),
        Observation((Message("tool", f"sent {said}"),)),
        (1, 2, 3),
        (4,) * tokens,
        (-0.5,) * tokens,
        routes="AAAA",
        engine_seconds=1.5,
    )
    task = Task("desk", f"mail {name}", {"box": name})
    return Trajectory(task, f"eval-{task.id}-0", (Message("user", task.query),), (turn,), reward)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files = RunFiles(tmp_path)
    write_json(tmp_path / "config.json", CONFIG)
    files.add_evaluation(
        "zero_shot", {"success": 0.0}, [episode(name, f"no idea {ATTACK}", 0.0) for name in ("ana", "bo", "cy")]
    )
    files.add_evaluation("final", {"success": 0.5}, [episode("bo", "right away", 1.0), episode("ana", ATTACK, 0.25)])
    return tmp_path


def data_of(folder: Path) -> tuple[str, dict]:
    page = write_report(folder).read_text()
    (block,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return page, json.loads(block)


def test_tasks_of_both_evaluations_stand_side_by_side(run: Path) -> None:
    _, data = data_of(run)
    shown = [(pair["before"]["query"], pair["before"]["reward"], pair["after"]["reward"]) for pair in data["pairs"]]
    assert shown == [("mail ana", 0.0, 0.25), ("mail bo", 0.0, 1.0)]
    before, after = (data["pairs"][1][name]["turns"][0] for name in ("before", "after"))
    assert (before["text"], after["text"]) == (f"no idea {ATTACK}", "right away")
    assert after["messages"] == [["tool", "sent right away"]]


def test_hostile_episodes_stay_text(run: Path) -> None:
    page, _ = data_of(run)
    assert (page.count("<script"), page.count("<img")) == (2, 0)


def test_stored_episodes_have_no_times_so_that_equal_runs_store_the_same(run: Path) -> None:
    (turn,) = read_run(run).after[0]["turns"]
    assert (turn["engine_seconds"], turn["routes"], turn["action_tokens"]) == (0.0, "", [4, 4])


def test_many_long_episodes_are_left_out_evenly(run: Path) -> None:
    long = [episode(str(number), "x" * 1_400, 0.0, tokens=2_000) for number in range(120)]
    files = RunFiles(run)
    files.add_evaluation("zero_shot", {"success": 0.0}, long)
    files.add_evaluation("final", {"success": 0.0}, long)
    kept = pair_up(read_run(run))
    assert len(json.dumps(kept)) <= MAX_BYTES + 2 * len(kept)
    numbers = [int(pair["before"]["query"].split()[1]) for pair in kept]
    assert 20 < len(kept) < 120
    assert (min(numbers) < 12, max(numbers) > 108) == (True, True)


@pytest.mark.parametrize("missing", [ZERO_SHOT_EPISODES, FINAL_EPISODES])
def test_a_run_that_stored_one_evaluation_only_has_no_pairs(run: Path, missing: str) -> None:
    (run / missing).unlink()
    assert data_of(run)[1]["pairs"] == []


def test_damaged_episodes_are_named(run: Path) -> None:
    (run / FINAL_EPISODES).write_bytes(b"no gzip")
    with pytest.raises(StorageError, match=f"{FINAL_EPISODES} cannot be read: .*Restore it from a copy"):
        write_report(run)


@needs_node
def test_the_script_draws_the_first_pair_and_lists_all(run: Path, tmp_path: Path) -> None:
    page, data = data_of(run)
    shown = drawn(page, data, tmp_path)
    part = shown.partition("Tasks of the evaluation")[2]
    assert "at temperature 0 (greedy)" in part
    assert "reward 0  →  solved" in part
    before, after = part.split("before training")[2].split("after training")
    assert f"sent no idea {ATTACK}" in before
    assert f"sent {ATTACK}" in after

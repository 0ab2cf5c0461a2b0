"""The tiny data in the real package: what succeeds, and what must not."""

import dataclasses
import filecmp
import functools
import json
import os
import subprocess
from pathlib import Path

import pytest

from environments.appworld import data
from environments.worker.venv import interpreter

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
TASKS = 42


@dataclasses.dataclass(frozen=True)
class Worlds:
    """A root of its own to play in, on the installed data."""

    root: Path

    def play(self, plays: list[dict], *more: str) -> dict:
        command = [interpreter("appworld", data.RECIPE), str(HERE / "tiny_worlds.py"), str(self.root), *more]
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "TZ": "Asia/Kolkata"}
        done = subprocess.run(
            command, input=json.dumps(plays), capture_output=True, text=True, timeout=600, env=environment
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        return json.loads(done.stdout[done.stdout.index('{"plays"') :])


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    data.provide("tiny", interpreter("appworld", data.RECIPE), print)
    root = tmp_path_factory.mktemp("worlds")
    (root / "data").symlink_to(data.root("tiny") / "data")
    return Worlds(root)


@functools.cache
def solutions() -> dict[str, tuple[str, ...]]:
    return {task: data.solution("tiny", task) for split in data.SPLITS for task in data.tasks("tiny", split)}


def kept(tasks: dict[str, tuple[str, ...]]) -> list[dict]:
    return [{"task": task, "blocks": blocks} for task, blocks in tasks.items()]


def test_solutions_succeed_and_the_benchmark_says_so(worlds: Worlds) -> None:
    seen = worlds.play(kept(solutions()), "metrics")
    assert [one["success"] for one in seen["plays"]] == [True] * TASKS
    assert all(one["requirements"] >= 3 for one in seen["plays"])
    all_of_it = {"task_goal_completion": 100.0, "scenario_goal_completion": 100.0}
    assert seen["metrics"] == {split: all_of_it for split in data.SPLITS}


def test_one_failure_of_a_scenario_costs_it_all(worlds: Worlds) -> None:
    blocks = dict(solutions())
    failing = data.tasks("tiny", "test_challenge")[0]
    blocks[failing] = ("apis.supervisor.complete_task()",)
    metrics = worlds.play(kept(blocks), "metrics")["metrics"]["test_challenge"]
    assert metrics == {"task_goal_completion": 88.9, "scenario_goal_completion": 66.7}


def test_doing_nothing_fails(worlds: Worlds) -> None:
    nothing = dict.fromkeys(solutions(), ("print('done')",))
    completed = dict.fromkeys(solutions(), ("apis.supervisor.complete_task()",))
    for blocks in (nothing, completed):
        seen = worlds.play(kept(blocks))["plays"]
        assert [one["success"] for one in seen] == [False] * TASKS
        # What is tested is tested by changes and answers: little is met by nothing.
        assert sum(one["passes"] for one in seen) < sum(one["requirements"] for one in seen) / 3


def test_a_solution_without_one_of_its_changes_fails(worlds: Worlds) -> None:
    """Every call that is not a look-up is dropped in turn: of one task a scenario."""
    tasks = {task: blocks for task, blocks in solutions().items() if task.endswith("_2")}
    calls = [len(one["effective"]) for one in worlds.play(kept(tasks))["plays"]]
    assert min(calls) >= 2
    drops = [
        {"task": task, "blocks": blocks, "drop": drop}
        for (task, blocks), count in zip(tasks.items(), calls, strict=True)
        for drop in range(count)
    ]
    assert len(drops) > 60
    let_through = [
        (drop["task"], one["effective"][drop["drop"]])
        for drop, one in zip(drops, worlds.play(drops)["plays"], strict=True)
        if one["success"]
    ]
    assert let_through == []


@pytest.mark.parametrize(
    ("scenario", "right", "wrong"),
    [
        ("pay_or_text", "balance > ", "balance <= "),
        ("trim_playlist", "seconds > ", "seconds <= "),
        ("answer_requests", 'request["amount"] <= ', 'request["amount"] > '),
        ("settle_up", 'line.startswith("I owe")', 'not line.startswith("I owe")'),
        ("note_to_tasks", '"high" if', '"low" if not'),
        ("shift_alarms", 'if alarm["enabled"]', ""),
        ("postpone", "is_completed=False, ", ""),
        ("unfollow_artists", "0) <= ", "0) < "),
        ("total_received", "min_created_at=", "max_created_at="),
        ("split_bill", "(len(group) + 1)", "len(group)"),
        ("songs_from_text", '["song_id"] not in', '["song_id"] in'),
        ("greet_older", "[:4]) < ", "[:4]) >= "),
        ("most_played", 'song["play_count"]', 'song["rating"]'),
        ("like_genre", 'song["genre"] == ', 'song["genre"] != '),
    ],
)
def test_the_wrong_condition_fails(worlds: Worlds, scenario: str, right: str, wrong: str) -> None:
    from environments.appworld.tiny.scenarios import SCENARIOS

    number = next(one.id for one in SCENARIOS if one.name == scenario)
    tasks = {task: blocks for task, blocks in solutions().items() if task.startswith(number)}
    assert all(any(right in block for block in blocks) for blocks in tasks.values())
    mistaken = {task: tuple(block.replace(right, wrong) for block in blocks) for task, blocks in tasks.items()}
    assert [one["success"] for one in worlds.play(kept(mistaken))["plays"]] == [False] * 3


def test_the_tasks_of_a_scenario_differ() -> None:
    specs = {task: data.specs("tiny", task) for task in solutions()}
    assert len({spec["instruction"] + spec["supervisor"]["email"] for spec in specs.values()}) == TASKS
    assert len({spec["supervisor"]["email"] for spec in specs.values()}) == 5


def test_a_root_built_again_is_the_same(tmp_path: Path) -> None:
    again = subprocess.run(
        [interpreter("appworld", data.RECIPE), "-m", "environments.appworld.tiny", str(tmp_path)],
        cwd=HERE.parents[2],
        env={**os.environ, "TZ": "America/New_York", "PYTHONHASHSEED": "7"},
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr[-2_000:]
    here, there = ({path.relative_to(root): path for path in root.rglob("*")} for root in _roots(tmp_path))
    assert here.keys() == there.keys()
    differing = [name for name, path in here.items() if path.is_file() and not filecmp.cmp(path, there[name], False)]
    assert differing == []


def _roots(built: Path) -> tuple[Path, Path]:
    return data.root("tiny") / "data", built / "data"

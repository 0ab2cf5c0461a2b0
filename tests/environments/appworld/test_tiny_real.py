"""The tiny data in the real package: what succeeds, and what must not."""

import filecmp
import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import patience

from environments.appworld import data
from environments.appworld.tiny.scenarios import SCENARIOS
from environments.worker.venv import interpreter

pytestmark = pytest.mark.real

HERE = Path(__file__).parent
TASKS = 42
# Of each scenario's solution, a condition or figure that matters, and a wrong one in its place.
MISTAKES = {
    "pay_or_text": ("balance > ", "balance <= "),
    "trim_playlist": ("seconds > ", "seconds <= "),
    "answer_requests": ('request["amount"] <= ', 'request["amount"] > '),
    "settle_up": ('line.startswith("I owe")', 'not line.startswith("I owe")'),
    "note_to_tasks": ('"high" if', '"low" if not'),
    "shift_alarms": ('if alarm["enabled"]', ""),
    "postpone": ("is_completed=False, ", ""),
    "unfollow_artists": ("0) <= ", "0) > "),
    "total_received": ("min_created_at=", "max_created_at="),
    "split_bill": ("(len(group) + 1)", "len(group)"),
    "songs_from_text": ('["song_id"] not in', '["song_id"] in'),
    "greet_older": ("[:4]) < ", "[:4]) >= "),
    "most_played": ('song["play_count"]', 'song["rating"]'),
    "like_genre": ('song["genre"] == ', 'song["genre"] != '),
}
COMPLETED = ("apis.supervisor.complete_task()",)

Play = dict


@functools.cache
def solutions() -> dict[str, tuple[str, ...]]:
    return {
        task: data.read_solution("tiny", task) for split in data.SPLITS for task in data.read_task_ids("tiny", split)
    }


def plays(blocks: dict[str, tuple[str, ...]]) -> list[Play]:
    return [{"task": task, "blocks": each} for task, each in blocks.items()]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Play]], dict]:
    """What tiny_worlds.py answers to plays, in a root of their own on the installed data."""
    python = interpreter("appworld", data.RECIPE)
    data.provide("tiny", python, print)
    root = tmp_path_factory.mktemp("worlds")
    (root / "data").symlink_to(data.find_root("tiny") / "data")

    def play(asked: list[Play]) -> dict:
        done = subprocess.run(
            [python, str(HERE / "tiny_worlds.py"), str(root), "metrics"],
            input=json.dumps(asked),
            env={**os.environ, "PYTHONPATH": str(HERE.parents[2]), "TZ": "Asia/Kolkata"},
            capture_output=True,
            text=True,
            timeout=patience(900),
        )
        assert done.returncode == 0, done.stderr[-2_000:]
        return json.loads(done.stdout[done.stdout.index('{"plays"') :])

    return play


@pytest.fixture(scope="module")
def solved(play: Callable[[list[Play]], dict]) -> dict:
    return play(plays(solutions()))


@pytest.fixture(scope="module")
def failed(play: Callable[[list[Play]], dict], solved: dict) -> dict:
    """All that must fail, by kind, in one process of the package; and its figures for one failure among the last."""
    seconds = [task for task in solutions() if task.endswith("_2")]
    calls = {task: one["effective"] for task, one in zip(solutions(), solved["plays"], strict=True)}
    mistaken = {
        task: tuple(block.replace(*MISTAKES[scenario.name]) for block in solutions()[task])
        for scenario in SCENARIOS
        for task in (f"{scenario.id}_{number}" for number in (1, 2, 3))
    }
    assert all(mistaken[task] != blocks for task, blocks in solutions().items())
    last = {task: solutions()[task] for task in data.read_task_ids("tiny", "test_challenge")}
    kinds = {
        "nothing": plays(dict.fromkeys(solutions(), COMPLETED)),
        "mistaken": plays(mistaken),
        "dropped": [
            {"task": task, "blocks": solutions()[task], "drop": drop}
            for task in seconds
            for drop in range(len(calls[task]))
        ],
        "last": plays({task: COMPLETED if place == 0 else blocks for place, (task, blocks) in enumerate(last.items())}),
    }
    answer = play([one for kind in kinds.values() for one in kind])
    seen = iter(answer["plays"])
    return {kind: [(one, next(seen)) for one in asked] for kind, asked in kinds.items()} | {
        "metrics": answer["metrics"]
    }


def test_solutions_succeed_and_the_benchmark_says_so(solved: dict) -> None:
    assert [one["success"] for one in solved["plays"]] == [True] * TASKS
    assert min(one["requirements"] for one in solved["plays"]) == 3
    all_of_it = {"task_goal_completion": 100.0, "scenario_goal_completion": 100.0}
    assert solved["metrics"] == {split: all_of_it for split in data.SPLITS}


@pytest.mark.nightly
def test_one_failure_of_a_scenario_costs_it_all(failed: dict) -> None:
    metrics = failed["metrics"]["test_challenge"]
    assert metrics == {"task_goal_completion": 88.9, "scenario_goal_completion": 66.7}


@pytest.mark.nightly
def test_doing_nothing_fails_and_earns_little(failed: dict) -> None:
    seen = [one for _, one in failed["nothing"]]
    assert [one["success"] for one in seen] == [False] * TASKS
    assert sum(one["passes"] for one in seen) < sum(one["requirements"] for one in seen) / 3


@pytest.mark.nightly
def test_the_wrong_condition_fails(failed: dict) -> None:
    """For every task of a scenario; where both branches occur, the other branch."""
    succeeding = [asked["task"] for asked, one in failed["mistaken"] if one["success"]]
    assert succeeding == []
    assert len(failed["mistaken"]) == TASKS


@pytest.mark.nightly
def test_a_solution_without_one_of_its_changes_fails(failed: dict) -> None:
    """Every call that is no look-up is dropped in turn, of one task a scenario: logging in and completing too."""
    let_through = [
        (asked["task"], one["effective"][asked["drop"]]) for asked, one in failed["dropped"] if one["success"]
    ]
    assert let_through == []
    assert len(failed["dropped"]) > 60


def test_what_doing_nothing_meets_is_said(solved: dict) -> None:
    """The labels of the tests, as the package has them: no task is met by nothing."""
    for task in solutions():
        truth = data.find_root("tiny") / "data" / "tasks" / task / "ground_truth"
        labels = [test["label"] for test in json.loads((truth / "test_data.json").read_text())]
        assert labels.count("no_op_fail") >= 2
        assert labels.count("no_op_pass") <= 1


def test_the_tasks_of_a_scenario_differ(solved: dict) -> None:
    specs = [data.read_specs("tiny", task) for task in solutions()]
    assert len({spec["instruction"] + spec["supervisor"]["email"] for spec in specs}) == TASKS
    assert len({spec["supervisor"]["email"] for spec in specs}) == 5


@pytest.mark.nightly
def test_a_root_built_again_is_the_same(tmp_path: Path, solved: dict) -> None:
    again = subprocess.run(
        [interpreter("appworld", data.RECIPE), "-m", "environments.appworld.tiny", str(tmp_path)],
        cwd=HERE.parents[2],
        env={**os.environ, "TZ": "America/New_York", "PYTHONHASHSEED": "7"},
        timeout=patience(300),
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr[-2_000:]
    roots = (data.find_root("tiny") / "data", tmp_path / "data")
    here, there = ({path.relative_to(root): path for path in root.rglob("*")} for root in roots)
    assert here.keys() == there.keys()
    differing = [name for name, path in here.items() if path.is_file() and not filecmp.cmp(path, there[name], False)]
    assert differing == []

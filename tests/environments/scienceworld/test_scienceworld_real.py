"""ScienceWorld by the path that training uses: the official simulator plays and judges in a worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

import environments
from cojax.environment import play
from cojax.environment.replay import follow, replay
from cojax.types import Action, Call, canonical
from environments import check
from environments.scienceworld.limits import TASKS
from environments.soundness import GARBAGE
from environments.worker import IsolatedEnvironment

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def scienceworld() -> Iterator[IsolatedEnvironment]:
    environment = environments.load("scienceworld")
    assert isinstance(environment, IsolatedEnvironment)
    yield environment
    environment.close()


def act(command: str) -> Action:
    return Action(calls=(Call("act", {"command": command}),))


def test_splits_are_official_and_exploration_starts_in_variations_of_training(scienceworld) -> None:
    setups = {canonical(task.setup) for task in scienceworld.tasks("seed", 100_000)}
    for split in ("train", "dev", "test"):
        tasks = scienceworld.tasks(split, 1_000)
        assert {task.setup["task"] for task in tasks} <= set(TASKS)
        inside = {canonical(task.setup) for task in tasks} & setups
        assert len(inside) == (len(tasks) if split == "train" else 0)


def test_the_partial_reward_is_the_official_score_and_success_the_full_one(scienceworld) -> None:
    task = next(one for one in scienceworld.tasks("dev", 100) if one.setup["task"] == "find-living-thing")
    partial = []
    for done in range(len(task.solution) + 1):
        played = play(scienceworld, task, follow(task.solution), max_turns=done)
        partial.append(played.partial)
        assert played.reward == float(played.partial == 1.0)
    assert partial == sorted(partial)
    assert partial[-1] == 1.0
    assert 0.0 < partial[len(partial) // 2] < 1.0


def test_a_state_is_equal_for_equal_commands(scienceworld) -> None:
    task = scienceworld.tasks("dev", 1)[0]
    one, other = (replay(scienceworld, task, task.solution) for _ in range(2))
    assert one.states == other.states
    assert one.states[0] != one.states[-1]


def test_an_unknown_command_is_refused(scienceworld) -> None:
    task = scienceworld.tasks("dev", 1)[0]
    for refused in ("fly to the moon", "", "x" * 301):
        assert not play(scienceworld, task, follow([act(refused)]), max_turns=1).turns[0].observation.ok


def test_all_solutions_pass_and_drops_are_noticed_or_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["scienceworld"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["split"] for line in lines] == ["train", "dev", "test"]
    for line in lines:
        assert line["tasks"] == line["replayed"] > 80
        assert line["mutated"] == line["mutated_rejected"] + line["harmless"] + len(line["let_through"])
        assert line["answered"] == line["thrown"] == len(GARBAGE)
        assert line["fault_count"] == 0


def test_the_main_command_runs_with_the_tiny_policy(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/scienceworld.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(3_600))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["outcomes"].get("environment_error", 0) == 0
    assert summary["tasks_final"] > summary["tasks_initial"]

"""ALFWorld by the path that training uses, on games generated here: the official engine plays and judges."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import environments
from cojax.environment import play
from cojax.environment.replay import follow, replay
from cojax.types import Action, Call, Task, canonical
from environments import check
from environments.solutions import GARBAGE
from environments.worker import IsolatedEnvironment

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
KINDS = {
    "pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep", "pick_two_obj_and_place",
}  # fmt: skip


@pytest.fixture(scope="module")
def alfworld() -> Iterator[IsolatedEnvironment]:
    environment = environments.load("alfworld", data="tiny")
    assert isinstance(environment, IsolatedEnvironment)
    yield environment
    environment.close()


def act(command: str) -> Action:
    return Action(calls=(Call("act", {"command": command}),))


def test_every_split_has_games_of_all_six_kinds(alfworld: IsolatedEnvironment) -> None:
    for split in ("train", "valid_seen", "valid_unseen"):
        tasks = alfworld.tasks(split, 1_000)
        assert {task.setup["game"].split("/")[1].partition("-")[0] for task in tasks} == KINDS
    setups = {canonical(task.setup) for task in alfworld.tasks("seed", 10_000)}
    assert not setups & {canonical(task.setup) for task in alfworld.tasks("eval", 1_000)}


def test_the_engine_s_own_verdict_is_ours_after_each_command(alfworld: IsolatedEnvironment) -> None:
    tasks = alfworld.tasks("valid_seen", 6)
    for task in tasks:
        for done in range(len(task.solution)):
            played = play(alfworld, task, follow(task.solution[:done]), max_turns=max(1, done))
            assert (played.reward, played.turns[-1].observation.done if done else False) == (0.0, False)
        assert play(alfworld, task, follow(task.solution), max_turns=len(task.solution)).reward == 1.0


def test_a_state_is_equal_for_equal_commands_and_shows_what_they_change(alfworld: IsolatedEnvironment) -> None:
    task = alfworld.tasks("valid_seen", 1)[0]
    one, other = (replay(alfworld, task, task.solution) for _ in range(2))
    assert one.states == other.states
    changed = [before != after for before, after in zip(one.states, one.states[1:], strict=False)]
    assert sum(changed) >= len(task.solution) - 2


def test_commands_that_do_nothing_are_refused_and_offered_ones_are_not(alfworld: IsolatedEnvironment) -> None:
    task = alfworld.tasks("valid_seen", 1)[0]
    for refused in ("fly to fridge 1", "", "x" * 301):
        observation = play(alfworld, task, follow([act(refused)]), max_turns=1).turns[0].observation
        assert not observation.ok
    episode = alfworld.start(Task("alfworld", "", task.setup))
    try:
        episode.reset()
        *offered, ending = episode.affordances()
    finally:
        episode.close()
    assert ending == Action(calls=(Call("finish", {}),))
    assert offered
    for action in offered:
        assert play(alfworld, task, follow([action]), max_turns=1).turns[0].observation.ok


def test_all_solutions_win_and_none_does_without_a_command_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["alfworld", "--data=tiny", "--mutations=all"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["split"] for line in lines] == ["train", "valid_seen", "valid_unseen"]
    for line in lines:
        assert line["tasks"] == line["replayed"] > 0
        assert line["mutated"] == line["mutated_rejected"] + line["harmless"] + len(line["let_through"])
        assert line["answered"] == line["thrown"] == len(GARBAGE)
        assert line["fault_count"] == 0
    assert Counter(drop.partition(": ")[2].partition(" of ")[0] for line in lines for drop in line["let_through"]) == {}


def test_the_main_command_adds_tasks_with_the_tiny_policy(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/alfworld.py", "--config.policy=tiny",
        "--config.steps=2", "--config.environment.data=tiny", f"--config.workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3_600)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["tasks_final"] > summary["tasks_initial"]
    assert summary["outcomes"].get("environment_error", 0) == 0

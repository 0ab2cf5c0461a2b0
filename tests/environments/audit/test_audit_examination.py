"""Worlds with a hole each give the finding of that hole; sound worlds give none."""

from __future__ import annotations

import holed_worlds
import pytest
import sound_worlds

from cojax.types import Action, Call, Task
from environments.audit.__main__ import draw_tasks
from environments.audit.attackers import ATTACKERS
from environments.audit.examination import Examination, complete
from environments.audit.player import Player
from environments.audit.repetition import Origin

SPLITS = ("eval", "dev", "test", "train", "challenge", "seed")


def examined(module, name, origin=False, count=4, seed=0, **options):
    """The examination of a world; with `origin`, other processes play it too."""
    environment = getattr(module, name)()
    source = Origin(f"{module.__name__}:{name}", {}) if origin else None
    examination = Examination(environment, seed=seed, origin=source, **options)
    tasks = draw_tasks(environment, SPLITS, count, seed)
    examination.examine([complete(examination.player, task, seed) for task in tasks])
    return examination


# What is found in each world: attacker → findings. Every world has three tasks or fewer, but for `solved` and those
# with four.
HOLES = {
    "forgetful": {"drop": 3, "stop": 3, "swap": 3, "extra": 3, "double": 3},
    "solved": {"null": 2, "greeting": 2},
    "cached": {"leak": 3},
    "unreadable": {"break": 4},
    "overflowing": {"break": 1},
    "generous": {"null": 3, "greeting": 3},
    "generous_when_finished": {"null": 3, "greeting": 3},
    "substring": {"swap": 3, "shotgun": 3},
    "reversed_substring": {"shotgun": 3},
    "counted": {"shotgun": 2},
    "hidden": {"drop": 2, "stop": 2, "swap": 2, "double": 2},
    "unsolved_substring": {"shotgun": 3},
}


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found(name):
    found = examined(holed_worlds, name).findings
    counts = {finding.attacker: [other.attacker for other in found].count(finding.attacker) for finding in found}
    assert {attacker: counts.get(attacker) for attacker in HOLES[name]} == HOLES[name]
    assert {finding.severity for finding in found} & {"critical", "high", "medium"}


@pytest.mark.parametrize("name", ["dated", "stamped", "greeted"])
def test_a_world_that_reads_a_clock_is_found(name):
    found = examined(holed_worlds, name, origin=True, count=1).findings
    assert [(finding.attacker, finding.severity) for finding in found] == [("clock", "medium")]


@pytest.mark.parametrize(
    "name", ["pantry", "setups_alone", "phones", "lamps", "spoken", "shop", "board", "quiz", "questions"]
)
def test_nothing_is_found_in_a_sound_world(name):
    examination = examined(sound_worlds, name)
    assert [(finding.id, finding.why) for finding in examination.findings] == []
    assert examination.failures == []


def test_a_sound_world_plays_alike_in_all_processes():
    examination = examined(sound_worlds, "shop", origin=True, count=2)
    assert examination.findings == []
    assert examination.tallies["clock"].tried == 2 * 3 * 5
    assert not examination.left_out


def test_the_same_seed_gives_the_same_findings():
    first, second = (examined(holed_worlds, "forgetful", seed=3, count=1).findings for _ in range(2))
    assert first == second
    assert [finding.attacker for finding in first] == ["drop", "stop", "swap", "extra", "double"]


def test_the_floor_is_measured():
    assert examined(holed_worlds, "solved", count=4).floor() == {"null": 0.5, "greeting": 0.5, "random": 0.166667}
    assert examined(holed_worlds, "generous").floor() == {"null": 1.0, "greeting": 1.0, "random": 1.0}


def test_a_budget_leaves_out_what_is_worth_least():
    examination = examined(sound_worlds, "lamps", budget_s=0.0, count=2)
    assert examination.left_out == {name: 2 for name in ATTACKERS if name not in ("clock", "break")} | {"break": 2}
    assert examination.floor() == {"null": None, "greeting": None, "random": None}


def test_a_task_whose_solution_earns_nothing_is_a_finding():
    environment = sound_worlds.pantry()
    (task, *_) = environment.tasks("eval", 1)
    wrong = Task(task.environment, task.query, task.setup, (Action(calls=(Call("fly"),)), *task.solution[:1]))
    environment._judge = lambda task, world, answer, finished: 0.0
    examination = Examination(environment, {"solution": ATTACKERS["solution"]})
    examination.examine([wrong])
    (finding,) = examination.findings
    assert (finding.attacker, finding.severity, finding.why) == (
        "solution", "medium", "the task's own solution earns nothing (truncated)"
    )  # fmt: skip


def test_a_world_that_does_not_open_is_a_finding_and_a_failure():
    environment = sound_worlds.pantry()
    tasks = environment.tasks("eval", 2)
    environment._open_world = lambda setup: 1 / 0
    examination = Examination(environment)
    examination.examine(tasks)
    assert [(finding.attacker, finding.severity) for finding in examination.findings] == [("break", "medium")] * 2
    assert "ZeroDivisionError" in examination.findings[0].why
    assert examination.failures == ["no task opens; run `cojax check` on this world"]


def test_a_walk_stands_in_for_a_task():
    environment = sound_worlds.setups_alone()
    (setup,) = environment.tasks("seed", 1)
    player = Player(environment)
    task = complete(player, setup, 0)
    assert complete(player, task, 0) is task
    assert task.setup == setup.setup
    assert task.solution[-1].calls[0].name == "finish"
    assert {call.name for action in task.solution[:-1] for call in action.calls} == {"put", "label"}
    assert player.episodes["survey"] > 0


def test_one_task_can_be_examined_by_chosen_attackers():
    environment = holed_worlds.forgetful()
    (task,) = environment.tasks("eval", 1)
    examination = Examination(environment, {name: ATTACKERS[name] for name in ("null", "drop")})
    examination.examine([task])
    (finding,) = examination.findings
    assert finding.id == f"drop/{task.id}/2"
    assert finding.attempt == "without label of action 2"
    assert [action for action, _ in finding.actions] == ["put(item=rice, amount=3)", "finish()"]
    assert [action for action, _ in finding.honest_actions][1] == "label(item=rice, text=dry)"

"""Tasksets of `verifiers` whose tasks differ, and tasksets of hostile data: what is played, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import environments
from cojax.environment import EnvironmentFailure, play, traits_of
from cojax.environment.replay import follow
from cojax.types import Action, Call, Task, Trajectory
from environments import check
from environments.tools import ToolEnvironment

pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parent


def load(kind: str, module: str = "mixed_taskset", **settings) -> ToolEnvironment:
    arguments = json.dumps({"kind": kind}) if kind else "{}"
    environment = environments.load("verifiers", module=module, path=str(FOLDER), arguments=arguments, **settings)
    assert isinstance(environment, ToolEnvironment)
    return environment


def call(name: str, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


def played(environment: ToolEnvironment, task: Task, *actions: Action) -> Trajectory:
    return play(environment, task, follow(actions), max_turns=len(actions))


def numbered(environment: ToolEnvironment, number: int) -> Task:
    tasks = [task for split in ("train", "dev", "eval") for task in environment.tasks(split, 100)]
    return next(task for task in tasks if task.setup["task"] == number)


def test_each_task_offers_its_own_tools() -> None:
    environment = load("tools")
    assert [tool["function"]["name"] for tool in environment.tools()] == ["count_add", "count_take"]
    assert traits_of(environment).incomparable == ""
    for number, names in ((2, ["count_add"]), (3, ["count_add", "count_take"])):
        episode = environment.start(numbered(environment, number))
        try:
            episode.reset()
            assert [tool["function"]["name"] for tool in episode.tools()] == names
            tried = {call.name for action in episode.affordances() for call in action.calls}
            assert tried == set(names)
            assert episode.step(call("count_take", by=1)).ok == ("count_take" in names)
        finally:
            episode.close()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("states", "task 7: the taskset declares no State of its own"), ("no tools", "task 7: the taskset has no tools")],
)
def test_one_task_whose_state_cannot_be_compared_is_named(kind: str, reason: str) -> None:
    environment = load(kind)
    assert traits_of(environment).incomparable == reason
    assert played(environment, numbered(environment, 7), Action("done")).outcome == "finished"


def test_tools_of_the_evaluation_tasks_are_known_too() -> None:
    environment = load("words", evaluation=json.dumps({"kind": "tools"}))
    assert [tool["function"]["name"] for tool in environment.tools()] == ["count_add", "count_take"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("box", "task 7 needs a container"),
        ("clash", "task 7: the tool 'count_add' differs from that of task 0"),
        ("stop", "the episode is over before its first action: the stop stopped holds"),
        ("empty", "the taskset 'mixed_taskset' has no tasks with {'kind': 'empty'}"),
        ("raises", "OSError: the data is on another planet"),
        ("twins", "every task to train on is also evaluated on; give `evaluation` settings of other tasks"),
        ("half", "the data of task 0 is no JSON: 'utf-8' codec can't encode character"),
        ("object", "the data of task 0 is no JSON: Unable to serialize unknown type"),
    ],
)
def test_what_cannot_be_played_is_refused_with_its_task(kind: str, reason: str) -> None:
    with pytest.raises((ValueError, EnvironmentFailure), match=re.escape(reason)) as refused:
        load(kind)
    assert reason in str(refused.value).splitlines()[0]


@pytest.mark.parametrize("kind", ["words", "set", "nan", "huge", "endless"])
def test_odd_data_is_played(kind: str) -> None:
    environment = load(kind, tasks=20)
    found = played(environment, numbered(environment, 0), call("count_add", by=1), Action("done"))
    assert (found.outcome, found.reward, found.turns[0].observation.text) == ("finished", 0.5, "added")
    assert len(found.opening[-1].content) < 20_000


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        ("nan", "the taskset's reward 'counted' of task 0 is nan; expected a finite number"),
        ("inf", "the taskset's reward 'counted' of task 0 is inf; expected a finite number"),
        ("text", "task 0 has no reward counted: task Counting scoring: ValueError: could not convert string to float"),
        ("none", "task 0 has no reward counted: task Counting scoring: TypeError: float() argument"),
        ("huge", "task 0 has no reward counted: task Counting scoring: OverflowError"),
    ],
)
def test_a_reward_that_is_no_number_is_no_verdict(reward: str, reason: str) -> None:
    environment = load(f"reward {reward}")
    found = played(environment, numbered(environment, 0), Action("done"))
    assert (found.outcome, found.reward, found.valid) == ("environment_error", 0.0, False)
    assert reason in found.error


def test_the_check_names_a_reward_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["module=mixed_taskset", f"path={FOLDER}", 'arguments={"kind": "reward nan"}']
    arguments = ["verifiers", "--count=1", "--splits=dev", *(word for one in given for word in ("--set", one))]
    assert check.main(arguments) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    (fault,) = line["faults"]
    assert "environment_error evaluate: " in fault
    assert "the taskset's reward 'counted' of task" in fault


def test_a_module_that_is_missing_is_named_with_the_folders_that_were_searched(tmp_path: Path) -> None:
    (tmp_path / "needing_taskset.py").write_text("import absent_thing\n")
    for module, reason in (
        ("no_such_taskset", f"is not there: no module 'no_such_taskset' in {FOLDER}, nor among the packages of "),
        ("needing_taskset", f"cannot be imported: it needs 'absent_thing', which is not in {tmp_path}, nor among"),
    ):
        path = str(tmp_path if module == "needing_taskset" else FOLDER)
        with pytest.raises(EnvironmentFailure, match=re.escape(f"the taskset {module!r} {reason}")):
            environments.load("verifiers", module=module, path=path)
    with pytest.raises(EnvironmentFailure, match="in no folder, as `path` names none"):
        environments.load("verifiers", module="lists_taskset")
    with pytest.raises(EnvironmentFailure, match=r"'mixed_taskset:read' is not there: .* defines no 'read'"):
        load("tools", state="mixed_taskset:read")

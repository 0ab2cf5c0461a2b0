"""Environments of `openenv` that misbehave: each gives a typed outcome, or is refused."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

import environments
from cojax.environment import EnvironmentFailure, play
from cojax.environment.replay import follow
from cojax.host.processes import list_descendants
from cojax.types import Action, Call, Task, Trajectory
from environments import check
from environments.tools import ToolEnvironment

pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parent


def load(kind: str = "", **settings) -> ToolEnvironment:
    given = {"module": "odd_houses:Keys", "arguments": json.dumps({"kind": kind}), "deadline": 5.0, **settings}
    environment = environments.load("openenv", path=str(FOLDER), **given)
    assert isinstance(environment, ToolEnvironment)
    return environment


def call(name: str, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


PRESS, FINISH = call("act", key="a"), call("finish")


def played(environment: ToolEnvironment, seed: int = 0, *actions: Action) -> Trajectory:
    return play(environment, Task("openenv", "Do what the environment asks for.", {"seed": seed}), follow(actions),
                max_turns=len(actions))  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("over", "the episode is over before its first action: reset(seed=0) returned done"),
        ("bare", "reset returned dict; expected an Observation of openenv"),
        ("reset hangs", "TIMEOUT: reset took longer than 5 s"),
        ("reset dies", "the child died during reset"),
        ("reset floods", "it is longer than 8,388,608 bytes"),
        ("stateless", "'NoneType' object has no attribute 'model_dump'"),
    ],
)
def test_what_does_not_open_is_refused_and_leaves_no_process(kind: str, reason: str) -> None:
    before = list_descendants(os.getpid())
    with pytest.raises(EnvironmentFailure, match=re.escape(reason)):
        load(kind)
    assert list_descendants(os.getpid()) <= before


def test_an_episode_that_is_over_at_once_is_no_episode(capsys: pytest.CaptureFixture[str]) -> None:
    environment = load("sometimes over")
    assert played(environment, 0, PRESS, FINISH).outcome == "finished"
    over = played(environment, 3, PRESS, FINISH)
    assert (over.outcome, over.reward, over.valid, over.turns) == ("environment_error", 0.0, False, ())
    assert "the episode is over before its first action: reset(seed=3) returned done" in over.error
    given = ["module=odd_houses:Keys", f"path={FOLDER}", 'arguments={"kind": "sometimes over"}', 'resets=[{"seed": 1}]',
             'evaluation=[{"seed": 3}]']  # fmt: skip
    arguments = ["openenv", "--splits=eval", *(word for one in given for word in ("--set", one))]
    assert check.main(arguments) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert "reset(seed=3) returned done" in line["faults"][0]


@pytest.mark.parametrize(
    ("kind", "outcome", "reason"),
    [
        ("step hangs", "timeout", "step took longer than 5 s"),
        ("step dies", "timeout", "the child died during step"),
        ("step floods", "finished", ""),
        ("nothing", "environment_error", "step returned NoneType; expected an Observation of openenv"),
        ("raises", "environment_error", "RuntimeError: the keys are stuck"),
        ("nan", "environment_error", "the environment's reward of step 1 after reset(seed=0) is nan"),
        ("huge", "environment_error", "the environment's reward of step 1 after reset(seed=0) is 1000000000"),
        ("not a number", "environment_error", "the environment's reward of step 1 after reset(seed=0) is 'much'"),
        ("endless state", "finished", ""),
    ],
)
def test_a_step_that_misbehaves_has_a_typed_outcome(kind: str, outcome: str, reason: str) -> None:
    found = played(load(kind), 0, PRESS, FINISH)
    assert found.outcome == outcome
    assert reason in found.error
    assert found.reward in (0.0, 0.5)
    assert found.valid == (outcome != "environment_error")


def test_the_check_names_a_reward_that_is_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["module=odd_houses:Keys", f"path={FOLDER}", 'arguments={"kind": "inf"}', 'resets=[{"seed": 1}]',
             'evaluation=[{"seed": 2}]']  # fmt: skip
    arguments = ["openenv", "--splits=eval", *(word for one in given for word in ("--set", one))]
    assert check.main(arguments) == 1
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    (fault,) = line["faults"]
    assert "the environment's reward of step 1 after reset(seed=2) is inf" in fault


def test_a_tool_of_its_own_may_be_called_finish() -> None:
    environment = load(module="odd_houses:Finishing", arguments="{}", solution="odd_houses:washed", reward="last")
    assert [tool["function"]["name"] for tool in environment.tools()] == ["finish", "finish_episode"]
    task = environment.tasks("train", 1)[0]
    assert [call.name for action in task.solution for call in action.calls] == ["finish", "finish_episode"]
    assert play(environment, task, follow(task.solution), max_turns=2).reward == 1.0


def test_other_tools_after_another_reset_are_a_failure_of_the_environment() -> None:
    environment = load(module="odd_houses:Finishing", arguments='{"changing": true}')
    assert played(environment, 4, call("finish_episode")).outcome == "finished"
    found = played(environment, 5, call("finish_episode"))
    assert found.outcome == "environment_error"
    assert "the episode offers the tool 'start', which the environment lacks" in found.error


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"resets": "[1]"}, "resets is '[1]'; expected a JSON list of objects, or a split of the environment"),
        ({"resets": "[{]"}, "resets is '[{]', which is not JSON"),
        ({"resets": '{"seed": 1}'}, "expected a JSON list of objects, or a split of the environment"),
        ({"resets": "test"}, "Keys has no split 'test' of its own"),
        ({"resets": "[]"}, "resets is '[]'; expected at least one"),
        ({"resets": "none"}, "resets is 'none', a split that has no task"),
        ({"resets": '[{"seed": 1}]', "evaluation": '[{"seed": 1}]'}, "1 of the resets are also in evaluation"),
        ({"module": "odd_houses:Nothing"}, "'odd_houses:Nothing' is not there: "),
        ({"module": "no_houses:Keys"}, f"no module 'no_houses' in {FOLDER}, nor among the packages of "),
        ({"arguments": '{"color": 1}'}, "unexpected keyword argument 'color'"),
        ({"action": "odd_houses:Unknown"}, "defines no 'Unknown'"),
    ],
)
def test_settings_that_make_no_environment_are_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises((ValueError, EnvironmentFailure), match=re.escape(reason)):
        load(**settings)

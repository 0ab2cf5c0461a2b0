"""The tool that ends an episode: its name is free in every world, and a run learns it from the environment."""

from __future__ import annotations

import re

import pytest

from cojax.environment import play, traits_of
from cojax.environment.replay import follow
from cojax.run.explorers import find_ending
from cojax.settings import base
from cojax.types import Action, Call, Task
from environments.soundness import SetupReport
from environments.tools import ToolEnvironment
from environments.tools.environment import choose_end_name, end_task

SETUP = {"jobs": {"wash": "open", "cook": "open"}}


def finish(world, job: str) -> None:
    """Finish a job."""
    world["jobs"][job] = "finished"


def jobs(tools=(finish,), **settings) -> ToolEnvironment:
    return ToolEnvironment("jobs", tools, dict, [SETUP], **settings)


def call(name: str, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


WASHED = call("finish", job="wash")


def test_a_world_may_have_a_tool_called_finish() -> None:
    environment = jobs()
    assert [tool["function"]["name"] for tool in environment.tools()] == ["finish", "finish_episode"]
    assert traits_of(environment).ending == "finish_episode"
    task = Task("jobs", "Finish the washing.", SETUP, (WASHED, call("finish_episode")))
    assert play(environment, task, follow(task.solution), max_turns=2).reward == 1.0
    assert play(environment, task, follow((WASHED,)), max_turns=1).outcome == "truncated"
    other = (call("finish", job="cook"), call("finish_episode"))
    assert play(environment, task, follow(other), max_turns=2).reward == 0.0
    report = SetupReport()
    report.examine(environment, environment.tasks("seed", 1))
    assert report.line(environment, "jobs", "seed", 0.0)["faults"] == []


def test_its_own_tasks_are_ended_by_that_name() -> None:
    solution = [{"name": "finish", "arguments": {"job": "wash"}}]
    environment = jobs(splits=[{"query": "Wash.", "setup": SETUP, "solution": solution}])
    (task,) = (*environment.tasks("dev", 9), *environment.tasks("eval", 9))
    assert task.solution == (WASHED, call("finish_episode"))
    assert end_task(task, "finish_episode") == task


@pytest.mark.parametrize(
    ("taken", "name"),
    [
        ((), "finish"),
        (("finish",), "finish_episode"),
        (("finish", "finish_episode"), "finish_episode_2"),
        (("finish", "finish_episode", "finish_episode_2"), "finish_episode_3"),
        (("finish_episode",), "finish"),
    ],
)
def test_the_name_is_the_first_that_is_free(taken: tuple[str, ...], name: str) -> None:
    assert choose_end_name(taken) == name


def test_a_tool_of_the_world_ends_the_episode_where_that_is_said() -> None:
    environment = jobs(ending="finish")
    assert [tool["function"]["name"] for tool in environment.tools()] == ["finish"]
    assert play(environment, Task("jobs", "", SETUP), follow((WASHED,)), max_turns=1).outcome == "finished"


@pytest.mark.parametrize(("named", "expected"), [(None, "finish_episode"), ("done", "done"), ("", "")])
def test_a_run_takes_the_ending_that_the_environment_states(named: str | None, expected: str) -> None:
    assert find_ending(base.get_config(), jobs(ending=named)) == expected


def test_a_run_refuses_another_ending_than_the_environments() -> None:
    config = base.get_config()
    config.explorer.ending = "stop"
    reason = "explorer.ending is 'stop', but an episode of 'jobs' is ended by finish_episode; leave explorer.ending out"
    with pytest.raises(ValueError, match=re.escape(reason)):
        find_ending(config, jobs())

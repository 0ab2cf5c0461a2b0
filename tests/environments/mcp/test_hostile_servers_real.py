"""A server that hangs, floods, lies, changes its tools, dies, or asks for what is the client's: nothing else breaks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import mcp_plays
import pytest
from mcp_plays import FINISH, call, command, processes
from patience import patience

import environments
from cojax.environment import EnvironmentFailure, LimitExceeded
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Action, Task, Trajectory
from environments.mcp import RECIPE, make
from environments.mcp.world import NAME
from environments.tools import ToolEnvironment
from environments.worker.venv import interpreter

pytestmark = pytest.mark.real
WRITE = call("write", text="a")


@pytest.fixture(scope="module")
def hostile() -> ToolEnvironment:
    os.environ.update(MCP_TEST_TOKEN="a secret", MCP_TEST_OTHER="another")
    settings = {"command": command("hostile_server.py"), "variables": "MCP_TEST_TOKEN MODE=strict"}
    return environments.load("mcp", deadline=8.0, **settings)


def played(environment: ToolEnvironment, *actions: Action, setup: int = 0) -> Trajectory:
    return mcp_plays.played(environment, (WRITE, FINISH), *actions, setup=setup)


def test_the_file_that_a_tool_writes_is_the_state(hostile: ToolEnvironment) -> None:
    assert played(hostile, WRITE, FINISH).reward == 1.0
    assert played(hostile, call("write", text="b"), FINISH).reward == 0.0


def test_a_folder_that_becomes_too_large_to_be_compared_is_no_success(hostile: ToolEnvironment) -> None:
    found = played(hostile, WRITE, call("fill"), FINISH)
    assert (found.outcome, found.reward) == ("finished", 0.0)


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        ("hang", "step: TIMEOUT: step took longer than 8 s"),
        ("flood", "step: TIMEOUT: step took longer than 8 s"),
        ("long", "step: the server has sent a message of more than 16777216 bytes"),
        ("die", "step: the server has ended"),
    ],
)
def test_a_server_that_hangs_floods_or_dies_is_the_action_s_doing_and_leaves_no_process(
    hostile: ToolEnvironment, tool: str, why: str
) -> None:
    before = processes(hostile)
    found = played(hostile, call(tool))
    assert (found.outcome, found.error) == ("timeout", why)
    until = time.monotonic() + patience(30)
    while processes(hostile) - before and time.monotonic() < until:
        time.sleep(0.05)
    assert processes(hostile) <= before
    assert played(hostile, WRITE, FINISH).reward == 1.0


def test_an_episode_is_judged_although_a_tool_ends_its_processes_between_two_calls(hostile: ToolEnvironment) -> None:
    episode = hostile.start(Task(NAME, "", {}, (WRITE, FINISH)))
    episode.reset()
    running = processes(hostile)
    assert episode.step(call("slay")).text == "soon"
    until = time.monotonic() + patience(60)
    while not running - processes(hostile) and time.monotonic() < until:
        time.sleep(0.05)
    with pytest.raises(LimitExceeded, match="the server has ended"):
        episode.step(WRITE)
    assert episode.evaluate().reward == 0.0
    episode.close()


def test_a_server_that_ends_after_its_answer_loses_the_episode_where_calls_read_its_state() -> None:
    environment = make(command=command("hostile_server.py"), state="text")
    task = Task(NAME, "", environment.tasks("seed", 1)[0].setup, (WRITE, FINISH))

    def collected(*actions: Action) -> Trajectory:
        limits = Limits(max_turns=len(actions), error_rate=1.0)
        (group,) = EpisodeCollector(mcp_plays.Following(actions), environment, limits).collect(
            [task], seed=(0,), label="0"
        )
        return group.trajectories[0]

    found = collected(call("doom"), FINISH)
    assert (found.outcome, found.valid, found.reward) == ("timeout", True, 0.0)
    assert found.error == "evaluate: the server has ended"
    assert collected(WRITE, FINISH).reward == 1.0


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("lie", "error: Error: nothing is there"),
        ("ask_model", "error: Sampling not supported"),
        ("ask_roots", "error: List roots not supported"),
        ("ask_user", "error: Elicitation not supported"),
    ],
)
def test_what_is_refused_is_an_error_and_the_episode_goes_on(hostile: ToolEnvironment, tool: str, says: str) -> None:
    found = played(hostile, call(tool), WRITE, FINISH)
    assert (found.turns[0].observation.ok, found.turns[0].observation.text) == (False, says)
    assert (found.outcome, found.reward) == ("finished", 1.0)


def test_what_is_printed_between_messages_is_left_out(hostile: ToolEnvironment) -> None:
    assert played(hostile, call("babble")).turns[0].observation.text == "done"


def test_an_episode_keeps_the_list_of_tools_that_it_opened_with(hostile: ToolEnvironment) -> None:
    found = played(hostile, call("grow"), call("grown", text="b"), call("lie"), WRITE, FINISH)
    assert [turn.observation.text for turn in found.turns] == [
        "grown",
        "error: there is no tool 'grown'",
        "error: Unknown tool: lie",
        "written",
        "ok",
    ]
    assert found.reward == 1.0


def test_a_server_sees_the_named_variables_and_no_other(hostile: ToolEnvironment) -> None:
    names = ("MCP_TEST_TOKEN", "MODE", "MCP_TEST_OTHER", "/etc/shadow")
    found = played(hostile, *(call("look", name=name) for name in names))
    assert [(turn.observation.ok, turn.observation.text) for turn in found.turns] == [
        (True, "a secret"),
        (True, "strict"),
        (False, "error: Error executing tool look"),
        (False, "error: Error executing tool look"),
    ]


def test_a_start_whose_server_offers_other_tools_is_no_episode(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two" / "extra.txt").write_text("")
    environment = make(command=command("hostile_server.py"), folders=str(tmp_path))
    found = [played(environment, WRITE, FINISH, setup=number) for number in (0, 1)]
    assert sorted(one.outcome for one in found) == ["environment_error", "finished"]
    (error,) = (one.error for one in found if one.error)
    assert "the server offers now extra; expected the tools that it offered when the environment was made" in error


def test_a_program_that_is_no_server_is_refused_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('no licence found')")
    with pytest.raises(EnvironmentFailure, match=r"does not start: .*its last words: no licence found"):
        make(command=f"{interpreter(NAME, RECIPE)} {tmp_path / 'broken.py'}", deadline=8.0)

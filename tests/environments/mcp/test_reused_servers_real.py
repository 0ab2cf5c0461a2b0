"""Servers with a reset serve several episodes if that is asked for, as long as it leads them back to their start."""

from __future__ import annotations

import mcp_plays
import pytest
from mcp_plays import FINISH, call, command, processes

from environments.mcp import make
from environments.soundness import SetupReport

pytestmark = pytest.mark.real
TEA = call("add", title="tea", day="friday")
TASK = (TEA, FINISH)


def test_a_server_whose_reset_works_serves_the_next_episode(caplog) -> None:
    environment = make(command=command("lists_server.py"), reset="clear", reuse=True, state="everything")
    assert mcp_plays.played(environment, TASK, TEA, FINISH).reward == 1.0
    running = processes(environment)
    for actions, reward in (((TEA, FINISH), 1.0), ((FINISH,), 0.0), ((TEA, FINISH), 1.0)):
        assert mcp_plays.played(environment, TASK, *actions).reward == reward
    # The server that played the solution may have been about to end.
    assert processes(environment) <= running
    assert not caplog.messages


def test_a_server_whose_reset_does_not_work_is_started_anew(caplog) -> None:
    environment = make(command=command("lists_server.py"), reset="clear_in_part", reuse=True, state="everything")
    for _ in range(3):
        assert mcp_plays.played(environment, TASK, TEA, FINISH).reward == 1.0
    (said,) = caplog.messages
    assert said.startswith("the reset does not lead a server back to its start, so each episode starts one: its state")


def test_a_server_that_has_changed_its_tools_is_not_used_again() -> None:
    environment = make(command=command("hostile_server.py"), reset="clear", reuse=True)
    write = (call("write", text="a"), FINISH)
    assert mcp_plays.played(environment, write, *write).reward == 1.0
    assert mcp_plays.played(environment, write, call("grow"), *write).reward == 1.0
    again = mcp_plays.played(environment, write, call("lie"), call("grown", text="b"), *write)
    assert [turn.observation.text for turn in again.turns[:2]] == [
        "error: Error: nothing is there",
        "error: there is no tool 'grown'",
    ]
    assert again.reward == 1.0


def test_a_server_that_was_lost_is_not_used_again() -> None:
    environment = make(command=command("hostile_server.py"), reset="clear", reuse=True)
    write = (call("write", text="a"), FINISH)
    assert mcp_plays.played(environment, write, call("die")).outcome == "timeout"
    assert mcp_plays.played(environment, write, *write).reward == 1.0


def test_a_server_that_played_a_solution_tells_it_to_no_other_episode() -> None:
    environment = make(command=command("lists_server.py remembers"), reset="clear", reuse=True, state="everything")
    recent = call("recent")
    assert mcp_plays.played(environment, TASK, recent, FINISH).turns[0].observation.text == "[]"
    assert mcp_plays.played(environment, TASK, recent, FINISH).turns[0].observation.text == "[]"
    # It is the last one kept that serves the next episode, and what a policy does there it may read.
    assert mcp_plays.played(environment, TASK, TEA, FINISH).reward == 1.0
    assert mcp_plays.played(environment, TASK, recent, FINISH).turns[0].observation.text == '["tea"]'


@pytest.mark.parametrize("memory", ["", " remembers"])
def test_the_check_fails_where_a_server_remembers_what_it_was_told_before_its_reset(memory) -> None:
    environment = make(command=command(f"lists_server.py{memory}"), reset="clear", reuse=True, state="everything")
    report = SetupReport()
    report.check_setup(environment, environment.tasks("seed", 1)[0], throws_garbage=True)
    told = [fault for fault in report.plays.faults if "expected episodes that see nothing of each other" in fault]
    assert len(told) == bool(memory), report.plays.faults
    assert len(report.plays.faults) == len(told)

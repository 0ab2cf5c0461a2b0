"""Held-out success by tool, and how it is stored."""

from cojax.scoring import score
from cojax.types import Action, Call, Group, Task, Trajectory
from experiments.evaluations import record
from experiments.scores import HeldOut, success_by_tool


def group(tools, *rewards, lost=0):
    task = Task("desk", " ".join(tools), {}, tuple(Action(calls=(Call(tool),)) for tool in tools))
    played = [Trajectory(task, reward=reward) for reward in rewards]
    return Group(task, (*played, *(Trajectory(task, outcome="engine_error") for _ in range(lost))))


GROUPS = [group(("a", "a", "finish"), 1.0), group(("b", "a", "finish"), 0.0), group(("c",), lost=1), group((), 1.0)]


def test_a_task_counts_for_each_tool_of_its_solution_once():
    assert success_by_tool(GROUPS, "finish") == {
        "a": {"success": 0.5, "tasks": 2},
        "b": {"success": 0.0, "tasks": 1},
    }
    assert success_by_tool([group((), 1.0)], "finish") == {}


def test_the_record_of_an_evaluation_has_success_by_tool():
    found = HeldOut(score(GROUPS), {}, {}, by_tool=success_by_tool(GROUPS, "finish"))
    assert record(found)["by_tool"]["a"] == {"success": 0.5, "tasks": 2}
    assert record(None) == {"success": None, "tasks": {}}

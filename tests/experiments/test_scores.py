"""Held-out success by tool and how it is stored; and the environment in which a run evaluates."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from trained_runs import config

from cojax.environment import Traits, traits_of
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.run import assemble
from cojax.run.summary import measure_development, measure_held_out, measure_tools
from cojax.settings.base import get_config
from cojax.types import Action, Call, Group, Task, Trajectory
from environments.desk import Desk


def group(tools, *rewards, lost=0):
    task = Task("desk", " ".join(tools), {}, tuple(Action(calls=(Call(tool),)) for tool in tools))
    played = [Trajectory(task, reward=reward) for reward in rewards]
    return Group(task, (*played, *(Trajectory(task, outcome="engine_error") for _ in range(lost))))


GROUPS = [group(("a", "a", "finish"), 1.0), group(("b", "a", "finish"), 0.0), group(("c",), lost=1), group((), 1.0)]


def test_a_task_counts_for_each_tool_of_its_solution_once():
    assert measure_tools(GROUPS, "finish") == {"a": {"success": 0.5, "tasks": 2}, "b": {"success": 0.0, "tasks": 1}}
    assert measure_tools([group((), 1.0)], "finish") == {}


def test_without_evaluation_tasks_there_is_no_success():
    assert measure_held_out(get_config(), SimpleNamespace(evaluation=()), "evaluation") == (
        {"success": None, "tasks": {}}, (),
    )  # fmt: skip


@pytest.mark.parametrize("reuses", [False, True])
def test_where_an_episode_may_read_what_another_left_a_run_evaluates_in_an_environment_of_its_own(
    reuses: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kept(Desk):
        traits = Traits(reuses=reuses)

    monkeypatch.setattr(assemble, "build_environment", lambda config: Kept())
    made = assemble.build_parts(config(workdir=str(tmp_path)))
    assert traits_of(made.evaluated_in).reuses is reuses
    assert (made.evaluated_in is not made.environment) is reuses


def test_evaluations_are_played_there_and_tasks_to_train_on_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    monkeypatch.setattr(EpisodeCollector, "collect", lambda self, *_, **__: played.append(self.environment) or GROUPS)
    chat, tasks = SimpleNamespace(stops=()), [GROUPS[0].task]
    made = SimpleNamespace(
        environment="training", evaluated_in="evaluation", development=tasks, evaluation=tasks, engine=None, chat=chat,
        limits=Limits(),
    )  # fmt: skip
    found, _ = measure_held_out(get_config(), made, "evaluation")
    assert found["by_tool"]["a"] == {"success": 0.5, "tasks": 2}
    measure_development(get_config(), made, 1, tasks)
    made.development = ()
    measure_development(get_config(), made, 1, tasks)
    assert played == ["evaluation", "evaluation", "training"]

"""A run in an environment whose states cannot be compared: it is told so, and trains on the environment's own tasks."""

from __future__ import annotations

import pytest
from ml_collections import ConfigDict

from cojax.environment import Traits
from cojax.run.parts import check_evolution, draw_own_tasks
from cojax.types import Task
from environments.tools import ToolEnvironment


def environment(reason: str) -> ToolEnvironment:
    tasks = [Task("said", f"Say {number}.", {}) for number in range(4)]
    splits = {"train": tasks, "eval": tasks[:1]}
    return ToolEnvironment("said", [], dict, [{}], ending="", splits=splits, traits=Traits(incomparable=reason))


def test_a_run_is_told_that_nothing_is_synthesized_and_trains_on_the_environments_own_tasks() -> None:
    config = ConfigDict({"evolve": "feedback", "method": "coevolve", "initial_tasks": 2, "seed": 0})
    with pytest.raises(ValueError, match=r"\(it has none\).*Set --config.evolve=none"):
        check_evolution(config, environment("it has none"))
    check_evolution(config, environment(""))
    config.evolve = "none"
    check_evolution(config, environment("it has none"))
    said = environment("it has none")
    found = draw_own_tasks(config, said, said.tasks("eval", 9))
    assert [task.query for task in found.tasks] == ["Say 1.", "Say 2."]
    assert not any(found.counts.values())
    with pytest.raises(ValueError, match="no task in its split 'train'"):
        draw_own_tasks(config, said, said.tasks("train", 9))

"""`python -m environments.check appworld`, and that it finds what is wrong."""

import dataclasses

import pytest

from cojax.types import Action
from environments import check
from environments.appworld import audit
from environments.appworld.environment import AppWorld

pytestmark = pytest.mark.real


@pytest.mark.nightly
def test_the_tiny_data_are_sound_and_its_figures_the_benchmarks_own(appworld: AppWorld, capsys, monkeypatch):
    monkeypatch.setattr(audit.roots, "is_current", lambda name: name == "tiny")  # not whatever else is installed
    assert check.main(["appworld", "--count=6"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "nothing is wrong"
    lines = {line.split()[1]: line.split()[2:] for line in told[1:-1]}
    for split in ("dev", "test_normal"):
        tasks, solved, idle, mutated, failing, goals, scenarios = lines[split]
        assert tasks == solved == idle == mutated == failing
        ours, theirs = goals.split("/")
        assert ours == theirs
        assert 0.0 < float(ours) < 100.0
        assert len(set(scenarios.split("/"))) == 1


def test_a_solution_that_does_nothing_is_a_fault(appworld: AppWorld, monkeypatch):
    idle = Action("```python\napis.supervisor.complete_task()\n```")
    (task, *_) = appworld.tasks("train", 1)
    wrong = dataclasses.replace(task, solution=(idle,))
    monkeypatch.setattr(appworld, "tasks", lambda split, count: (wrong, wrong)[:count])
    (fault,) = audit._check_split(appworld, "train", 1, drops_all=False)
    assert f"{task.setup['task']}: the solution ends finished with reward 0.0" in fault

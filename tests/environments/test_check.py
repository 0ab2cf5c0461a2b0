"""The check passes a sound environment and names what is wrong with a broken one."""

import dataclasses

import pytest

import environments
from cojax.types import Action, Call, Evaluation
from environments import check
from environments.desk.episode import DeskEpisode


class Generous:
    """The desk, but every finished episode earns reward 1: negative controls must catch it."""

    def start(self, task):
        class Episode(DeskEpisode):
            def evaluate(self):
                return Evaluation(float(self.state()["finished"]))

        return Episode(task)


class Moody:
    """The desk, but every second episode greets differently."""

    def __init__(self):
        self.starts = 0

    def start(self, task):
        self.starts += 1
        return DeskEpisode(dataclasses.replace(task, query=f"{task.query}{' ' * (self.starts % 2)}"))


def test_the_desk_passes(capsys):
    assert check.main(["desk", "--count=40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [[split, "40"] for split in ("seed", "dev", "eval", "challenge")]
    assert lines[4] == "desk: 0 faults"


def test_a_reward_for_anything_is_a_fault():
    tasks = environments.load("desk").tasks("dev", 40)
    tally = check.check(Generous(), tasks)
    changing = [task for task in tasks if any(call_changes(task, index) for index in range(len(task.solution) - 1))]
    assert 0 < len(changing) <= 40
    assert len(tally.faults) == len(changing)
    assert "still earns reward 1" in tally.faults[0]


def call_changes(task, dropped):
    episode = DeskEpisode(task)
    for action in task.solution[:dropped]:
        episode.step(action)
    before = episode.state()
    episode.step(task.solution[dropped])
    return episode.state() != before


def test_an_unsteady_environment_is_a_fault():
    tally = check.check(Moody(), environments.load("desk").tasks("dev", 3))
    assert [fault.split(": ")[1] for fault in tally.faults] == ["two plays of the solution differ"] * 3


def test_a_solution_that_fails_is_a_fault():
    task = environments.load("desk").tasks("dev", 1)[0]
    broken = dataclasses.replace(task, solution=(Action(calls=(Call("files_fly"),)),))
    tally = check.check(environments.load("desk"), [broken])
    assert tally.faults == [f"{task.id}: the solution ends truncated with reward 0.0"]


@pytest.mark.parametrize("arguments", [["nowhere"], ["desk", "--splits=nowhere"]])
def test_unknown_names_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        check.main(arguments)
    assert exit_.value.code == 2
    assert "'nowhere' not found; available:" in capsys.readouterr().err

"""The check passes a sound environment and names what is wrong with a broken one."""

import dataclasses
import json

import pytest
from broken_desks import BrokenDesk, every

import environments
from cojax.types import Action, Call, Evaluation
from environments import check
from environments.desk.episode import DeskEpisode
from environments.soundness import GARBAGE, SplitReport


def checked(environment, tasks, every=False):
    report = SplitReport()
    for task in tasks:
        report.check_task(environment, task, drops_all=every)
    return report


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
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["split"] for line in lines] == ["seed", "dev", "eval", "challenge"]
    for line in lines:
        assert (line["tasks"], line["replayed"], line["mutated"]) == (40, 40, 40)
        assert line["mutated_rejected"] + line["harmless"] == 40
        assert line["mutated_rejected"] > 20
        assert line["thrown"] == line["answered"] == len(GARBAGE)
        assert line["fault_count"] == 0


def test_every_call_can_be_dropped():
    tasks = environments.load("desk").tasks("dev", 20)
    tally = checked(environments.load("desk"), tasks, every=True)
    assert tally.mutated == sum(len(action.calls) for task in tasks for action in task.solution)


def test_a_reward_for_anything_is_told():
    tasks = environments.load("desk").tasks("dev", 40)
    tally = checked(Generous(), tasks, every=True)
    changes = [call_changes(task, place) for task in tasks for place in range(len(task.solution) - 1)]
    assert len(tally.let_through) == sum(changes) > 20
    assert tally.harmless == len(changes) - sum(changes)
    assert tally.mutated_rejected == 40  # the endings
    one = checked(Generous(), tasks)
    assert one.make_record("desk", "dev", 0.0, drops_all=False)["fault_count"] == len(one.let_through) > 0


def call_changes(task, dropped):
    episode = DeskEpisode(task)
    for action in task.solution[:dropped]:
        episode.step(action)
    before = episode.state()
    episode.step(task.solution[dropped])
    return episode.state() != before


def test_an_unsteady_environment_is_a_fault():
    tally = checked(Moody(), environments.load("desk").tasks("dev", 3))
    assert all(": two plays of the solution differ: the opening: " in fault for fault in tally.faults)
    assert len(tally.faults) == 3
    assert tally.replayed == 0


def test_a_solution_that_fails_is_a_fault():
    task = environments.load("desk").tasks("dev", 1)[0]
    broken = dataclasses.replace(task, solution=(Action(calls=(Call("files_fly"),)),))
    tally = checked(environments.load("desk"), [broken])
    ending = "the solution ends truncated with reward 0.0; not as in the solution's own world: finished"
    assert tally.faults == [f"{task.id}: {ending}"]


def test_an_environment_that_breaks_rejects_nothing():
    tasks = environments.load("desk").tasks("dev", 5)
    whole = {id(task): len(task.solution) for task in tasks}

    class Fragile(BrokenDesk):
        """Breaks at the evaluation of every run that is shorter than the solution."""

        def start(self, task):
            episode = super().start(task)
            taken: list[int] = []
            step = episode.step
            episode.step = lambda action: taken.append(1) or step(action)
            self.on = lambda where: (where == "evaluate" and len(taken) < whole[id(task)]) and 1 / 0
            return episode

    tally = checked(Fragile(), tasks)
    assert (tally.replayed, tally.mutated, tally.mutated_rejected) == (5, 5, 0)
    assert len(tally.faults) == 5
    assert "environment_error evaluate: ZeroDivisionError" in tally.faults[0]


def test_an_environment_that_chokes_on_garbage_is_a_fault():
    task = environments.load("desk").tasks("dev", 1)[0]
    tally = SplitReport()
    tally.throw(BrokenDesk(on=every("step", 1)), task, "prose", GARBAGE["prose"])
    assert tally.faults == [f"{task.id}: prose ends environment_error step: OSError: step is on fire"]
    assert (tally.thrown, tally.answered) == (1, 0)


@pytest.mark.parametrize("arguments", [["nowhere"], ["desk", "--category=nowhere"]])
def test_unknown_names_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        check.main(arguments)
    assert exit_.value.code == 2
    assert "'nowhere' not found; available:" in capsys.readouterr().err

"""Are long tasks failed for their skills, or for composing them?"""

import dataclasses
import math

import pytest
from study_records import record

from cojax.types import Action, Call, Task
from experiments.study import composition as command
from experiments.study.composition import composition, main, of_records

MOVE, NOTE, CANCEL = "move {} to drafts", "add note {} saying ruby", "cancel {}"


def task(*clauses: str, actions: int) -> Task:
    solution = tuple(Action("", (Call("files_move", {"file": str(i), "folder": "x"}),)) for i in range(actions))
    return Task("desk", ", then ".join(clauses), {}, solution)


def test_long_tasks_are_compared_with_their_skills_alone():
    tasks = [
        *(task(MOVE.format(name), actions=2) for name in ("form", "map", "essay", "logo")),
        *(task(NOTE.format(name), actions=2) for name in ("todo", "goals", "memo", "hints")),
        task(MOVE.format("form"), MOVE.format("map"), MOVE.format("logo"), actions=4),
        task(MOVE.format("form"), NOTE.format("todo"), MOVE.format("map"), actions=4),
        task(MOVE.format("essay"), MOVE.format("map"), MOVE.format("form"), actions=4),
        task(MOVE.format("essay"), CANCEL.format("launch"), MOVE.format("form"), actions=4),  # CANCEL is never alone
        task(MOVE.format("essay"), MOVE.format("map"), actions=3),  # not long
    ]
    alone = [True, True, True, False, True, False, False, False]
    found = composition(tasks, [*alone, True, False, False, True, True], 4)
    assert found is not None
    # Moving is solved in three of four tasks, adding a note in one.
    independent = (2 * 0.75**3 + 0.75**2 * 0.25) / 3
    assert dataclasses.astuple(found) == pytest.approx((3, 1 / 3, independent, 2, 1 / 2, 0.75**3))


def test_without_a_long_or_a_mastered_task_there_is_no_share():
    short = [task(MOVE.format("form"), actions=2)]
    assert composition(short, [True], 4) is None
    found = composition([*short, task(MOVE.format("form"), MOVE.format("map"), actions=4)], [False, False], 4)
    assert found is not None
    assert (found.tasks, found.solved, found.mastered) == (1, 0.0, 0)
    assert math.isnan(found.mastered_solved)
    assert command._cells(found)[3:] == ["0", "–", "–"]


def test_the_command_prints_a_row_an_arm_and_says_what_it_cannot_do(capsys, tmp_path):
    assert main(["--arms=rft-growing,sft"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows[2:]] == ["| rft-growing", "| sft"]
    solved, independent = (float(rows[2][column].removesuffix(" %")) for column in (3, 4))
    assert solved == pytest.approx(19.1, abs=0.05)  # the 156 long tasks of six runs
    assert independent > solved
    for flags, said in (
        (["--arms=nosuch"], "no record of arm 'nosuch'"),
        (["--arms=sft", f"--out={tmp_path}"], "no record of arm 'sft'"),
        (["--arms=wide-uniform"], "wide-uniform is of a grown desk"),
        (["--arms=sft", "--actions=40"], "no held-out task of sft has 40 actions"),
        (["--arms=sft,uniform"], "no seed has a record of each of sft, uniform"),
    ):
        assert main(flags) == 2
        assert said in capsys.readouterr().err


def test_arms_are_compared_over_the_seeds_that_all_have(capsys):
    assert main(["--arms=static,feedback"]) == 0  # feedback has the seeds 401 to 406 of another table too
    runs = [line.split(" | ")[1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert runs == ["12", "12"]


def test_bits_of_other_tasks_than_todays_are_refused_by_their_run():
    one = record("feedback", 101, 0.5)  # its digest is of no tasks of the desk
    one["config"]["evaluation"]["tasks"] = 4
    with pytest.raises(ValueError, match=r"feedback-101 was evaluated on other tasks .* make arm feedback again"):
        of_records([one], 4)

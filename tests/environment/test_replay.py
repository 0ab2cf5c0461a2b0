from records import DESK, call

import environments
from cojax.environment.replay import replay
from cojax.types import Task

DESK_TASK = Task("desk", "move report to taxes", DESK)


def test_a_replay_keeps_every_state_and_knows_which_actions_changed_it() -> None:
    actions = (
        call("files_read", file="report"),
        call("files_move", file="report", folder="taxes"),
        call("files_move", file="report", folder="taxes"),  # refused: it is there already
        call("finish", answer="amber"),
    )
    run = replay(environments.load("desk"), DESK_TASK, actions)
    assert len(run.states) == 5
    assert [turn.observation.ok for turn in run.trajectory.turns] == [True, True, False, True]
    assert run.effective == (1,)
    assert not run.complete


def test_a_replay_is_complete_when_all_worked_and_the_last_action_ended_it() -> None:
    desk = environments.load("desk")
    move = call("files_move", file="report", folder="taxes")
    assert replay(desk, DESK_TASK, (move, call("finish"))).complete
    assert not replay(desk, DESK_TASK, (move,)).complete

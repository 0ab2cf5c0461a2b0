"""Losses of a child: the policy's where its code runs, once they come again; elsewhere where an action may cause them.

What serves the child is never to blame the policy for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from worker_trials import at_once

from cojax.environment import Actor, Environment, Episode, play, runs_policy_code
from cojax.environment.replay import follow, replay
from cojax.environment.wrapping import Wrapped
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Action, Message, Task, Trajectory, Turn
from environments.worker import Bounds, IsolatedEnvironment, isolate

BOUNDS = Bounds(deadline=0.6, output=2**20, values=20_000)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
OBSERVATION = '{"n":CALL,"value":{"messages":[],"ok":true,"done":false}}\n'


@pytest.fixture(scope="module")
def declared() -> Iterator[IsolatedEnvironment]:
    environment = isolate("liar", bounds=BOUNDS, runs_policy_code=True)
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def undeclared() -> Iterator[IsolatedEnvironment]:
    environment = isolate("liar", bounds=BOUNDS)
    yield environment
    environment.close()


def task(**setup: object) -> Task:
    return Task("liar", "", setup)


def once(environment: Environment, **setup: object) -> Trajectory:
    """Two steps; the second after a while where something befalls the child between them."""
    pause = 0.4 if setup.get("op") == "between" else 0.0

    def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if messages[0].role == "tool":
            time.sleep(pause)
        return Turn(Action("on"))

    return play(environment, task(**setup), act, max_turns=2)


class Steady:
    """Actors that always do the same; counts the sessions."""

    def __init__(self) -> None:
        self.sessions: list[str] = []

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        self.sessions.append(session)
        return follow([Action("on")] * 2)

    def release(self, session: str) -> None:
        pass


def collected(environment: Environment, tasks: Sequence[Task], **limits: float) -> tuple[list[Trajectory], list[str]]:
    """One episode of each task, and the sessions that it took."""
    actors = Steady()
    limits = {"max_turns": 2, "error_rate": 1.0, **limits}
    collector = EpisodeCollector(actors, environment, Limits(**limits))  # type: ignore[arg-type]
    groups = collector.collect(tasks, seed=(0,), label="0")
    return [group.trajectories[0] for group in groups], actors.sessions


def test_the_declaration_passes_through_wrappers(declared, undeclared):
    for environment, said in ((declared, True), (undeclared, False)):
        assert runs_policy_code(environment) is said
        assert runs_policy_code(Wrapped(Wrapped(environment, environment.start), environment.start)) is said


# What a child's code may do, and what it looks like where nothing is declared: inside `step`, and in `evaluate`.
LOSSES = {
    "death": ({"ending": "exit"}, "timeout"),
    "silence": ({"ending": "hang"}, "timeout"),
    "an exception": ({"ending": "raise"}, "environment_error"),
    "a forged failure": ({"head": '{"n":CALL,"failure":"ENVIRONMENT","message":"x"}\n'}, "environment_error"),
    "a forged loss": ({"head": '{"n":CALL,"failure":"LOST","message":"x"}\n'}, "environment_error"),
    "a forged loss of the host": ({"head": '{"n":CALL,"failure":"HOST","message":"x"}\n'}, "environment_error"),
    "a failure that is none": ({"head": '{"n":CALL,"failure":{},"message":7}\n'}, "timeout"),
    "text that is no JSON": ({"head": "hello\n"}, "timeout"),
    "a reply to another call": ({"head": '{"n":77,"value":{}}\n'}, "timeout"),
    "content of a wrong type": (
        {"head": '{"n":CALL,"value":{"messages":[{"role":"tool","content":5}],"ok":true,"done":false}}\n'}, "timeout",
    ),
    "a role of a wrong type": (
        {"head": '{"n":CALL,"value":{"messages":[{"role":{},"content":"x"}],"ok":true,"done":false}}\n'}, "timeout",
    ),
    "no truth value": ({"head": '{"n":CALL,"value":{"messages":[],"ok":"yes","done":false}}\n'}, "timeout"),
    "messages that are text": ({"head": '{"n":CALL,"value":{"messages":"","ok":true,"done":false}}\n'}, "timeout"),
    "an unknown field": ({"head": '{"n":CALL,"value":{"reward":1.0,"done":false}}\n'}, "timeout"),
    "a verdict out of bounds": ({"head": '{"n":CALL,"value":{"reward":7,"checks":[]}}\n'}, "timeout"),
    "a reply too large": ({"body": "x", "times": 2**20 + 9, "tail": "\n"}, "timeout"),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_where_a_policys_code_runs_every_loss_is_its_own(declared, loss):
    setup, _ = LOSSES[loss]
    calls = {"step": 1, "evaluate": 2}
    lost = at_once(*(partial(once, declared, op=op, step=step, **setup) for op, step in calls.items()))
    for op, trajectory in zip(calls, lost, strict=True):
        assert (trajectory.outcome, trajectory.valid, trajectory.reward) == ("timeout", True, 0.0), trajectory.error
        assert trajectory.error.startswith(op)


@pytest.mark.parametrize("loss", LOSSES)
def test_elsewhere_a_loss_inside_step_may_be_the_actions_and_others_are_not(undeclared, loss):
    setup, inside = LOSSES[loss]
    lost = at_once(*(partial(once, undeclared, op=op, step=n, **setup) for op, n in (("step", 1), ("evaluate", 2))))
    assert [trajectory.outcome for trajectory in lost] == [inside, "environment_error"]


BETWEEN = {
    "death": {"ending": "exit"},
    "an answer unasked": {"head": OBSERVATION},
    "half a word": {"head": "x", "ending": "answer"},
    "a word": {"head": "x\n", "ending": "hang"},
}


def test_what_befalls_a_child_between_steps(declared, undeclared):
    worlds = {"timeout": declared, "environment_error": undeclared}
    trials = [(outcome, name) for outcome in worlds for name in BETWEEN]
    lost = at_once(*(partial(once, worlds[outcome], op="between", **BETWEEN[name]) for outcome, name in trials))
    for (outcome, name), trajectory in zip(trials, lost, strict=True):
        assert (trajectory.outcome, trajectory.reward, trajectory.error[:5]) == (outcome, 0.0, "step:"), name


@pytest.mark.parametrize("op", ["state", "affordances"])
@pytest.mark.parametrize("loss", ["death", "silence", "a forged failure", "text that is no JSON"])
def test_a_loss_while_an_explorer_looks_is_the_codes_own(declared, undeclared, op, loss):
    def look(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        getattr(episode, op)()
        return Turn(Action("on"))

    lost = task(op=op, **LOSSES[loss][0])
    played = at_once(*(partial(play, world, lost, look, max_turns=1) for world in (declared, undeclared)))
    assert [trajectory.outcome for trajectory in played] == ["timeout", "environment_error"]


def test_a_loss_at_reset_is_nobodys(declared):
    lost = at_once(*(partial(once, declared, op="reset", **setup) for setup, _ in LOSSES.values()))
    assert [trajectory.outcome for trajectory in lost] == ["environment_error"] * len(LOSSES)


def test_a_loss_is_played_once_more_and_stands_then(declared):
    tasks = [
        task(), task(op="evaluate", step=2, ending="exit"), task(op="step", ending="raise"),
        task(op="reset", ending="exit"),
    ]  # fmt: skip
    found, sessions = collected(declared, tasks)
    assert [(t.outcome, t.valid, t.reward) for t in found] == [
        ("truncated", True, 1.0), ("timeout", True, 0.0), ("timeout", True, 0.0), ("environment_error", False, 0.0)
    ]  # fmt: skip
    assert len(sessions) == 1 + 2 + 2 + 2
    # However many retries the machinery is given.
    for retries, played in ((0, 1 + 2 + 2 + 1), (3, 1 + 2 + 2 + 4)):
        again, sessions = collected(declared, tasks, retries=retries)
        assert [t.outcome for t in again] == [t.outcome for t in found]
        assert len(sessions) == played


def test_a_child_that_stops_itself_is_silent(declared):
    trajectory = once(declared, op="step", step=1, ending="stop")
    # The kernel lets the first process of a namespace stop itself as little as others stop it.
    expected = ("truncated", 1.0) if declared.layers["processes"] else ("timeout", 0.0)
    assert (trajectory.outcome, trajectory.reward) == expected


def test_a_replay_of_a_draft_that_is_lost_proves_nothing(declared):
    run = replay(declared, task(op="state", step=1, ending="exit"), [Action("on")])
    assert (run.trajectory.outcome, run.complete) == ("timeout", False)


def test_no_room_for_a_child_is_never_the_policys_loss():
    world = isolate("liar", bounds=Bounds(deadline=1.0, children=1), runs_policy_code=True)
    first = world.start(task())
    first.reset()
    assert once(world).outcome == "environment_error"
    assert first.step(Action("on")).text == "step 1"
    world.close()

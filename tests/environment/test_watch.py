"""A hanging environment costs an explorer its episode, not the run."""

import time

import pytest
from counter_environment import CounterEnvironment, hang
from patience import patience

from cojax.environment.watch import watched_play
from cojax.types import Action, Call, Task, Turn

TASK = Task("counter", "count to 1", {"target": 1})


def script(*names: str):
    left = iter(names)
    return lambda episode, messages: Turn(Action(calls=(Call(next(left)),)))


def test_an_episode_in_time_is_that_of_play():
    trajectory = watched_play(5.0)(CounterEnvironment(), TASK, script("add", "finish"), max_turns=5, episode="x")
    assert (trajectory.outcome, trajectory.reward, trajectory.episode) == ("finished", 1.0, "x")


def test_a_hang_is_an_environment_error_that_recommends_isolation():
    began = time.monotonic()
    # However long an actor may think.
    watched = watched_play(0.2, act_timeout_s=60.0)
    trajectory = watched(CounterEnvironment(lambda task, step: hang()), TASK, script("add"))
    assert time.monotonic() - began < patience(2)
    assert trajectory.outcome == "environment_error"
    assert trajectory.error.startswith("step took longer than 0.2 s")
    assert "isolated in a worker" in trajectory.error


def test_slow_calls_are_each_within_the_deadline():
    slow = CounterEnvironment(lambda task, step: time.sleep(0.15))
    assert watched_play(0.3)(slow, TASK, script("add", "add", "finish")).outcome == "finished"


def test_a_bug_in_the_actor_is_raised():
    def act(episode, messages):
        raise KeyError("bug")

    with pytest.raises(KeyError):
        watched_play(1.0)(CounterEnvironment(), TASK, act)


def test_an_actor_may_think_longer_than_an_environment_may_take():
    def thinks(episode, messages):
        time.sleep(0.4)
        return Turn(Action(calls=(Call("finish"),)))

    assert watched_play(0.2)(CounterEnvironment(), TASK, thinks).outcome == "environment_error"
    assert watched_play(0.2, act_timeout_s=5.0)(CounterEnvironment(), TASK, thinks).outcome == "finished"
    brief = watched_play(0.2, act_timeout_s=0.3)
    assert brief(CounterEnvironment(), TASK, lambda *_: hang()).error.startswith("act took longer than 0.3 s")  # type: ignore[arg-type]

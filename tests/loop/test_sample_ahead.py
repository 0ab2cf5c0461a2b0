"""Rollouts that run ahead of the update."""

import threading
import time
from types import SimpleNamespace

import pytest
from counter_environment import CounterEnvironment
from patience import patience

from cojax.host.background import await_background
from cojax.loop import Loop, State
from cojax.loop.groups import sample_ahead
from cojax.metrics import Stopwatch
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import word_tokenizer
from cojax.types import Action, Call

ENVIRONMENT = CounterEnvironment()
CHAT = Chat(word_tokenizer([], ["count to", "ok"], ENVIRONMENT.tools()), no_document)
POOL = TaskPool.of(ENVIRONMENT.tasks("train", 4))
STATE = State(0, SimpleNamespace(), POOL, {})


class Patient:
    """Finishes every episode as soon as `free` is set, and counts the completions it was asked for."""

    busy_seconds = 0.0

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.asked = 0

    def generate(self, prompt, sampling, *, session, seed):
        self.asked += 1
        self.begun.set()
        assert self.free.wait(patience(10))
        tokens = CHAT.encode_action(Action(calls=(Call("finish"),)))
        return Completion(tokens, (-0.5,) * len(tokens), 3, "stop")

    def release(self, session):
        pass


def loop(engine, **settings) -> Loop:
    nothing = SimpleNamespace()
    return Loop(
        environment=ENVIRONMENT, engine=engine, chat=CHAT, learner=nothing, explorer=nothing, validate=nothing,
        detectors={}, evolve=nothing, popularity=None, sampling=Sampling(max_tokens=32), limits=Limits(concurrency=4),
        clock=Stopwatch(), seed=0, steps=5, batch_size=2, group_size=4, evolve_every=1, fresh_fraction=0.0, contexts=1,
        budget=1, per_context=1, checkpoint_every=1, **settings,
    )  # fmt: skip


def test_the_next_groups_are_sampled_beside_the_block():
    engine = Patient()
    with sample_ahead(loop(engine, staleness=1), STATE, 2) as groups:
        assert engine.begun.wait(patience(10))
        assert groups == []
        engine.free.set()
    assert [len(group.trajectories) for group in groups] == [4, 4]
    assert [group.task for group in groups] == list(POOL.sample(2, (0, 1)))


@pytest.mark.parametrize(("settings", "step"), [({}, 2), ({"staleness": 1}, 6)])
def test_nothing_is_sampled_ahead_without_need(settings, step):
    engine = Patient()
    with sample_ahead(loop(engine, **settings), STATE, step) as groups:
        assert "ahead" not in [thread.name for thread in threading.enumerate()]
    assert (groups, engine.asked) == ([], 0)


def test_a_failed_update_is_not_held_up_by_what_it_no_longer_needs():
    engine = Patient()
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), sample_ahead(loop(engine, staleness=1), STATE, 2):
        raise ZeroDivisionError
    assert time.monotonic() - began < patience(1)
    assert await_background(10)
    asked = engine.asked
    engine.free.set()
    for thread in threading.enumerate():
        if thread.name.startswith("episode-"):
            thread.join(patience(10))
    assert engine.asked == asked


def test_a_rollout_that_fails_ahead_ends_the_step():
    class Buggy(Patient):
        def generate(self, prompt, sampling, *, session, seed):
            raise KeyError("bug")

    with pytest.raises(KeyError), sample_ahead(loop(Buggy(), staleness=1), STATE, 2):
        pass


@pytest.mark.parametrize("settings", [{"staleness": 2}, {"staleness": -1}, {"quorum": 0.0}, {"quorum": 1.5}])
def test_settings_out_of_bounds_are_named(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is .*expected"):
        loop(Patient(), **settings)

"""The queue of steps: what is sampled beside the trainer, with which weights, and what an error or an end leaves."""

import contextlib
import threading
import time
import weakref

import numpy as np
import pytest
from patience import patience

from cojax.host.background import Interrupted
from cojax.rollout.engine import Weights
from cojax.rollout.step_queue import StepQueue


class Engine:
    """Knows what it has loaded, and by which thread."""

    def __init__(self):
        self.loads: list[tuple[int, float, bool]] = []

    def load(self, weights):
        ((_, array),) = weights.arrays()
        self.loads.append((weights.version, float(array[0]), threading.current_thread() is threading.main_thread()))


def queue(mixed: bool = False, engine: Engine | None = None) -> StepQueue:
    return StepQueue(engine or Engine(), 0, mixed, contextlib.nullcontext)


def weights(version: int, array: np.ndarray) -> Weights:
    return Weights(version, lambda: iter([("w", array)]))


def test_steps_are_sampled_beside_the_trainer_one_after_another_with_their_own_weights():
    engine, frees, array = Engine(), {step: threading.Event() for step in (1, 2, 3)}, np.zeros(1)
    sampled = []

    def play(step):
        def wait_and_tell(stop):
            assert frees[step].wait(patience(10))
            sampled.append((step, engine.loads[-1][0]))
            return [step]

        return wait_and_tell

    with queue(engine=engine) as steps:
        steps.offer(weights(0, array))
        steps.order(play(1))
        steps.order(play(2))
        frees[1].set()
        assert steps.take(1) == [1]
        array[...] = 1.0
        # Step 2 is still being sampled with the weights before.
        threading.Timer(0.05, frees[2].set).start()
        steps.order(play(3))
        steps.offer(weights(1, array))
        array[...] = 2.0  # an update destroys what it was given
        frees[3].set()
        assert steps.drain() == [[2], [3]]
        assert (sampled, steps.last_step) == ([(1, 0), (2, 0), (3, 0)], 3)
        assert engine.loads == [(0, 0.0, True), (1, 1.0, True)]
        # What is offered while the engine is in use waits for the step that is ordered next.
        frees[1].clear()
        steps.order(play(1))
        steps.offer(weights(5, array))
        steps.order(lambda stop: [engine.loads[-1]])
        frees[1].set()
        assert steps.drain()[-1] == [(5, 2.0, False)]


def test_a_copy_is_forgotten_once_it_is_loaded():
    """At staleness 2 the host would hold two copies otherwise: that of the step being sampled, and the newest."""
    engine, free = Engine(), threading.Event()
    copies = []
    load = engine.load
    engine.load = lambda weights: (copies.append(weakref.ref(next(weights.arrays())[1])), load(weights))
    with queue(engine=engine) as steps:
        steps.order(lambda stop: [])
        steps.order(lambda stop: [free.wait(patience(10))])
        steps.offer(weights(1, np.zeros(1)))
        steps.order(lambda stop: [copies[-1]() is None])
        free.set()
        assert steps.drain() == [[], [True], [True]]
    assert [version for version, _, _ in engine.loads] == [1]


def test_with_mixed_weights_are_loaded_while_a_step_is_sampled():
    engine, free = Engine(), threading.Event()
    with queue(mixed=True, engine=engine) as steps:
        steps.order(lambda stop: [free.wait(patience(10))])
        steps.offer(weights(1, np.zeros(1)))
        assert engine.loads == [(1, 0.0, True)]
        free.set()
        assert steps.take(1) == [True]


def test_a_failed_update_is_not_held_up_by_what_it_no_longer_needs():
    begun, ended = threading.Event(), threading.Event()

    def play(stop):
        begun.set()
        while not stop():
            time.sleep(0.01)
        ended.set()
        raise Interrupted

    def update():
        with queue() as steps:
            steps.order(play)
            steps.order(play)
            assert begun.wait(patience(10))
            raise ZeroDivisionError

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        update()
    assert time.monotonic() - began < patience(1)
    assert ended.wait(patience(10))


def test_an_error_is_raised_where_its_step_is_waited_for():
    def fail(stop):
        raise KeyError("bug")

    with queue() as steps:
        steps.order(lambda stop: ["fine"])
        steps.order(fail)
        assert steps.take(1) == ["fine"]
        with pytest.raises(KeyError):
            steps.offer(weights(1, np.zeros(1)))
        with pytest.raises(KeyError):
            steps.drain()


def test_seconds_that_the_trainer_waits_and_that_a_step_is_sampled_are_counted():
    free = threading.Event()
    with queue() as steps:
        steps.order(lambda stop: [free.wait(patience(10))])
        threading.Timer(0.2, free.set).start()
        steps.take(1)
        assert 0.1 < steps.waits.total_seconds < patience(5)
        assert 0.1 < steps.samples.total_seconds < patience(5)
        sampled_s = steps.samples.total_seconds
        time.sleep(0.05)
        assert steps.samples.total_seconds == sampled_s

"""The queue of steps: a thread samples the groups of coming steps in order, each with exactly the weights it is due.

It samples one step at a time, so that an engine holds one version of the weights at a time. Weights that come while
earlier steps are still to be sampled are copied to the host's memory, and loaded when their step comes.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np

from cojax.rollout.engine import BusyTime, Engine, Weights
from cojax.types import Group

# Gives the groups of a step. The argument tells whether they are no longer wanted; it then raises Interrupted.
Play = Callable[[Callable[[], bool]], Sequence[Group]]


@dataclasses.dataclass(eq=False)
class StepQueue:
    """Samples the steps after `last_step` as they are ordered, each with the weights that were last offered before.

    With `mixed`, the engine takes weights as soon as they are offered, whatever it is sampling. The block `time_wait()`
    measures what the trainer waits. An error of a step is raised where its groups are waited for. One thread, the
    trainer's, calls all methods.
    """

    engine: Engine
    last_step: int
    mixed: bool
    time_wait: Callable[[], AbstractContextManager[None]]

    def __post_init__(self) -> None:
        self._futures: dict[int, Future[Sequence[Group]]] = {}  # by step, of those that are not taken
        self._copy: Weights | None = None  # the last weights, until the engine is told to load them
        self._thread, self._is_closed = ThreadPoolExecutor(1, "rollouts"), threading.Event()
        self.waits, self.samples = BusyTime(), BusyTime()  # of the trainer for groups; of the thread, on some step

    def __enter__(self) -> "StepQueue":
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Ends the thread. After an error nothing waits for the step that it samples."""
        self._is_closed.set()
        self._thread.shutdown(wait=error_type is None, cancel_futures=True)

    def offer(self, weights: Weights) -> None:
        """Takes the weights for the steps that are ordered next; `weights` may become invalid when this returns.

        Waits for the first step that is not taken, which the trainer needs next. So at staleness N at most N − 1 copies
        exist, besides the one that the engine is loading, and none at 1.
        """
        if not self.mixed:
            self._wait(list(self._futures)[:1])
        if self.mixed or all(future.done() for future in self._futures.values()):
            self.engine.load(weights)
            self._copy = None
        else:
            arrays = [(name, np.array(array)) for name, array in weights.arrays()]
            self._copy = Weights(weights.version, lambda: iter(arrays))

    def order(self, play: Play) -> None:
        """Has the next step sampled by `play`."""
        copies, self._copy = [self._copy] if self._copy else [], None
        self.last_step += 1
        self._futures[self.last_step] = self._thread.submit(self._sample, copies, play)

    def take(self, step: int) -> Sequence[Group]:
        """The groups of the step, once they are sampled; the queue forgets them."""
        self._wait([step])
        return self._futures.pop(step).result()

    def drain(self) -> Sequence[Sequence[Group]]:
        """Waits until all steps ordered are sampled and the engine holds the last weights.

        Returns the groups of the steps that are not taken. Until the next order the engine is the caller's.
        """
        self._wait(self._futures)
        copy, self._copy = self._copy, None
        if copy is not None:
            self.engine.load(copy)
        return [future.result() for future in self._futures.values()]

    def _wait(self, steps: Iterable[int]) -> None:
        with self.time_wait(), self.waits:
            for step in steps:
                self._futures[step].result()

    def _sample(self, copies: list[Weights], play: Play) -> Sequence[Group]:
        """Loads the copy, if there is one, and forgets it before the step is played."""
        with self.samples:
            while copies:
                self.engine.load(copies.pop())
            return play(self._is_closed.is_set)

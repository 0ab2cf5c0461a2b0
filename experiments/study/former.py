"""The former rule of selection, for the arm `feedback-before` alone: what the mend of `even` changes.

It is chosen as synthesis.select=experiments.study.former:first_place. No run but a study's should choose it.
"""

import random
from collections.abc import Iterable

from cojax.synthesis.evolutions import Confidence
from cojax.types import Signal


def first_place(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """At most `budget` signals, one for each task and kind, taken from the kinds in turn, by the former rule.

    The signals of a kind are shuffled, and a task has the place of its first one. The last place is taken first, so
    tasks with few signals are preferred. Of a task's signals the last one is kept. `confidence` is not asked.
    """
    rng = random.Random(repr(("select", seed)))
    kinds: dict[str, list[Signal]] = {}
    for signal in signals:
        kinds.setdefault(signal.kind, []).append(signal)
    queues: list[list[Signal]] = []
    for kind in sorted(kinds):
        rng.shuffle(kinds[kind])
        queues.append(list({signal.task: signal for signal in kinds[kind]}.values()))
    chosen: list[Signal] = []
    while len(chosen) < budget and any(queues):
        chosen += [queue.pop() for queue in queues if queue][: budget - len(chosen)]
    return tuple(chosen)

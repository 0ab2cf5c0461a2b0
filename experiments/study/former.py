"""The former rule of selection, for the arm `feedback-before` alone, to measure what correcting `even` changes.

The arm sets synthesis.select=experiments.study.former:first_place. Only runs of the study should use it.
"""

import random
from collections.abc import Iterable

from cojax.synthesis.evolutions import Confidence, take_in_turn
from cojax.types import Signal


def first_place(signals: Iterable[Signal], budget: int, seed: tuple, confidence: Confidence) -> tuple[Signal, ...]:
    """Selects at most `budget` signals, one for each task and kind, from the kinds in turn, by the former rule.

    The signals of a kind are shuffled, and a task has the place of its first signal. The last place is taken first, so
    tasks with few signals are preferred. The last signal of a task is kept. `confidence` is not used.
    """
    rng = random.Random(repr(("select", seed)))

    def order_signals(signals_of_kind: list[Signal]) -> list[Signal]:
        rng.shuffle(signals_of_kind)
        return list({signal.task: signal for signal in signals_of_kind}.values())

    return take_in_turn(signals, budget, order_signals)

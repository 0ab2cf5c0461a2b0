"""What an arm and a table of the study are."""

from __future__ import annotations

import dataclasses

from .runs import Settings

EVALUATION_SEEDS = (101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112)
DEFAULT_SEEDS = 6


@dataclasses.dataclass(frozen=True)
class Arm:
    """What one arm changes of the common settings, and what it is called in tables."""

    title: str
    settings: Settings


@dataclasses.dataclass(frozen=True)
class Table:
    """A question, its arms, and the paired differences (one, other), meaning one − other, that answer it.

    `settings` are shared by all its arms, beside COMMON; the default seeds are the first `count` of `seeds`. The page
    compares budgets with those of the arm `reference`, where it is one of its arms.
    """

    title: str
    arms: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    settings: Settings = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = EVALUATION_SEEDS
    count: int = DEFAULT_SEEDS
    reference: str = "feedback"

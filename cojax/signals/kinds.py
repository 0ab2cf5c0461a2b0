"""What a kind of signal is made of beside its detector: what it asks of an explorer, and how far it is to be trusted.

A signal of one visit may be luck: of eight attempts at a task that is all but mastered one may fail. How far to trust
it follows from the Beta posterior over the task's success rate p after s successes and f failures,

    p ~ Beta(1 + s, 1 + f).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scipy.special import betainc


@dataclasses.dataclass(frozen=True)
class Guidance:
    """What a kind of context asks of an explorer.

    `rehearse` is the share of runs that follow the task's solution, the others wander about the focus; `change` is the
    chance that a rehearsed step is dropped or replaced. `objectives` are worded around {tools}. An explorer with a
    model is also told the `reason` why a record was chosen, before it reflects on it, and the `purpose` of going back.
    Raises ValueError for a share outside [0, 1] and for an objective that names anything else than {tools}.
    """

    objectives: tuple[str, ...]
    reason: str
    purpose: str
    rehearse: float = 0.5
    change: float = 0.35

    def __post_init__(self) -> None:
        for name, share in (("rehearse", self.rehearse), ("change", self.change)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"guidance: {name} is {share}; expected a share from 0 to 1")
        self.worded("")

    def worded(self, tools: str) -> tuple[str, ...]:
        """The objectives about these tools."""
        try:
            return tuple(objective.format(tools=tools) for objective in self.objectives)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"guidance: an objective may name {{tools}} alone, found {error}") from error


# What is asked where no signal points at a trajectory.
TRAJECTORY = Guidance(
    objectives=("make near variations of this trajectory", "vary {tools} and the tools beside them"),
    reason="The record was picked at random. Find what in it is worth practising.",
    purpose="Purpose: variation. Make near variations of this task, with the same and with neighbouring operations.",
)


@dataclasses.dataclass(frozen=True)
class Visit:
    """One visit of a task: the step, and how many of its valid trajectories succeeded and failed (may be shares)."""

    step: int
    solved: float
    failed: float


def above(rate: float, visits: Sequence[Visit]) -> float:
    """P(p ≥ rate) by these visits."""
    solved, failed = sum(visit.solved for visit in visits), sum(visit.failed for visit in visits)
    return float(1.0 - betainc(1.0 + solved, 1.0 + failed, rate))


def step_of(episode: str) -> int:
    """The step of an episode id STEP-TASK-SAMPLE; 0 for another one."""
    head = episode.partition("-")[0]
    return int(head) if head.isdigit() else 0

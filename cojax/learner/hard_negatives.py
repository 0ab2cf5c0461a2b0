"""Hard negatives of a step's own groups, as a second loss beside that of the groups."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from cojax.learner.batch import TrainBatch
from cojax.learner.losses import LOSSES
from cojax.learner.packing import capacity
from cojax.learner.pairs import Pair, draw_pairs, pack_drawn
from cojax.learner.reading import BoundLoss, bind
from cojax.policy.moe import RouteShape
from cojax.types import Group


@dataclasses.dataclass(frozen=True)
class HardNegatives:
    """Adds `weight` · DPO of pairs of a success and a hard negative of the same group to a step's loss.

    A hard negative is a failure whose partial reward is at least `least`. The reference of DPO, whose β is `beta`, is
    the policy before the step.
    """

    weight: float
    beta: float = 0.1
    least: float = 0.6

    @functools.cached_property
    def loss(self) -> BoundLoss:
        return bind("dpo", LOSSES, {"beta": self.beta})

    def rows(self, sizes: Sequence[int], micro_rows: int) -> int:
        """Rows of the batch of a step whose groups have `sizes` trajectories."""
        return capacity(sum(sizes), 2, micro_rows)

    def pack(
        self,
        groups: Sequence[Group],
        seed: tuple[int, int],
        row_length: int,
        micro_rows: int,
        sizes: Sequence[int],
        routes: RouteShape | None,
    ) -> tuple[TrainBatch, dict[str, float]]:
        """The pairs of a step as a batch, with the numbers of failures, of hard negatives, and of pairs of these.

        `sizes` and `routes` are as in `Objective.batches`.
        """
        drawn = [pair for group in groups for pair in draw_pairs(group, seed, self.least)]
        pairs = [Pair(better, worse, self.weight) for better, worse in drawn]
        failures = [t for group in groups for t in group.valid if t.reward < 1.0]
        rows = self.rows(sizes or [len(group.trajectories) for group in groups], micro_rows)
        facts = {
            "failures": float(len(failures)),
            "hard_negatives": float(sum(trajectory.partial >= self.least for trajectory in failures)),
            "hard_pairs": float(len(pairs)),
        }
        return pack_drawn(pairs, row_length, micro_rows, rows=rows, routes=routes), facts

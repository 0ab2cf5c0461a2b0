"""The objective of a learner: a loss, an advantage and a weighting with their settings; packs a step's batches."""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.learner.advantages import ADVANTAGES
from cojax.learner.batch import TrainBatch
from cojax.learner.bound_loss import BoundLoss, bind
from cojax.learner.losses import LOSSES
from cojax.learner.packing import Pair, capacity, draw_pairs, pack, pack_examples, pack_pairs, round_up, staleness
from cojax.learner.weightings import WEIGHTINGS
from cojax.policy.moe import RouteShape
from cojax.registry import check_settings, find
from cojax.types import Group

ADVANTAGE, WEIGHTING = "group_relative", "group_token_mean"


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """Loss, advantage and weighting; the groups of a step are split over `splits` batches."""

    loss: BoundLoss
    advantage: Callable[..., Any]
    weighting: Callable[..., Any]
    splits: int = 1

    def batches(
        self,
        groups: Sequence[Group],
        seed: tuple[int, int],
        row_length: int,
        micro_rows: int,
        sizes: Sequence[int] = (),
        routes: RouteShape | None = None,
    ) -> tuple[list[TrainBatch], dict[str, float]]:
        """Packs the batches of a step, and counts what went into all of them; `seed` is (seed, step).

        `sizes` are the group sizes of the largest batch that a step may have; () takes those of `groups`. They fix the
        number of rows. `routes` is as in `pack`. Raises what `pack` raises.
        """
        packed = []
        rows = self.rows(sizes or [len(group.trajectories) for group in groups], micro_rows)
        for part in self._deal(groups, seed):
            if self.loss.pairs:
                batch, facts = pack_pairs(part, seed, row_length, micro_rows, rows=rows, routes=routes)
            else:
                batch, facts = pack(
                    part,
                    self.advantage,
                    row_length,
                    micro_rows,
                    weighting=self.weighting,
                    skip_flat=not self.loss.flat_groups,
                    together=self.loss.together,
                    rows=rows,
                    routes=routes,
                )
            packed.append((batch, facts | staleness(batch, seed[1])))
        return [batch for batch, _ in packed], _sum_facts([facts for _, facts in packed], row_length)

    def rows(self, sizes: Sequence[int], micro_rows: int) -> int:
        """Rows of each batch of a step whose groups have `sizes` trajectories."""
        each = -(-len(sizes) // self.splits)
        if self.loss.together:
            return capacity(each, max(sizes, default=1), micro_rows)
        most = sum(sorted(sizes, reverse=True)[:each])
        return capacity(most, 2, micro_rows) if self.loss.pairs else round_up(most, micro_rows)

    def _deal(self, groups: Sequence[Group], seed: tuple[int, int]) -> list[list[Group]]:
        """Splits the groups over the splits: whole groups, drawn by the seed where there is more than one."""
        if self.splits == 1:
            return [list(groups)]
        order = list(range(len(groups)))
        random.Random(repr((*seed, "parts"))).shuffle(order)
        return [[groups[index] for index in sorted(order[part :: self.splits])] for part in range(self.splits)]


def objective(
    loss: BoundLoss,
    advantage: str,
    advantage_settings: Mapping[str, Any],
    weighting: str,
    weighting_settings: Mapping[str, Any],
    splits: int,
) -> Objective:
    """The objective of a loss, and of an advantage and a weighting by name.

    Raises ValueError for an unknown name or setting, and for an advantage or a weighting beside a loss of pairs.
    """
    if loss.pairs and (advantage != ADVANTAGE or advantage_settings):
        raise ValueError(
            f"loss {loss.name!r} learns from pairs, whose advantages are 1 and -1; remove advantage={advantage!r} and "
            "its settings"
        )
    if loss.pairs and (weighting != WEIGHTING or weighting_settings):
        raise ValueError(
            f"loss {loss.name!r} gives every pair the same weight; remove weighting={weighting!r} and its settings"
        )
    return Objective(
        loss,
        _bind_settings("advantage", advantage, ADVANTAGES, advantage_settings),
        _bind_settings("weighting", weighting, WEIGHTINGS, weighting_settings),
        splits,
    )


def _bind_settings(kind: str, name: str, table: Mapping[str, Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """The table's entry of that name, with its settings bound."""
    function = find(kind, name, table)
    return functools.partial(function, **check_settings(kind, name, function, settings))


def _sum_facts(facts: Sequence[Mapping[str, float]], row_length: int) -> dict[str, float]:
    """Adds up counts over the parts of a step; `staleness` is the mean over tokens, `fill` that of all live rows."""
    if len(facts) == 1:
        return dict(facts[0])
    names = dict.fromkeys(name for one in facts for name in one if name not in ("fill", "staleness", "staleness_max"))
    total = {name: sum(one[name] for one in facts) for name in names}
    total["fill"] = total["tokens_processed"] / (total["rows"] * row_length) if total["rows"] else 0.0
    behind = [one for one in facts if "staleness" in one]
    if behind:
        tokens = sum(one["tokens_trained"] for one in behind)
        total["staleness"] = sum(one["staleness"] * one["tokens_trained"] for one in behind) / tokens
        total["staleness_max"] = max(one["staleness_max"] for one in behind)
    return total


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
        return pack_examples(pairs, row_length, micro_rows, rows=rows, routes=routes), facts

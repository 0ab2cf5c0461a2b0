"""Draws and packs pairs of trajectories of one task, for losses that learn from preferences."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import numpy as np

from cojax.learner.batch import TrainBatch
from cojax.learner.packing import Segment, describe, pack_segments, sampled_mask, segment_of
from cojax.learner.weightings import check_weights, group_token_mean
from cojax.policy.moe import RouteShape
from cojax.types import Group, Trajectory


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two trajectories of one task, the first of which is preferred; `weight` multiplies the loss of the pair."""

    better: Trajectory
    worse: Trajectory
    weight: float = 1.0


def draw_pairs(group: Group, seed: tuple[int, int], least: float = 0.0) -> list[tuple[Trajectory, Trajectory]]:
    """(success, failure) for each failure of a group that has a success, of at least `least` partial reward.

    A success has reward 1. Which success is drawn depends on the seed, the task and the number of the failure in its
    group. Invalid trajectories and those without a sampled token are in no pair.
    """
    usable = [(number, t) for number, t in enumerate(group.trajectories) if t.valid and sampled_mask(t).any()]
    successes = [trajectory for _, trajectory in usable if trajectory.reward >= 1.0]
    return [
        (random.Random(repr((*seed, group.task.id, number))).choice(successes), trajectory)
        for number, trajectory in usable
        if trajectory.reward < 1.0 and trajectory.partial >= least and successes
    ]


def pack_pairs(
    groups: Sequence[Group],
    seed: tuple[int, int],
    row_length: int,
    micro_rows: int,
    *,
    rows: int,
    routes: RouteShape | None = None,
) -> tuple[TrainBatch, dict[str, float]]:
    """Packs the pairs of a step's groups as `pack_drawn` does, and counts what went into the batch."""
    drawn = [draw_pairs(group, seed) for group in groups]
    pairs = [Pair(better, worse) for found in drawn for better, worse in found]
    batch = pack_drawn(pairs, row_length, micro_rows, rows=rows, routes=routes)
    facts = {
        "groups": sum(len(group.valid) >= 2 for group in groups),
        "groups_live": sum(bool(found) for found in drawn),
        "groups_dropped": sum(len(group.valid) < 2 for group in groups),
        "trajectories_invalid": sum(not t.valid for group in groups for t in group.trajectories),
        "pairs": len(pairs),
    }
    return batch, {**{name: float(count) for name, count in facts.items()}, **describe(batch)}


def pack_drawn(
    pairs: Sequence[Pair], row_length: int, micro_rows: int, *, rows: int, routes: RouteShape | None = None
) -> TrainBatch:
    """Packs pairs, each of which has a sampled token on both sides. The two of a pair share a micro-batch.

    Each pair is a group of its own, with advantage 1 for the better and -1 for the worse. A token of a pair weighs the
    pair's weight / (pairs · tokens of the pair). B is `rows`, at least as many as `capacity` says; `routes` is as in
    `pack`. Raises what `assign_rows` raises.
    """
    tasks = {id: number for number, id in enumerate(dict.fromkeys(pair.better.task.id for pair in pairs))}
    lengths = [np.array([int(sampled_mask(t).sum()) for t in (pair.better, pair.worse)], np.int64) for pair in pairs]
    weights = check_weights(group_token_mean(lengths), lengths) if pairs else []
    segments: list[Segment] = []
    for number, pair in enumerate(pairs):
        for side, trajectory in enumerate((pair.better, pair.worse)):
            learned = sampled_mask(trajectory)
            credit = np.full(len(learned), (1.0, -1.0)[side])
            ids = {"sequences": len(segments), "tasks": tasks[trajectory.task.id], "groups": number, "group_sizes": 2}
            weight = pair.weight * weights[number][side]
            segments.append(segment_of(trajectory, learned, weight, credit, number, routes, **ids))
    return pack_segments(segments, row_length, micro_rows, rows, routes)

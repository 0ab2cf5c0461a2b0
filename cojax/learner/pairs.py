"""Draws and packs pairs of a success and a failure of one group, for losses that learn from preferences."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from cojax.learner.batch import TrainBatch, describe, pack_segments, sampled_mask, segment_of
from cojax.learner.packing import Segment
from cojax.learner.weightings import check_weights, group_token_mean
from cojax.policy.routes import RouteShape
from cojax.types import Group, Trajectory


def draw_pairs(group: Group, seed: tuple[int, int]) -> list[tuple[Trajectory, Trajectory]]:
    """(success, failure) for each failure of a group that has a success.

    A success has reward 1. Which success is drawn depends on the seed, the task and the number of the failure in its
    group. Invalid trajectories and those without a sampled token are in no pair.
    """
    usable = [(number, t) for number, t in enumerate(group.trajectories) if t.valid and sampled_mask(t).any()]
    successes = [trajectory for _, trajectory in usable if trajectory.reward >= 1.0]
    return [
        (random.Random(repr((*seed, group.task.id, number))).choice(successes), trajectory)
        for number, trajectory in usable
        if trajectory.reward < 1.0 and successes
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
    """Packs the pairs of a step, and counts what went into the batch. The two of a pair share a micro-batch.

    Each pair is a group of its own, with advantage 1 for the better and -1 for the worse. All pairs weigh the same: a
    token of a pair weighs 1 / (pairs · tokens of the pair). B is `rows`, at least as many as `capacity` says; `routes`
    is as in `pack`. Raises what `assign_rows` raises.
    """
    drawn = [draw_pairs(group, seed) for group in groups]
    pairs = [(group, pair) for group, found in zip(groups, drawn, strict=True) for pair in found]
    tasks = {id: number for number, id in enumerate(dict.fromkeys(group.task.id for group, _ in pairs))}
    lengths = [np.array([int(sampled_mask(t).sum()) for t in pair], np.int64) for _, pair in pairs]
    weights = check_weights(group_token_mean(lengths), lengths) if pairs else []
    segments: list[Segment] = []
    for number, (group, pair) in enumerate(pairs):
        for side, trajectory in enumerate(pair):
            learned = sampled_mask(trajectory)
            credit = np.full(len(learned), (1.0, -1.0)[side])
            ids = {"sequences": len(segments), "tasks": tasks[group.task.id], "groups": number, "group_sizes": 2}
            segments.append(segment_of(trajectory, learned, weights[number][side], credit, number, routes, **ids))
    batch = pack_segments(segments, row_length, micro_rows, rows, routes)
    facts = {
        "groups": sum(len(group.valid) >= 2 for group in groups),
        "groups_live": sum(bool(found) for found in drawn),
        "groups_dropped": sum(len(group.valid) < 2 for group in groups),
        "trajectories_invalid": sum(not t.valid for group in groups for t in group.trajectories),
        "pairs": len(pairs),
    }
    return batch, {**{name: float(count) for name, count in facts.items()}, **describe(batch)}

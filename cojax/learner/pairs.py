"""Pairs of trajectories of one group, for losses that learn which of two is better."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from cojax.learner.batch import TrainBatch, arrays, describe, sampled, sequence
from cojax.learner.packing import Segment
from cojax.learner.weightings import group_token_mean, weighed
from cojax.policy.routes import RouteShape
from cojax.types import Group, Trajectory


def draw_pairs(group: Group, seed: tuple[int, int]) -> list[tuple[Trajectory, Trajectory]]:
    """(success, failure) for each failure of a group, where it has a success at all: which one is drawn by the seed,
    the task, and the failure's place. A success has reward 1; what the policy wrote nothing in is in no pair."""
    told = [(number, t) for number, t in enumerate(group.trajectories) if t.valid and sampled(t).any()]
    successes = [trajectory for _, trajectory in told if trajectory.reward >= 1.0]
    return [
        (random.Random(repr((*seed, group.task.id, number))).choice(successes), trajectory)
        for number, trajectory in told
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
    """The batch of a step's pairs, and what went into it. Both of a pair share a micro-batch.

    Each pair is a group of its own, with advantage 1 for the better and -1 for the worse, and weighs the same: a token
    of a pair weighs 1 / (pairs · tokens of the pair). B is `rows`, of which `capacity` says how many there must
    be, `routes` as of `pack`. Raises what `place` raises.
    """
    drawn = [(group, draw_pairs(group, seed)) for group in groups]
    pairs = [(group, pair) for group, found in drawn for pair in found]
    tasks = {id: number for number, id in enumerate(dict.fromkeys(group.task.id for group, _ in pairs))}
    lengths = [np.array([int(sampled(t).sum()) for t in pair], np.int64) for _, pair in pairs]
    weights = weighed(group_token_mean(lengths), lengths) if pairs else []
    segments: list[Segment] = []
    for number, (group, pair) in enumerate(pairs):
        for side, trajectory in enumerate(pair):
            learned = sampled(trajectory)
            credit = np.full(len(learned), (1.0, -1.0)[side])
            ids = {"sequences": len(segments), "tasks": tasks[group.task.id], "groups": number, "group_sizes": 2}
            segments.append(sequence(trajectory, learned, weights[number][side], credit, number, routes, **ids))
    batch = arrays(segments, row_length, micro_rows, rows, routes)
    facts = {
        "groups": sum(len(group.valid) >= 2 for group in groups),
        "groups_live": sum(bool(found) for _, found in drawn),
        "groups_dropped": sum(len(group.valid) < 2 for group in groups),
        "trajectories_invalid": sum(not t.valid for group in groups for t in group.trajectories),
        "pairs": len(pairs),
    }
    return batch, {**{name: float(count) for name, count in facts.items()}, **describe(batch)}

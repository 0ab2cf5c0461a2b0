"""Groups of episodes → packed arrays. The loss's normalisation travels with them as weights.

Several trajectories share a row, told apart by segment ids, so that little is spent on padding. All arrays made here
are NumPy's, on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from cojax.learner.advantages import Advantage
from cojax.types import Group, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """B rows of T tokens, NumPy on the host and JAX arrays inside jit. Any leading axes are allowed.

    tokens: int32[B, T], 0 where there is none.
    segment_ids: int32[B, T]; 1, 2, … for the sequences of a row, 0 = padding, which only ends a row.
    positions: int32[B, T], the place of a token in its own sequence.
    advantages: float32[B, T], constant over a trajectory.
    sampler_logprobs: float32[B, T], log π of the sampler where it acted, 0 elsewhere.
    versions: int32[B, T], the weights that sampled the token, -1 where none did.
    reference_logprobs, old_logprobs: float32[B, T], filled by the learner where the loss needs them.
    weights: float32[B, T], > 0 exactly at the tokens that are learned from; loss = Σ weights · per-token loss.
    """

    tokens: Any
    segment_ids: Any
    positions: Any
    advantages: Any
    sampler_logprobs: Any
    versions: Any
    reference_logprobs: Any
    old_logprobs: Any
    weights: Any


@dataclasses.dataclass(frozen=True)
class Segment:
    """One trajectory before packing: tokens int[n], mask bool[n] of what is learned from, logprobs float[n], versions
    int[n] of the weights that sampled."""

    name: str
    tokens: Sequence[int]
    mask: Sequence[bool]
    logprobs: Sequence[float]
    versions: Sequence[int]
    advantage: float
    weight: float


def pack(
    groups: Sequence[Group],
    advantage: Advantage,
    row_length: int,
    rows_multiple: int = 1,
    *,
    skip_flat: bool = True,
) -> tuple[TrainBatch, dict[str, float]]:
    """The batch of one step, and what went into it.

    Only valid trajectories count, and only groups with two or more of them. With G such groups, a token of trajectory
    k in a group weighs 1 / (G · Σ_k|τ_k|): each group averages over its own tokens, and the batch over groups
    (CoEvolve, Eq. 1). Groups whose advantages are all 0 count in G; with `skip_flat` they are left out of the arrays
    (right only without a KL term). A group is live where its rewards differ.

    B is the number of trajectories given, rounded up to `rows_multiple`: it depends on nothing that was sampled, so
    that one compiled update serves every step. Live rows come first.

    Raises ValueError for a trajectory longer than a row, and for one whose log-probs and tokens differ in number.
    """
    capacity = sum(len(group.trajectories) for group in groups)
    usable = [group for group in groups if len(group.valid) >= 2]
    live = [group for group in usable if len({t.reward for t in group.valid}) > 1]
    segments: list[Segment] = []
    for group in usable:
        values = advantage(np.array([t.reward for t in group.valid], np.float64))
        if skip_flat and not values.any():
            continue
        length = sum(len(turn.action_tokens) for t in group.valid for turn in t.turns)
        segments += [
            _sequence(trajectory, float(value), 1.0 / (len(usable) * length))
            for trajectory, value in zip(group.valid, values, strict=True)
            if any(turn.action_tokens for turn in trajectory.turns)
        ]
    batch = _arrays(segments, row_length, _round_up(capacity, rows_multiple))
    facts = {
        "groups": len(usable),
        "groups_live": len(live),
        "groups_dropped": len(groups) - len(usable),
        "trajectories_invalid": capacity - sum(len(group.valid) for group in groups),
    }
    return batch, {**{name: float(count) for name, count in facts.items()}, **describe(batch)}


def pack_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[bool]]], row_length: int, rows_multiple: int = 1
) -> TrainBatch:
    """The batch of (tokens, mask) demonstrations, each learned token weighing 1 / total of learned tokens.

    B is the number of sequences rounded up to `rows_multiple`. Raises ValueError for a sequence longer than a row.
    """
    total = sum(sum(map(bool, mask[1:])) for _, mask in sequences)
    if not total:
        raise ValueError(f"{len(sequences)} sequences with no token to learn; give at least one mask with a true entry")
    rows = [
        Segment(f"sequence {index}", tokens, mask, [0.0] * len(tokens), [-1] * len(tokens), 0.0, 1.0 / total)
        for index, (tokens, mask) in enumerate(sequences)
    ]
    return _arrays(rows, row_length, _round_up(len(rows), rows_multiple))


def live_rows(batch: TrainBatch) -> int:
    """How many of the rows, from the first, hold tokens."""
    return int((batch.segment_ids[:, 0] > 0).sum())


def describe(batch: TrainBatch) -> dict[str, float]:
    """Tokens learned from, tokens processed, and the share of the live rows they fill."""
    processed, space = int((batch.segment_ids > 0).sum()), live_rows(batch) * batch.tokens.shape[1]
    return {
        "tokens_trained": float((batch.weights > 0).sum()),
        "tokens_processed": float(processed),
        "rows": float(live_rows(batch)),
        "fill": processed / space if space else 0.0,
    }


def staleness(batch: TrainBatch, version: int) -> dict[str, float]:
    """By how many updates the weights that sampled are behind `version`, over the learned tokens of a batch of `pack`:
    their mean and the largest."""
    behind = (version - batch.versions)[batch.weights > 0]
    return {"staleness": float(behind.mean()), "staleness_max": float(behind.max())} if behind.size else {}


def _sequence(trajectory: Trajectory, advantage: float, weight: float) -> Segment:
    """Token in, token out: exactly what was shown and sampled, in order."""
    tokens: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for number, turn in enumerate(trajectory.turns):
        if len(turn.action_tokens) != len(turn.action_logprobs):
            raise ValueError(
                f"episode {trajectory.episode!r}, turn {number}: {len(turn.action_tokens)} action tokens but "
                f"{len(turn.action_logprobs)} log-probs; the engine must return one for each sampled token"
            )
        tokens += [*turn.prompt_tokens, *turn.action_tokens]
        mask += [False] * len(turn.prompt_tokens) + [True] * len(turn.action_tokens)
        logprobs += [0.0] * len(turn.prompt_tokens) + [*turn.action_logprobs]
        spans = turn.spans or ((turn.weights_version, len(turn.action_tokens)),)
        versions += [-1] * len(turn.prompt_tokens) + [version for version, count in spans for _ in range(count)]
    if len(versions) != len(tokens):
        raise ValueError(
            f"episode {trajectory.episode!r}: its turns' spans cover {len(versions)} of {len(tokens)} tokens; "
            "the engine must say of each sampled token which weights it came from"
        )
    return Segment(f"episode {trajectory.episode!r}", tokens, mask, logprobs, versions, advantage, weight)


def _arrays(sequences: Sequence[Segment], row_length: int, rows: int) -> TrainBatch:
    integers: Mapping[str, np.ndarray] = {
        name: np.zeros((rows, row_length), np.int32) for name in ("tokens", "segment_ids", "positions")
    }
    integers = {**integers, "versions": np.full((rows, row_length), -1, np.int32)}
    floats: Mapping[str, np.ndarray] = {
        name: np.zeros((rows, row_length), np.float32)
        for name in ("advantages", "sampler_logprobs", "reference_logprobs", "old_logprobs", "weights")
    }
    for row, indices in enumerate(_first_fit([(s.name, len(s.tokens)) for s in sequences], row_length)):
        start = 0
        for segment, sequence in enumerate((sequences[index] for index in indices), 1):
            place = row, slice(start, start + len(sequence.tokens))
            integers["tokens"][place] = sequence.tokens
            integers["segment_ids"][place] = segment
            integers["positions"][place] = np.arange(len(sequence.tokens))
            integers["versions"][place] = sequence.versions
            floats["advantages"][place] = sequence.advantage
            floats["sampler_logprobs"][place] = sequence.logprobs
            # Nothing predicts a sequence's first token.
            floats["weights"][place] = np.multiply(sequence.mask, sequence.weight)
            floats["weights"][row, start] = 0.0
            start += len(sequence.tokens)
    return TrainBatch(**integers, **floats)


def _first_fit(lengths: Sequence[tuple[str, int]], row_length: int) -> list[list[int]]:
    """Rows of indices by first-fit-decreasing: longest first, ties in the order given, each into the first row with
    room. Deterministic, and never more than 11/9 of the fewest rows possible."""
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index][1]):
        name, length = lengths[index]
        if length > row_length:
            raise ValueError(
                f"{name} has {length} tokens, a training row holds {row_length}; "
                "raise row_length to the engine's context length, or allow fewer turns or tokens an episode"
            )
        row = next((row for row, free in enumerate(room) if free >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(row_length)
        rows[row].append(index)
        room[row] -= length
    return rows


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple

"""Groups of episodes → packed arrays. The loss's normalisation travels with them as weights.

All arrays made here are NumPy's, on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from cojax.learner.advantages import spread
from cojax.learner.packing import Segment, assign_rows
from cojax.learner.routing import routes_of
from cojax.learner.weightings import group_token_mean, weighed
from cojax.policy.routes import RouteShape
from cojax.types import Group, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """B rows of T tokens, NumPy on the host and JAX arrays inside jit. Any leading axes are allowed.

    tokens: int32[B, T], 0 where there is none.
    segment_ids: int32[B, T]; 1, 2, … for the sequences of a row, 0 = padding, which only ends a row.
    positions: int32[B, T], the place of a token in its own sequence.
    advantages: float32[B, T], as the advantage gave them; in a batch of pairs 1 for the better, -1 for the worse.
    sampler_logprobs: float32[B, T], log π of the sampler where it acted, 0 elsewhere.
    versions: int32[B, T], the weights that sampled the token, -1 where none did.
    reference_logprobs, old_logprobs: float32[B, T], filled by the learner where the loss needs them.
    weights: float32[B, T], > 0 exactly at the tokens that are learned from; loss = Σ weights · per-token loss.
    sequences, tasks, groups: int32[B, T], which of the batch's trajectories, tasks and groups a token is of, from 0 on;
        in a batch of pairs a group is a pair. -1 at padding.
    turns: int32[B, T], the turn of its sequence that a token is of, from 0 on; -1 at padding.
    lengths: int32[B, T], learned tokens of the token's sequence.
    group_sizes: int32[B, T], trajectories of the token's group.
    rewards: float32[B, T], of the token's trajectory.
    routes: int8 or int16[B, T, L, k], the experts that the token went through in the sampler, -1 where it did not tell;
        None for a learner that does not read them.
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
    sequences: Any
    tasks: Any
    groups: Any
    turns: Any
    lengths: Any
    group_sizes: Any
    rewards: Any
    routes: Any = None


_INTEGERS = ("tokens", "segment_ids", "positions", "versions", "sequences", "tasks", "groups", "turns", "lengths",
             "group_sizes")  # fmt: skip
_NONE = ("versions", "sequences", "tasks", "groups", "turns")  # -1 where there is none
DTYPES = {
    field.name: np.dtype(np.int32 if field.name in _INTEGERS else np.float32)
    for field in dataclasses.fields(TrainBatch)
    if field.name != "routes"
}


def pack(
    groups: Sequence[Group],
    advantage: Callable[[Sequence[Trajectory]], Any],
    row_length: int,
    rows_multiple: int = 1,
    *,
    weighting: Callable[[Sequence[np.ndarray]], Any] = group_token_mean,
    skip_flat: bool = True,
    together: bool = False,
    rows: int | None = None,
    routes: RouteShape | None = None,
) -> tuple[TrainBatch, dict[str, float]]:
    """The batch of one step, and what went into it.

    Only valid trajectories count, and only groups with two or more of them. `weighting` weighs their tokens, as its
    module says. Groups whose advantages are all 0 are weighed as the others; with `skip_flat` they are left out of the
    arrays (right only for a loss without a term of its own at advantage 0). With `together` the trajectories of a group
    share a micro-batch.

    B is `rows`, None the number of trajectories given, rounded up to `rows_multiple`: it depends on nothing that was
    sampled, so that one compiled update serves every step. Live rows come first. `routes` is the shape of those that
    the batch is to hold, None for none.

    Raises ValueError for a trajectory longer than a row, for one whose log-probs and tokens differ in number, and for
    an advantage or a weighting that returns what it should not.
    """
    capacity = sum(len(group.trajectories) for group in groups)
    usable = _usable(groups)
    drawn = [_credited(group.valid, advantage) for group in usable]
    lengths = [np.array([int(learned.sum()) for _, learned in group], np.int64) for group in drawn]
    weights = weighed(weighting(lengths), lengths)
    tasks = {id: number for number, id in enumerate(dict.fromkeys(group.task.id for group in usable))}
    segments: list[Segment] = []
    for number, group in enumerate(usable):
        if skip_flat and not any(credit[learned].any() for credit, learned in drawn[number]):
            continue
        for place_in, trajectory in enumerate(group.valid):
            credit, learned = drawn[number][place_in]
            if learned.any():
                ids = {"tasks": tasks[group.task.id], "groups": number, "group_sizes": len(group.valid)}
                each = weights[number][place_in]
                segment = sequence(trajectory, learned, each, credit, len(segments), routes, **ids)
                segments.append(dataclasses.replace(segment, unit=number) if together else segment)
    count = round_up(capacity if rows is None else rows, rows_multiple)
    batch = arrays(segments, row_length, rows_multiple, count, routes)
    return batch, {**counted(groups), **describe(batch)}


def counted(groups: Sequence[Group]) -> dict[str, float]:
    """How many groups count, how many of these are live, that is, their rewards differ, and what does not count."""
    usable = _usable(groups)
    facts = {
        "groups": len(usable),
        "groups_live": sum(len({t.reward for t in group.valid}) > 1 for group in usable),
        "groups_dropped": len(groups) - len(usable),
        "trajectories_invalid": sum(len(group.trajectories) - len(group.valid) for group in groups),
    }
    return {name: float(count) for name, count in facts.items()}


def skipped(groups: Sequence[Group]) -> dict[str, float]:
    """What is told of a step that learns nothing from its groups."""
    nothing = ("tokens_trained", "tokens_processed", "rows", "fill", "updates")
    return {**counted(groups), **dict.fromkeys(nothing, 0.0), "skipped": 1.0}


def pack_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[bool]]], row_length: int, rows_multiple: int = 1
) -> TrainBatch:
    """The batch of (tokens, mask) demonstrations, each learned token weighing 1 / total of learned tokens.

    B is the number of sequences rounded up to `rows_multiple`. Raises ValueError for a sequence longer than a row.
    """
    total = sum(sum(map(bool, mask[1:])) for _, mask in sequences)
    if not total:
        raise ValueError(f"{len(sequences)} sequences with no token to learn; give at least one mask with a true entry")
    rows = []
    for index, (tokens, mask) in enumerate(sequences):
        learned = _predicted(np.asarray(mask, bool))
        fields = {
            "sequences": index, "tasks": index, "groups": index, "turns": 0, "lengths": int(learned.sum()),
            "group_sizes": 1,
        }  # fmt: skip
        rows.append(Segment(f"sequence {index}", tokens, np.multiply(learned, 1.0 / total), fields, index))
    return arrays(rows, row_length, rows_multiple, round_up(len(rows), rows_multiple))


def live_rows(batch: TrainBatch) -> int:
    """How many of the rows, from the first, there are to the last that holds tokens."""
    return int(np.max(np.flatnonzero(batch.segment_ids[:, 0] > 0), initial=-1)) + 1


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


def sampled(trajectory: Trajectory) -> np.ndarray:
    """bool[n]: where the policy acted and something predicts the token; token in, token out."""
    sides = [side for turn in trajectory.turns for side in ((turn.prompt_tokens, False), (turn.action_tokens, True))]
    return _predicted(np.array([acted for tokens, acted in sides for _ in tokens], bool))


def sequence(
    trajectory: Trajectory,
    learned: np.ndarray,
    weight: np.ndarray,
    credit: np.ndarray,
    unit: int,
    routes: RouteShape | None = None,
    **ids: float,
) -> Segment:
    """Exactly what was shown and sampled, in order. `weight` is one for all learned tokens, or one for each; `ids` are
    further columns."""
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    turns: list[int] = []
    for number, turn in enumerate(trajectory.turns):
        if len(turn.action_tokens) != len(turn.action_logprobs):
            raise ValueError(
                f"episode {trajectory.episode!r}, turn {number}: {len(turn.action_tokens)} action tokens but "
                f"{len(turn.action_logprobs)} log-probs; the engine must return one for each sampled token"
            )
        tokens += [*turn.prompt_tokens, *turn.action_tokens]
        logprobs += [*_none(turn.prompt_tokens, 0.0), *turn.action_logprobs]
        spans = turn.spans or ((turn.weights_version, len(turn.action_tokens)),)
        versions += [*_none(turn.prompt_tokens, -1), *(version for version, count in spans for _ in range(count))]
        turns += [number] * (len(turn.prompt_tokens) + len(turn.action_tokens))
    if len(versions) != len(tokens):
        raise ValueError(
            f"episode {trajectory.episode!r}: its turns' spans cover {len(versions)} of {len(tokens)} tokens; "
            "the engine must say of each sampled token which weights it came from"
        )
    weights = np.zeros(len(tokens))
    weights[learned] = weight
    fields = {
        "advantages": credit, "sampler_logprobs": logprobs, "versions": versions, "turns": turns, "sequences": unit,
        "lengths": int(learned.sum()), "rewards": trajectory.reward, **ids,
    }  # fmt: skip
    if routes is not None:
        fields["routes"] = routes_of(trajectory, routes)
    return Segment(f"episode {trajectory.episode!r}", tokens, weights, fields, unit)


def arrays(
    segments: Sequence[Segment], row_length: int, micro_rows: int, rows: int, routes: RouteShape | None = None
) -> TrainBatch:
    """The segments packed into `rows` rows. Raises what `assign_rows` raises."""
    columns = {name: np.full((rows, row_length), -1 if name in _NONE else 0, dtype) for name, dtype in DTYPES.items()}
    if routes is not None:
        columns["routes"] = routes.unknown(rows, row_length)
    for row, indices in enumerate(assign_rows(segments, row_length, micro_rows)):
        start = 0
        for number, segment in enumerate((segments[index] for index in indices), 1):
            size = len(segment.tokens)
            own: dict[str, Any] = {"tokens": segment.tokens, "segment_ids": number, "positions": np.arange(size)}
            for name, value in {**own, "weights": segment.weights, **segment.fields}.items():
                columns[name][row, start : start + size] = value
            start += size
    return TrainBatch(**columns)


def round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _usable(groups: Sequence[Group]) -> list[Group]:
    """Those that an advantage can compare anything in."""
    return [group for group in groups if len(group.valid) >= 2]


def _credited(
    trajectories: Sequence[Trajectory], advantage: Callable[[Sequence[Trajectory]], Any]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each trajectory its tokens' advantages, float64[n], and which of them are learned from, bool[n]."""
    credited = spread(advantage(trajectories), trajectories)
    return [(credit, kept & sampled(t)) for (credit, kept), t in zip(credited, trajectories, strict=True)]


def _predicted(mask: np.ndarray) -> np.ndarray:
    """The mask without a sequence's first token, which nothing predicts."""
    return mask & (np.arange(len(mask)) > 0)


def _none(tokens: Sequence[int], value: Any) -> list[Any]:
    return [value] * len(tokens)

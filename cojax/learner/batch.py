"""Packs groups, pairs and trajectories into a `TrainBatch`: rows of tokens, and a loss's inputs for each token.

The batch holds the loss's normalisation as weights. All arrays made here are NumPy arrays on the host.
"""

import collections
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import chex
import jax
import numpy as np

from cojax.learner.advantages import spread_entries
from cojax.learner.weightings import batch_token_mean, check_weights, group_token_mean
from cojax.policy.moe import RouteShape
from cojax.types import Group, Trajectory


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainBatch:
    """B rows of T tokens: NumPy arrays on the host, JAX arrays inside jit. Any leading axes are allowed.

    tokens: int32[B, T], 0 at padding.
    segment_ids: int32[B, T], 1, 2, … for the sequences of a row and what several of them begin with; 0 at padding.
    prefix_ids: int32[B, T], the segment that holds the beginning of the token's sequence; 0 where the token's own does.
    positions: int32[B, T], the index of a token in its own sequence.
    advantages: float32[B, T], from the advantage function; in a batch of pairs 1 for the better, -1 for the worse.
    sampler_logprobs: float32[B, T], the sampler's log π of the tokens that it sampled, 0 elsewhere.
    versions: int32[B, T], the version of the weights that sampled the token; -1 for tokens that were not sampled.
    reference_logprobs, old_logprobs: float32[B, T], filled by the learner where the loss needs them.
    weights: float32[B, T], > 0 exactly at the tokens that are learned from; loss = Σ weights · per-token loss.
    sequences, tasks, groups: int32[B, T], the number of the token's trajectory, task and group in the batch, from 0 on;
        -1 at padding and at a shared beginning, where `turns` is -1 and what follows is 0. In a batch of pairs a group
        is a pair.
    turns: int32[B, T], the number of the token's turn in its sequence, from 0 on.
    lengths: int32[B, T], number of learned tokens in the token's sequence.
    group_sizes: int32[B, T], number of trajectories in the token's group.
    rewards: float32[B, T], reward of the token's trajectory.
    routes: int8 or int16[B, T, L, k], the experts that the token went through in the sampler, -1 where they are not
        known; None for a learner that does not read them.
    """

    tokens: Any
    segment_ids: Any
    prefix_ids: Any
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


_INT_COLUMNS = ("tokens", "segment_ids", "prefix_ids", "positions", "versions", "sequences", "tasks", "groups", "turns",
             "lengths", "group_sizes")  # fmt: skip
ID_COLUMNS = ("versions", "sequences", "tasks", "groups", "turns")  # -1 where a token has none
DTYPES = {
    field.name: np.dtype(np.int32 if field.name in _INT_COLUMNS else np.float32)
    for field in dataclasses.fields(TrainBatch)
    if field.name != "routes"
}


def assert_columns(batch: TrainBatch, axis_count: int) -> None:
    """Raises AssertionError unless columns have the dtypes of DTYPES and one shape of `axis_count` axes, as [M, b, T].

    Shapes and dtypes are known while a program is traced: it costs nothing when the program runs.
    """
    columns = [getattr(batch, column_name) for column_name in DTYPES]
    chex.assert_rank(columns, axis_count)
    chex.assert_equal_shape(columns)
    chex.assert_type(columns, list(DTYPES.values()))
    if batch.routes is not None:
        chex.assert_shape(batch.routes, (*batch.tokens.shape, None, None))
        chex.assert_type(batch.routes, int)


@dataclasses.dataclass(frozen=True)
class Segment:
    """One sequence of n tokens before packing.

    Tokens with `weights` > 0 are learned from. `columns` are columns of the batch by name, each an array [n] or one
    number for all tokens. Segments of one `unit_id` share a micro-batch.
    """

    name: str
    tokens: Sequence[int]
    weights: np.ndarray
    columns: Mapping[str, Any]
    unit_id: int

    @property
    def group(self) -> int:
        return int(self.columns.get("groups", -1))


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two trajectories of one task, the first of which is preferred; `weight` multiplies the loss of the pair."""

    better: Trajectory
    worse: Trajectory
    weight: float = 1.0


Example = Pair | Trajectory


@dataclasses.dataclass(frozen=True)
class RowShape:
    """Rows of `length` tokens, `micro` of which make a micro-batch.

    `routes` is the shape of the routes that a batch holds; None for a batch without routes. With `shares` the sequences
    of a group that are in one row have the tokens that they all begin with once, as a segment of its own.
    """

    length: int
    micro: int = 1
    routes: RouteShape | None = None
    shares: bool = False

    def round_up(self, row_count: int) -> int:
        """The number of rows, rounded up to whole micro-batches."""
        return -(-row_count // self.micro) * self.micro

    def rows_for(self, unit_count: int, unit_size: int) -> int:
        """The number of rows, in whole micro-batches, that suffices for any `unit_count` units of `unit_size` sequences
        each.

        Each unit must fit into one micro-batch.
        """
        return -(-unit_count // max(1, self.micro // unit_size)) * self.micro


def assign_rows(segments: Sequence[Segment], shape: RowShape) -> list[list[int]]:
    """Assigns segments to rows by first-fit-decreasing; returns the indices of the segments of each row.

    The longest unit comes first, and ties keep their order; each unit goes into the first rows that have space. The
    result is deterministic. For units of one segment it uses at most 11/9 of the fewest rows possible. Where segments
    share their beginning, the longest group comes first, and each of its units goes to rows that have the beginning.

    Raises ValueError for a sequence longer than a row, and for a unit that no micro-batch holds.
    """
    indices_by_unit: dict[int, list[int]] = {}
    for index, segment in enumerate(segments):
        indices_by_unit.setdefault(segment.unit_id, []).append(index)
        if len(segment.tokens) > shape.length:
            raise ValueError(
                f"{segment.name} has {len(segment.tokens)} tokens, but a row holds {shape.length}; "
                "raise row_length to the engine's context length, or allow fewer turns or tokens an episode"
            )
    sizes = [len(segment.tokens) for segment in segments]
    prefixes = _find_prefix_lengths(segments) if shape.shares else {}
    group_sizes = collections.Counter[int]()
    for segment, length in zip(segments, sizes, strict=True):
        group_sizes[segment.group if prefixes.get(segment.group) else -1] += length

    def make_sort_key(unit: Sequence[int]) -> tuple[int, int, int]:
        group = segments[unit[0]].group
        group_order = (-group_sizes[group], group) if prefixes.get(group) else (0, 0)
        return (*group_order, -sum(sizes[index] for index in unit))

    rows: list[_Row] = []
    for unit in sorted(indices_by_unit.values(), key=make_sort_key):
        fit = _fit_unit(sorted(unit, key=lambda index: -sizes[index]), segments, prefixes, rows, shape)
        if fit is None:
            raise ValueError(
                f"{segments[unit[0]].name} and those it is compared with have {sum(sizes[i] for i in unit)} "
                f"tokens, and must share a micro-batch of {shape.micro} × {shape.length}; raise micro_rows to "
                f"{len(unit)} or more"
            )
        first_row, batch_rows = fit
        rows[first_row : first_row + shape.micro] = batch_rows
    while rows and not rows[-1].indices:
        rows.pop()
    return [list(row.indices) for row in rows]


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of `assign_rows`: its free tokens, the segments in it, and their groups."""

    free: int
    indices: tuple[int, ...] = ()
    groups: frozenset[int] = frozenset()


def _fit_unit(
    unit: Sequence[int], segments: Sequence[Segment], prefixes: Mapping[int, int], rows: Sequence[_Row], shape: RowShape
) -> tuple[int, list[_Row]] | None:
    """The first row of a micro-batch that holds all segments of a unit, and its rows with them; None if none does."""

    def count_added(index: int, row: _Row) -> int:
        segment = segments[index]
        return len(segment.tokens) - (prefixes.get(segment.group, 0) if segment.group in row.groups else 0)

    def lacks_prefix(first_row: int) -> bool:
        return not any(row.groups & groups for row in rows[first_row : first_row + shape.micro])

    groups = {segments[index].group for index in unit if prefixes}
    for first_row in sorted(range(0, len(rows) + shape.micro, shape.micro), key=lacks_prefix):
        batch_rows = [*rows[first_row : first_row + shape.micro]]
        batch_rows += [_Row(shape.length)] * (shape.micro - len(batch_rows))
        for index in unit:
            candidates = [number for number, row in enumerate(batch_rows) if row.free >= count_added(index, row)]
            if not candidates:
                break
            group = segments[index].group
            number = min(candidates, key=lambda number: bool(prefixes) and group not in batch_rows[number].groups)
            row = batch_rows[number]
            batch_rows[number] = _Row(row.free - count_added(index, row), (*row.indices, index), row.groups | {group})
        else:
            return first_row, batch_rows
    return None


def _find_prefix_lengths(segments: Sequence[Segment]) -> dict[int, int]:
    """For each group the number of tokens that all its segments begin with, before the one that predicts the first
    learned token."""
    segments_by_group: dict[int, list[Segment]] = {}
    for segment in segments:
        segments_by_group.setdefault(segment.group, []).append(segment)
    prefix_lengths = {}
    for group, group_segments in segments_by_group.items():
        first, *others = group_segments
        length = min(int(np.argmax(segment.weights > 0)) for segment in group_segments) - 1
        for other in others:
            indices = (index for index in range(length) if first.tokens[index] != other.tokens[index])
            length = next(indices, length)
        prefix_lengths[group] = length if others and length > 0 else 0
    return prefix_lengths


def pack(
    groups: Sequence[Group],
    advantage: Callable[[Sequence[Trajectory]], Any],
    shape: RowShape,
    *,
    weighting: Callable[[Sequence[np.ndarray]], Any] = group_token_mean,
    skip_flat: bool = True,
    keep_together: bool = False,
    row_count: int | None = None,
) -> tuple[TrainBatch, dict[str, float]]:
    """Packs the batch of one step, and counts what went into it.

    Only valid trajectories count, and only groups with two or more of them. `weighting` gives their tokens weights, as
    its module says. Groups whose advantages are all 0 get weights like the others; `skip_flat` leaves them out of the
    arrays, which is right only for a loss that is 0 at advantage 0. With `keep_together` the trajectories of a group
    share a micro-batch.

    B is `row_count`, or else the number of trajectories, in whole micro-batches. It does not depend on what was
    sampled, so that one compiled update serves every step. Live rows come first.

    Raises ValueError for a trajectory longer than a row, for one whose log-probs and tokens differ in number, and for
    an advantage or a weighting that returns values of a wrong shape or values that are not finite.
    """
    usable = _select_comparable_groups(groups)
    credits = [_compute_credits(group.valid, advantage) for group in usable]
    lengths = [np.array([int(mask.sum()) for _, mask in group], np.int64) for group in credits]
    weights = check_weights(weighting(lengths), lengths)
    task_numbers = {task_id: number for number, task_id in enumerate(dict.fromkeys(group.task.id for group in usable))}
    segments: list[Segment] = []
    for group_id, group in enumerate(usable):
        if skip_flat and not any(credit[mask].any() for credit, mask in credits[group_id]):
            continue
        for trajectory, (credit, mask), weight in zip(group.valid, credits[group_id], weights[group_id], strict=True):
            if mask.any():
                columns = {"tasks": task_numbers[group.task.id], "groups": group_id, "group_sizes": len(group.valid)}
                segment = make_segment(trajectory, mask, weight, credit, len(segments), shape.routes, **columns)
                segments.append(dataclasses.replace(segment, unit_id=group_id) if keep_together else segment)
    if row_count is None:
        row_count = sum(len(group.trajectories) for group in groups)
    batch = pack_segments(segments, shape, row_count)
    return batch, {**count_groups(groups), **describe(batch)}


def count_groups(groups: Sequence[Group]) -> dict[str, float]:
    """Counts groups with two valid trajectories, the live ones among them (rewards differ), and what was dropped."""
    usable_groups = _select_comparable_groups(groups)
    counts = {
        "groups": len(usable_groups),
        "groups_live": sum(group.live for group in usable_groups),
        "groups_dropped": len(groups) - len(usable_groups),
        "trajectories_invalid": sum(len(group.trajectories) - len(group.valid) for group in groups),
    }
    return {name: float(count) for name, count in counts.items()}


def skipped_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of a step that learns nothing from its groups."""
    metric_names = ("tokens_trained", "tokens_processed", "rows", "fill", "updates")
    return {**count_groups(groups), **dict.fromkeys(metric_names, 0.0), "skipped": 1.0}


def pack_sequences(sequences: Sequence[tuple[Sequence[int], Sequence[bool]]], shape: RowShape) -> TrainBatch:
    """Packs demonstrations, each (tokens, mask); a learned token weighs 1 / the number of all learned tokens.

    B is the number of sequences, in whole micro-batches. Raises ValueError for a sequence longer than a row.
    """
    loss_count = sum(sum(map(bool, mask[1:])) for _, mask in sequences)
    if not loss_count:
        raise ValueError(
            f"none of {len(sequences)} sequences has a token to learn; give at least one mask with a true entry"
        )
    segments = []
    for index, (tokens, mask) in enumerate(sequences):
        loss_mask = _drop_first_token(np.asarray(mask, bool))
        columns = {
            "sequences": index, "tasks": index, "groups": index, "turns": 0, "lengths": int(loss_mask.sum()),
            "group_sizes": 1,
        }  # fmt: skip
        segments.append(Segment(f"sequence {index}", tokens, np.multiply(loss_mask, 1.0 / loss_count), columns, index))
    return pack_segments(segments, shape, len(segments))


def count_rows(batch: TrainBatch) -> int:
    """The number of rows up to the last one that holds tokens."""
    return int(np.max(np.flatnonzero(batch.segment_ids[:, 0] > 0), initial=-1)) + 1


def describe(batch: TrainBatch) -> dict[str, float]:
    """Counts trained tokens, processed tokens and live rows, and the share of these rows that tokens fill."""
    token_count, capacity = int((batch.segment_ids > 0).sum()), count_rows(batch) * batch.tokens.shape[1]
    return {
        "tokens_trained": float((batch.weights > 0).sum()),
        "tokens_processed": float(token_count),
        "rows": float(count_rows(batch)),
        "fill": token_count / capacity if capacity else 0.0,
    }


def measure_staleness(batch: TrainBatch, version: int) -> dict[str, float]:
    """How many versions the sampling weights are behind `version`: mean and maximum over the learned tokens of a batch
    of `pack`; empty if the batch has none."""
    delays = (version - batch.versions)[batch.weights > 0]
    return {"staleness": float(delays.mean()), "staleness_max": float(delays.max())} if delays.size else {}


def mark_sampled(trajectory: Trajectory) -> np.ndarray:
    """bool[n]: true for tokens that the policy sampled, except the sequence's first, which nothing predicts."""
    token_runs = [run for turn in trajectory.turns for run in ((turn.prompt_tokens, False), (turn.action_tokens, True))]
    return _drop_first_token(np.array([is_action for tokens, is_action in token_runs for _ in tokens], bool))


def make_segment(
    trajectory: Trajectory,
    mask: np.ndarray,
    weight: np.ndarray,
    credit: np.ndarray,
    unit_id: int,
    routes: RouteShape | None,
    **further_columns: float,
) -> Segment:
    """The trajectory's tokens as one segment, in order, exactly as the policy saw and sampled them.

    `mask` bool[n] marks the learned tokens; `weight` is one number for all of them, or one for each. Raises
    ValueError if tokens, log-probs and versions differ in number.
    """
    tokens: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    turns: list[int] = []
    for turn_number, turn in enumerate(trajectory.turns):
        if len(turn.action_tokens) != len(turn.action_logprobs):
            raise ValueError(
                f"episode {trajectory.episode!r}, turn {turn_number}: {len(turn.action_tokens)} action tokens but "
                f"{len(turn.action_logprobs)} log-probs; the engine must return one for each sampled token"
            )
        tokens += [*turn.prompt_tokens, *turn.action_tokens]
        logprobs += [*[0.0] * len(turn.prompt_tokens), *turn.action_logprobs]
        spans = turn.spans or ((turn.weights_version, len(turn.action_tokens)),)
        versions += [*[-1] * len(turn.prompt_tokens), *(version for version, count in spans for _ in range(count))]
        turns += [turn_number] * (len(turn.prompt_tokens) + len(turn.action_tokens))
    if len(versions) != len(tokens):
        raise ValueError(
            f"episode {trajectory.episode!r}: its turns' spans cover {len(versions)} of {len(tokens)} tokens; "
            "the engine must report which weights each sampled token came from"
        )
    weights = np.zeros(len(tokens))
    weights[mask] = weight
    columns = {
        "advantages": credit, "sampler_logprobs": logprobs, "versions": versions, "turns": turns, "sequences": unit_id,
        "lengths": int(mask.sum()), "rewards": trajectory.reward, **further_columns,
    }  # fmt: skip
    if routes is not None:
        columns["routes"] = decode_routes(trajectory, routes)
    return Segment(f"episode {trajectory.episode!r}", tokens, weights, columns, unit_id)


def pack_segments(segments: Sequence[Segment], shape: RowShape, row_count: int) -> TrainBatch:
    """Packs the segments into `row_count` rows, in whole micro-batches. Raises what `assign_rows` raises."""
    batch_shape = shape.round_up(row_count), shape.length
    columns = {name: np.full(batch_shape, -1 if name in ID_COLUMNS else 0, dtype) for name, dtype in DTYPES.items()}
    if shape.routes is not None:
        columns["routes"] = shape.routes.make_unknown(*batch_shape)
    prefixes = _find_prefix_lengths(segments) if shape.shares else {}
    for row, indices in enumerate(assign_rows(segments, shape)):
        start = 0
        for part_id, (segment, part, prefix_id) in enumerate(_split_row([segments[i] for i in indices], prefixes), 1):
            positions = np.arange(len(segment.tokens))
            values: dict[str, Any] = {"tokens": segment.tokens, "positions": positions, "segment_ids": part_id}
            if prefix_id is not None:  # not the beginning of several sequences
                values |= {"prefix_ids": prefix_id, "weights": segment.weights, **segment.columns}
            end = start + len(positions[part])
            for name, value in values.items():
                columns[name][row, start:end] = value if np.ndim(value) == 0 else np.asarray(value)[part]
            start = end
    return TrainBatch(**columns)


def _split_row(segments: Sequence[Segment], prefixes: Mapping[int, int]) -> list[tuple[Segment, slice, int | None]]:
    """The parts of a row: a segment, its tokens in this part, and the number of the part that they continue.

    That number is 0 for a part that is a whole segment, and None for the beginning of several.
    """
    segment_counts = collections.Counter(segment.group for segment in segments)
    parts: list[tuple[Segment, slice, int | None]] = []
    prefix_id_by_group: dict[int, int] = {}
    for segment in segments:
        length = prefixes.get(segment.group, 0) if segment_counts[segment.group] > 1 else 0
        if length and segment.group not in prefix_id_by_group:
            parts.append((segment, slice(length), None))
            prefix_id_by_group[segment.group] = len(parts)
        parts.append((segment, slice(length, None), prefix_id_by_group[segment.group] if length else 0))
    return parts


def _select_comparable_groups(groups: Sequence[Group]) -> list[Group]:
    """The groups with at least two valid trajectories: an advantage compares them."""
    return [group for group in groups if len(group.valid) >= 2]


def _compute_credits(
    trajectories: Sequence[Trajectory], advantage: Callable[[Sequence[Trajectory]], Any]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each trajectory its tokens' advantages, float64[n], and which tokens are learned from, bool[n]."""
    credits = spread_entries(advantage(trajectories), trajectories)
    return [(credit, mask & mark_sampled(t)) for (credit, mask), t in zip(credits, trajectories, strict=True)]


def _drop_first_token(mask: np.ndarray) -> np.ndarray:
    """The mask without the sequence's first token, which nothing predicts."""
    return mask & (np.arange(len(mask)) > 0)


def draw_pairs(group: Group, seed: tuple[int, int], min_partial: float = 0.0) -> list[tuple[Trajectory, Trajectory]]:
    """Pairs each failure whose partial reward is at least `min_partial` with a success of its group, if it has one.

    Returns (success, failure); a success has reward 1. The seed, the task and the failure's number in its group decide
    which success is drawn. Invalid trajectories and those without a sampled token are in no pair.
    """
    candidates = [(position, t) for position, t in enumerate(group.trajectories) if t.valid and mark_sampled(t).any()]
    successes = [trajectory for _, trajectory in candidates if trajectory.reward >= 1.0]
    return [
        (random.Random(repr((*seed, group.task.id, position))).choice(successes), trajectory)
        for position, trajectory in candidates
        if trajectory.reward < 1.0 and trajectory.partial >= min_partial and successes
    ]


def pack_pairs(
    groups: Sequence[Group], seed: tuple[int, int], shape: RowShape, row_count: int
) -> tuple[TrainBatch, dict[str, float]]:
    """Packs the pairs of a step's groups as `pack_examples` does, and counts what went into the batch."""
    group_pairs = [draw_pairs(group, seed) for group in groups]
    pairs = [Pair(better, worse) for sampled_pairs in group_pairs for better, worse in sampled_pairs]
    batch = pack_examples(pairs, shape, row_count)
    counts = {**count_groups(groups), "groups_live": float(sum(map(bool, group_pairs))), "pairs": float(len(pairs))}
    return batch, {**counts, **describe(batch)}


def pack_examples(examples: Sequence[Example], shape: RowShape, row_count: int) -> TrainBatch:
    """Packs pairs, whose sides both have a sampled token, or trajectories to imitate.

    Each pair is a group of its own, with advantage 1 for the better and -1 for the worse, and shares a micro-batch. A
    token of a pair weighs the pair's weight / (pairs · tokens of the pair). All tokens of trajectories to imitate have
    the same weight, and their weights add up to 1. B is `row_count`, at least as many as `RowShape.rows_for` says.
    Raises what `assign_rows` raises.
    """
    units = [(example.better, example.worse) if isinstance(example, Pair) else (example,) for example in examples]
    task_numbers = {task_id: number for number, task_id in enumerate(dict.fromkeys(unit[0].task.id for unit in units))}
    lengths = [np.array([int(mark_sampled(trajectory).sum()) for trajectory in unit], np.int64) for unit in units]
    weights = (group_token_mean if any(len(unit) == 2 for unit in units) else batch_token_mean)(lengths)
    segments: list[Segment] = []
    for unit_number, (example, unit) in enumerate(zip(examples, units, strict=True)):
        for side, trajectory in enumerate(unit):
            mask = mark_sampled(trajectory)
            credit = np.full(len(mask), (1.0, -1.0)[side])
            columns = {"sequences": len(segments), "tasks": task_numbers[trajectory.task.id], "groups": unit_number}
            columns["group_sizes"] = len(unit)
            weight = weights[unit_number][side] * (example.weight if isinstance(example, Pair) else 1.0)
            segments.append(make_segment(trajectory, mask, weight, credit, unit_number, shape.routes, **columns))
    return pack_segments(segments, shape, row_count)


def decode_routes(trajectory: Trajectory, shape: RouteShape) -> np.ndarray:
    """Decodes the routes of a trajectory's n tokens, [n, L, k]; -1 for tokens whose routes are not known.

    A turn reports the routes of all its tokens but the last, which was not fed to the model. If a later turn reports a
    token again, the earlier routes stay, because the tokens that followed were sampled under them. Raises ValueError
    for routes of another shape, and for routes of more tokens than were fed to the model.
    """
    turn_ends = np.cumsum([len(turn.prompt_tokens) + len(turn.action_tokens) for turn in trajectory.turns])
    all_routes = shape.make_unknown(int(turn_ends[-1]))
    for i in reversed(range(len(turn_ends))):
        try:
            routes = shape.decode(trajectory.turns[i].routes)
            if len(routes) >= max(1, turn_ends[i]):
                raise ValueError(f"routes of {len(routes)} tokens, but only {turn_ends[i] - 1} were fed to the model")
        except ValueError as error:
            raise ValueError(f"episode {trajectory.episode!r}, turn {i}: {error}") from error
        all_routes[turn_ends[i] - 1 - len(routes) : turn_ends[i] - 1] = routes
    return all_routes

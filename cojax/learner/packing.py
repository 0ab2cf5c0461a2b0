"""Packs groups, pairs or single trajectories into a `TrainBatch`: rows of tokens, the loss's normalisation as weights.

The objective of a learner, a loss, an advantage and a weighting with their settings, packs the batches of a step. All
arrays made here are NumPy's, on the host.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cojax.learner.advantages import ADVANTAGES, token_advantages
from cojax.learner.bound_loss import DTYPES, IDS, BoundLoss, TrainBatch, bind
from cojax.learner.losses import LOSSES
from cojax.learner.weightings import WEIGHTINGS, batch_token_mean, check_weights, group_token_mean
from cojax.policy.moe import RouteShape
from cojax.registry import check_settings, find
from cojax.types import Group, Trajectory


@dataclasses.dataclass(frozen=True)
class Segment:
    """One sequence of n tokens before packing.

    Tokens with `weights` > 0 are learned from. `fields` are columns of the batch by name, each an array [n] or one
    number for all tokens. Segments of one `unit` share a micro-batch.
    """

    name: str
    tokens: Sequence[int]
    weights: np.ndarray
    fields: Mapping[str, Any]
    unit: int


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two trajectories of one task, the first of which is preferred; `weight` multiplies the loss of the pair."""

    better: Trajectory
    worse: Trajectory
    weight: float = 1.0


Example = Pair | Trajectory


def assign_rows(segments: Sequence[Segment], row_length: int, micro_rows: int) -> list[list[int]]:
    """Assigns segments to rows by first-fit-decreasing; returns the indices of the segments of each row.

    The longest unit comes first, ties in the order given; each goes into the first rows that have space. The result is
    deterministic. For units of one segment it has at most 11/9 of the fewest rows possible.

    Raises ValueError for a sequence longer than a row, and for a unit that no micro-batch of `micro_rows` rows holds.
    """
    units: dict[int, list[int]] = {}
    for index, segment in enumerate(segments):
        units.setdefault(segment.unit, []).append(index)
        if len(segment.tokens) > row_length:
            raise ValueError(
                f"{segment.name} has {len(segment.tokens)} tokens, a training row holds {row_length}; "
                "raise row_length to the engine's context length, or allow fewer turns or tokens an episode"
            )
    size = [len(segment.tokens) for segment in segments]
    rows: list[list[int]] = []
    free: list[int] = []
    for unit in sorted(units.values(), key=lambda unit: -sum(size[index] for index in unit)):
        found = _fit_unit(sorted(unit, key=lambda index: -size[index]), size, free, row_length, micro_rows)
        if found is None:
            raise ValueError(
                f"{segments[unit[0]].name} and those it is compared with have {sum(size[i] for i in unit)} tokens, and "
                f"must share a micro-batch of {micro_rows} × {row_length}; raise micro_rows to {len(unit)} or more"
            )
        for index, row in found:
            while row >= len(rows):
                rows.append([])
                free.append(row_length)
            rows[row].append(index)
            free[row] -= size[index]
    return rows


def _fit_unit(
    unit: Sequence[int], size: Sequence[int], free: Sequence[int], row_length: int, micro_rows: int
) -> list[tuple[int, int]] | None:
    """(index, row) for each segment of a unit, in the first micro-batch that holds all of them; None if none does."""
    for first in range(0, len(free) + micro_rows, micro_rows):
        left_in = [free[row] if row < len(free) else row_length for row in range(first, first + micro_rows)]
        found: list[tuple[int, int]] = []
        for index in unit:
            row = next((row for row, left in enumerate(left_in) if left >= size[index]), None)
            if row is None:
                break
            left_in[row] -= size[index]
            found.append((index, first + row))
        else:
            return found
    return None


def capacity(units: int, size: int, micro_rows: int) -> int:
    """The number of rows, a multiple of `micro_rows`, that suffices for any `units` units of `size` sequences.

    Each unit must fit into one micro-batch.
    """
    return -(-units // max(1, micro_rows // size)) * micro_rows


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
    """Packs the batch of one step, and counts what went into it.

    Only valid trajectories count, and only groups with two or more of them. `weighting` gives their tokens weights, as
    its module says. Groups whose advantages are all 0 get weights like the others; with `skip_flat` they are left out
    of the arrays, which is right only for a loss that is 0 at advantage 0. With `together` the trajectories of a group
    share a micro-batch.

    B is `rows`, or without it the number of trajectories given, rounded up to `rows_multiple`. It does not depend on
    what was sampled, so that one compiled update serves every step. Live rows come first. `routes` is the shape of the
    routes that the batch holds; None for a batch without routes.

    Raises ValueError for a trajectory longer than a row, for one whose log-probs and tokens differ in number, and for
    an advantage or a weighting that returns values of a wrong shape or values that are not finite.
    """
    capacity = sum(len(group.trajectories) for group in groups)
    usable = _usable(groups)
    credits = [_token_credits(group.valid, advantage) for group in usable]
    lengths = [np.array([int(learned.sum()) for _, learned in group], np.int64) for group in credits]
    weights = check_weights(weighting(lengths), lengths)
    tasks = {id: number for number, id in enumerate(dict.fromkeys(group.task.id for group in usable))}
    segments: list[Segment] = []
    for number, group in enumerate(usable):
        if skip_flat and not any(credit[learned].any() for credit, learned in credits[number]):
            continue
        for trajectory, (credit, learned), weight in zip(group.valid, credits[number], weights[number], strict=True):
            if learned.any():
                ids = {"tasks": tasks[group.task.id], "groups": number, "group_sizes": len(group.valid)}
                segment = segment_of(trajectory, learned, weight, credit, len(segments), routes, **ids)
                segments.append(dataclasses.replace(segment, unit=number) if together else segment)
    count = round_up(capacity if rows is None else rows, rows_multiple)
    batch = pack_segments(segments, row_length, rows_multiple, count, routes)
    return batch, {**count_groups(groups), **describe(batch)}


def count_groups(groups: Sequence[Group]) -> dict[str, float]:
    """Counts groups with two valid trajectories, those of them whose rewards differ (live), and what does not count."""
    usable = _usable(groups)
    facts = {
        "groups": len(usable),
        "groups_live": sum(group.live for group in usable),
        "groups_dropped": len(groups) - len(usable),
        "trajectories_invalid": sum(len(group.trajectories) - len(group.valid) for group in groups),
    }
    return {name: float(count) for name, count in facts.items()}


def skipped_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """The metrics of a step that learns nothing from its groups."""
    names = ("tokens_trained", "tokens_processed", "rows", "fill", "updates")
    return {**count_groups(groups), **dict.fromkeys(names, 0.0), "skipped": 1.0}


def pack_sequences(
    sequences: Sequence[tuple[Sequence[int], Sequence[bool]]], row_length: int, rows_multiple: int = 1
) -> TrainBatch:
    """Packs demonstrations, each (tokens, mask); every learned token weighs 1 / number of learned tokens in all.

    B is the number of sequences rounded up to `rows_multiple`. Raises ValueError for a sequence longer than a row.
    """
    total = sum(sum(map(bool, mask[1:])) for _, mask in sequences)
    if not total:
        raise ValueError(
            f"none of {len(sequences)} sequences has a token to learn; give at least one mask with a true entry"
        )
    rows = []
    for index, (tokens, mask) in enumerate(sequences):
        learned = _predictable(np.asarray(mask, bool))
        fields = {
            "sequences": index, "tasks": index, "groups": index, "turns": 0, "lengths": int(learned.sum()),
            "group_sizes": 1,
        }  # fmt: skip
        rows.append(Segment(f"sequence {index}", tokens, np.multiply(learned, 1.0 / total), fields, index))
    return pack_segments(rows, row_length, rows_multiple, round_up(len(rows), rows_multiple))


def live_rows(batch: TrainBatch) -> int:
    """The number of rows up to the last one that holds tokens."""
    return int(np.max(np.flatnonzero(batch.segment_ids[:, 0] > 0), initial=-1)) + 1


def describe(batch: TrainBatch) -> dict[str, float]:
    """Counts tokens learned from, tokens processed, live rows, and the share of these that tokens fill."""
    processed, space = int((batch.segment_ids > 0).sum()), live_rows(batch) * batch.tokens.shape[1]
    return {
        "tokens_trained": float((batch.weights > 0).sum()),
        "tokens_processed": float(processed),
        "rows": float(live_rows(batch)),
        "fill": processed / space if space else 0.0,
    }


def staleness(batch: TrainBatch, version: int) -> dict[str, float]:
    """How many versions the sampling weights are behind `version`: mean and maximum over the learned tokens of a batch
    of `pack`; empty where no token is learned."""
    behind = (version - batch.versions)[batch.weights > 0]
    return {"staleness": float(behind.mean()), "staleness_max": float(behind.max())} if behind.size else {}


def sampled_mask(trajectory: Trajectory) -> np.ndarray:
    """bool[n]: true for the tokens that the policy sampled, but for the first of the sequence: nothing predicts it."""
    sides = [side for turn in trajectory.turns for side in ((turn.prompt_tokens, False), (turn.action_tokens, True))]
    return _predictable(np.array([acted for tokens, acted in sides for _ in tokens], bool))


def segment_of(
    trajectory: Trajectory,
    learned: np.ndarray,
    weight: np.ndarray,
    credit: np.ndarray,
    unit: int,
    routes: RouteShape | None = None,
    **ids: float,
) -> Segment:
    """The trajectory's tokens exactly as they were shown and sampled, in order, as one segment.

    `weight` is one number for all learned tokens, or one for each; `ids` are further columns. Raises ValueError where
    tokens, log-probs and versions differ in number.
    """
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
        logprobs += [*[0.0] * len(turn.prompt_tokens), *turn.action_logprobs]
        spans = turn.spans or ((turn.weights_version, len(turn.action_tokens)),)
        versions += [*[-1] * len(turn.prompt_tokens), *(version for version, count in spans for _ in range(count))]
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
        fields["routes"] = decode_routes(trajectory, routes)
    return Segment(f"episode {trajectory.episode!r}", tokens, weights, fields, unit)


def pack_segments(
    segments: Sequence[Segment], row_length: int, micro_rows: int, rows: int, routes: RouteShape | None = None
) -> TrainBatch:
    """Packs the segments into `rows` rows. Raises what `assign_rows` raises."""
    columns = {name: np.full((rows, row_length), -1 if name in IDS else 0, dtype) for name, dtype in DTYPES.items()}
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
    """The groups with at least two valid trajectories: an advantage compares them."""
    return [group for group in groups if len(group.valid) >= 2]


def _token_credits(
    trajectories: Sequence[Trajectory], advantage: Callable[[Sequence[Trajectory]], Any]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each trajectory its tokens' advantages, float64[n], and which of them are learned from, bool[n]."""
    credits = token_advantages(advantage(trajectories), trajectories)
    return [(credit, kept & sampled_mask(t)) for (credit, kept), t in zip(credits, trajectories, strict=True)]


def _predictable(mask: np.ndarray) -> np.ndarray:
    """The mask without the sequence's first token, which nothing predicts."""
    return mask & (np.arange(len(mask)) > 0)


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
    """Packs the pairs of a step's groups as `pack_examples` does, and counts what went into the batch."""
    drawn = [draw_pairs(group, seed) for group in groups]
    pairs = [Pair(better, worse) for found in drawn for better, worse in found]
    batch = pack_examples(pairs, row_length, micro_rows, rows=rows, routes=routes)
    facts = {**count_groups(groups), "groups_live": float(sum(map(bool, drawn))), "pairs": float(len(pairs))}
    return batch, {**facts, **describe(batch)}


def pack_examples(
    examples: Sequence[Example], row_length: int, micro_rows: int, *, rows: int, routes: RouteShape | None = None
) -> TrainBatch:
    """Packs pairs, each of which has a sampled token on both sides; or trajectories to be imitated.

    Each pair is a group of its own, with advantage 1 for the better and -1 for the worse, and shares a micro-batch. A
    token of a pair weighs the pair's weight / (pairs · tokens of the pair). Every token of trajectories to be imitated
    weighs the same, and the weights add up to 1. B is `rows`, at least as many as `capacity` says; `routes` is as in
    `pack`. Raises what `assign_rows` raises.
    """
    units = [(one.better, one.worse) if isinstance(one, Pair) else (one,) for one in examples]
    tasks = {id: number for number, id in enumerate(dict.fromkeys(unit[0].task.id for unit in units))}
    lengths = [np.array([int(sampled_mask(t).sum()) for t in unit], np.int64) for unit in units]
    weights = (group_token_mean if any(len(unit) == 2 for unit in units) else batch_token_mean)(lengths)
    segments: list[Segment] = []
    for number, (example, unit) in enumerate(zip(examples, units, strict=True)):
        for side, trajectory in enumerate(unit):
            learned = sampled_mask(trajectory)
            credit = np.full(len(learned), (1.0, -1.0)[side])
            ids = {"sequences": len(segments), "tasks": tasks[trajectory.task.id], "groups": number}
            weight = weights[number][side] * (example.weight if isinstance(example, Pair) else 1.0)
            segments.append(
                segment_of(trajectory, learned, weight, credit, number, routes, group_sizes=len(unit), **ids)
            )
    return pack_segments(segments, row_length, micro_rows, rows, routes)


def decode_routes(trajectory: Trajectory, shape: RouteShape) -> np.ndarray:
    """Decodes the routes of a trajectory's n tokens, [n, L, k]; -1 for tokens whose routes are not known.

    A turn reports routes of the tokens before its last one, which was not fed to the model. If a later turn reports a
    token again, the earlier routes stay: the tokens that followed were sampled under them. Raises ValueError for routes
    of another shape, and for routes of more tokens than were fed to the model.
    """
    ends = np.cumsum([len(turn.prompt_tokens) + len(turn.action_tokens) for turn in trajectory.turns])
    found = shape.unknown(int(ends[-1]))
    for number in reversed(range(len(ends))):
        try:
            routes = shape.decode(trajectory.turns[number].routes)
            if len(routes) >= max(1, ends[number]):
                raise ValueError(f"routes of {len(routes)} tokens, but only {ends[number] - 1} were fed to the model")
        except ValueError as error:
            raise ValueError(f"episode {trajectory.episode!r}, turn {number}: {error}") from error
        found[ends[number] - 1 - len(routes) : ends[number] - 1] = routes
    return found


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
                    part, self.advantage, row_length, micro_rows, weighting=self.weighting,
                    skip_flat=not self.loss.flat_groups, together=self.loss.together, rows=rows, routes=routes,
                )  # fmt: skip
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

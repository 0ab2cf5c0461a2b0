"""Learns from the examples of a round: pairs, or trajectories to imitate, in several passes of small batches."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import jax
import numpy as np

from cojax.learner.batch import TrainBatch
from cojax.learner.hosts import advance, fetch
from cojax.learner.learner import Learner
from cojax.learner.packing import Segment, capacity, describe, live_rows, pack_segments, sampled_mask, segment_of
from cojax.learner.pairs import Pair, pack_drawn
from cojax.learner.train_state import TrainState
from cojax.learner.update import Metrics, NonFiniteUpdate, combine_updates, mean_metrics
from cojax.policy.moe import RouteShape
from cojax.types import Trajectory

Example = Pair | Trajectory


@dataclasses.dataclass(frozen=True)
class Passes:
    """How often a round learns each example (`epochs`), and how many examples an update learns from (`batch_size`)."""

    epochs: int
    batch_size: int


def learn_round(
    learner: Learner, state: TrainState, examples: Sequence[Example], passes: Passes, seed: tuple[int | str, ...]
) -> tuple[TrainState, Metrics]:
    """One round of learning; `state` is donated. All examples are pairs, or all are trajectories.

    Examples are dealt to batches by `seed`, and each epoch takes the batches in an order of its own. All reference and
    old log-probs are computed before the first update. Metrics are means over updates; `tokens_trained` and
    `tokens_processed` are sums over them. Without examples the policy stays as it is. Raises NonFiniteUpdate, and what
    `assign_rows` raises.
    """
    if int(state.step) + 1 in learner.skip_steps:
        examples = ()
    dealt = random.Random(repr(("round", seed))).sample(list(examples), len(examples))
    batches = [
        pack_examples(learner, dealt[start : start + passes.batch_size], passes.batch_size)
        for start in range(0, len(dealt), passes.batch_size)
    ]
    counts = [np.int32(-(-live_rows(batch) // learner.micro_rows)) for batch in batches]
    placed = [learner.prepare(state, batch, count) for batch, count in zip(batches, counts, strict=True)]
    updates: list[Metrics] = []
    for epoch in range(passes.epochs):
        for index in random.Random(repr(("epoch", epoch, seed))).sample(range(len(batches)), len(batches)):
            state, raw = learner.apply(state, placed[index], counts[index])
            found = mean_metrics(jax.device_get(raw), batches[index])
            if not np.isfinite([found["loss"], found["grad_norm"]]).all():
                raise NonFiniteUpdate(state, batches[index], found, len(updates))
            updates.append({**found, **describe(batches[index])})
    metrics = combine_updates(updates)
    sums = {name: sum(update[name] for update in updates) for name in ("tokens_trained", "tokens_processed")}
    return advance(learner.hosts, state), {**metrics, **sums}


def mean_log_ratio(learner: Learner, state: TrainState, trajectories: Sequence[Trajectory], batch_size: int) -> float:
    """Mean over sampled tokens of log π_sampler − log π of the policy in `state`, in nats; 0 without a token.

    It estimates KL(π_sampler ‖ π) for each token. The learner must be one of rounds.
    """
    total, tokens = 0.0, 0
    for start in range(0, len(trajectories), batch_size):
        batch = pack_examples(learner, trajectories[start : start + batch_size], batch_size)
        count = np.int32(-(-live_rows(batch) // learner.micro_rows))
        own = fetch(learner.hosts, learner.prepare(state, batch, count)).old_logprobs.reshape(batch.tokens.shape)
        learned = batch.weights > 0
        total += float((batch.sampler_logprobs - own)[learned].sum(dtype=np.float64))
        tokens += int(learned.sum())
    return total / tokens if tokens else 0.0


def pack_examples(learner: Learner, examples: Sequence[Example], most: int) -> TrainBatch:
    """Packs pairs or trajectories into a batch whose shape holds `most` of what the learner's loss learns from."""
    rows = capacity(most, 2 if learner.objective.loss.pairs else 1, learner.micro_rows)
    shape = learner.row_length, learner.micro_rows
    pairs = [example for example in examples if isinstance(example, Pair)]
    if pairs:
        return pack_drawn(pairs, *shape, rows=rows, routes=learner.route_shape)
    trajectories = [example for example in examples if isinstance(example, Trajectory)]
    return pack_trajectories(trajectories, *shape, rows=rows, routes=learner.route_shape)


def pack_trajectories(
    trajectories: Sequence[Trajectory],
    row_length: int,
    micro_rows: int,
    *,
    rows: int,
    routes: RouteShape | None = None,
) -> TrainBatch:
    """Packs trajectories to be imitated: every learned token weighs the same, and the weights add up to 1.

    B is `rows`; `routes` is as in `pack`. Raises what `assign_rows` raises.
    """
    masks = [sampled_mask(trajectory) for trajectory in trajectories]
    weight = np.asarray(1.0 / max(1, sum(int(mask.sum()) for mask in masks)))
    tasks = {id: number for number, id in enumerate(dict.fromkeys(t.task.id for t in trajectories))}
    segments: list[Segment] = []
    for number, (trajectory, mask) in enumerate(zip(trajectories, masks, strict=True)):
        ids = {"sequences": number, "tasks": tasks[trajectory.task.id], "groups": number, "group_sizes": 1}
        segments.append(segment_of(trajectory, mask, weight, np.ones(len(mask)), number, routes, **ids))
    return pack_segments(segments, row_length, micro_rows, rows, routes)

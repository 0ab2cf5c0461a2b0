"""`Learner`: one step of learning. It binds the jitted update to a model, an objective and an optimiser.

State is explicit: a TrainState goes in and is donated, and the next one comes out.
"""

import dataclasses
import functools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.stages import Lowered, Wrapped

from cojax.learner import update as arithmetic
from cojax.learner.batch import Example, RowShape, TrainBatch, count_rows, describe, pack_examples, skipped_metrics
from cojax.learner.losses import LOSSES
from cojax.learner.objective import DEFAULT_ADVANTAGE, DEFAULT_WEIGHTING, HardNegatives, Objective, bind_loss, objective
from cojax.learner.optimizer import compensate_rounding
from cojax.learner.placement import ONE_PROCESS, Hosts, Placement, advance_step, fetch, make_weights
from cojax.learner.update import Metrics, NonFiniteUpdate, Params, TrainState, compute_logprobs
from cojax.policy.adapters import Lora, add_adapters, initialize_adapters, list_adapted, make_factors, merge
from cojax.policy.attention import KERNELS
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import TokenScores, token_scores
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import cast_for_compute, evaluate, hash_leaves, jit_policy, parameters
from cojax.policy.sharding import find_platform
from cojax.policy.transformer import REMAT
from cojax.rollout.engine import Weights
from cojax.types import Group, Trajectory

# The experts that an update of a sparse model uses. "own": the router's. "compared": the router's, which are compared
# with the sampler's. "replayed": the sampler's.
ROUTES = ("own", "compared", "replayed")
# Setting → its possible values. With each_update="whole" each update of a step learns from all of the step's groups,
# with "part" from a part of its own.
_CHOICES_BY_SETTING: Mapping[str, Collection[str]] = {
    "remat": REMAT, "each_update": ("whole", "part"), "routes": ROUTES, "round_reference": ("", "initial", "round"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class StepBatches:
    """A step's packed batches, the number of the batch that each update learns from, hard negatives, and counts."""

    batches: Sequence[TrainBatch]
    batch_order: Sequence[int] = (0,)
    pairs: TrainBatch | None = None
    counts: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Stage 1's learner: it takes a state and groups, and returns the next state and metrics.

    `micro_rows` rows of `row_length` tokens go through the model at a time. `loss`, `advantage` and `weighting` name
    entries of LOSSES, ADVANTAGES and WEIGHTINGS, or `package.module:function`; their settings are keywords of those
    functions. `temperature` is the sampler's. `remat` names an entry of REMAT: what the backward pass keeps of a layer.

    A step makes `updates_per_batch` updates: each from the whole batch, or with `each_update="part"` each from its own
    part of the groups, drawn by `seed` (PPO's mini-batches). Steps listed in `skip_steps` make none. `routes` is one of
    ROUTES; it decides which experts the current, the old and the reference log-probs are computed with.

    `reference` is π_ref, stored in its compute dtype; a loss that reads reference log-probs needs it. With `lora` it is
    also the frozen base, and the state holds only the adapters. With a `mesh`, rows are split over its data and fsdp
    axes, the tokens of each over its context axis, and the reference is laid out like the parameters.
    `round_reference` is for learning in rounds (cojax/preference): π_ref is `reference` ("initial"), or the policy at
    the beginning of each round ("round"). `hard` adds a loss of the groups' hard negatives to each update. `hosts` are
    the processes that compute together.
    """

    config: ModelConfig
    optimizer: optax.GradientTransformation
    loss: str = "grpo"
    loss_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    advantage: str = DEFAULT_ADVANTAGE
    advantage_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weighting: str = DEFAULT_WEIGHTING
    weighting_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    temperature: float = 1.0
    row_length: int = 256
    micro_rows: int = 8
    updates_per_batch: int = 1
    each_update: str = "whole"
    skip_steps: Sequence[int] = ()
    seed: int = 0
    remat: str = "layers"
    routes: str = "own"
    reference: Params | None = None
    lora: Lora | None = None
    mesh: Mesh | None = None
    round_reference: str = ""
    hard: HardNegatives | None = None
    hosts: Hosts = ONE_PROCESS
    shape: RowShape = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        loss = self.objective.loss
        _check_settings(self)
        route_shape = find_route_shape(self.routes, self.config, self.loss, loss.routes)
        # Kernels know no beginnings of several sequences; routes and windows count the tokens of one.
        shares = find_platform(self.mesh) not in KERNELS and route_shape is None and self.config.layer_windows is None
        object.__setattr__(self, "shape", RowShape(self.row_length, self.micro_rows, route_shape, shares))
        if self.reference is not None:
            reference = cast_for_compute(self.config, self.reference)
            object.__setattr__(self, "reference", self.placement.params(reference, parameters(self.config)))

    @functools.cached_property
    def objective(self) -> Objective:
        """Loss, advantage and weighting. Raises ValueError for an unknown name or setting, and if they conflict."""
        return objective(
            bind_loss(self.loss, LOSSES, self.loss_settings), self.advantage, self.advantage_settings, self.weighting,
            self.weighting_settings, split_count=self.updates_per_batch if self.each_update == "part" else 1,
        )  # fmt: skip

    @functools.cached_property
    def placement(self) -> Placement:
        return Placement(self.config, self.mesh)

    @functools.cached_property
    def compensated_optimizer(self) -> optax.GradientTransformation:
        """The optimiser; for parameters stored as bfloat16 it also keeps the bits that rounding would lose."""
        stores_bfloat16 = self.lora is None and self.config.param_dtype == "bfloat16"
        return compensate_rounding(self.optimizer) if stores_bfloat16 else self.optimizer

    @property
    def reads_reference(self) -> bool:
        return "reference_logprobs" in self.objective.loss.uses and self.round_reference != "round"

    @property
    def on_policy(self) -> bool:
        """Whether π_old is the policy that an update starts from; its log-probs then need no separate pass."""
        return self.updates_per_batch == 1 and not self.round_reference

    def init(self, params: Params, seed: int = 0) -> TrainState:
        """The state before the first update. It holds copies, so that the caller's arrays survive the donation.

        With `lora` the state holds fresh adapters, drawn by `seed`; `params` is not read, and the policy begins as the
        reference. On a mesh, `params` may be ShapeDtypeStructs; the state then consists of such too.
        """
        with self.hosts.operation("init", params, seed) as record:
            if self.lora is None:
                params, table = evaluate(lambda tree: jax.tree.map(jnp.copy, tree), params), parameters(self.config)
            else:
                lora = self.lora
                params = evaluate(lambda _: initialize_adapters(self.config, lora, seed), params)
                table = tuple(factor for matrix in list_adapted(self.config, lora) for factor in make_factors(matrix))
            return record(self.placement.state(params, table, self.compensated_optimizer))

    def update(
        self, state: TrainState, groups: Sequence[Group] | StepBatches, group_sizes: Sequence[int] = ()
    ) -> tuple[TrainState, Metrics]:
        """One step of learning from groups or from packed batches. `state` is donated.

        `group_sizes` are the sizes of all groups that a step may have; () means those of `groups`. They fix the shape
        of the batch, so that a step with fewer groups is not compiled anew. If no row is live, the parameters and the
        optimiser's state stay. Raises NonFiniteUpdate, and what `pack` raises.
        """
        step_batches = groups if isinstance(groups, StepBatches) else self.pack(groups, int(state.step), group_sizes)
        pairs = None
        if step_batches.pairs is not None:
            live_count = self.count_live(step_batches.pairs)
            pairs = self.prepare(state, step_batches.pairs, live_count, hard=True), live_count
        micro_counts = [self.count_live(batch) for batch in step_batches.batches]
        # Prepare all batches before the first update: their old log-probs are those of the policy before it.
        device_batches = [
            self.prepare(state, batch, micro_count) if micro_count else None
            for batch, micro_count in zip(step_batches.batches, micro_counts, strict=True)
        ]
        update_metrics: list[Metrics] = []
        for batch_number in step_batches.batch_order:
            batch, micro_count = device_batches[batch_number], micro_counts[batch_number]
            if batch is None:
                continue
            with self.hosts.operation("update", state, batch, micro_count, pairs) as record:
                shardings = self.placement.list_shardings(state)
                state, sums = record(self._update_fn(state, self._base, batch, micro_count, pairs, shardings=shardings))
            update_metrics.append(arithmetic.mean_metrics(jax.device_get(sums), step_batches.batches[batch_number]))
            if not np.isfinite([update_metrics[-1]["loss"], update_metrics[-1]["grad_norm"]]).all():
                host_batch = jax.tree.map(lambda x: np.reshape(x, (-1, *x.shape[2:])), fetch(self.hosts, batch))
                raise NonFiniteUpdate(state, host_batch, update_metrics[-1], len(update_metrics) - 1)
        with self.hosts.operation("advance", state) as record:
            state = record(advance_step(state))
        return state, {**step_batches.counts, **arithmetic.combine_updates(update_metrics)}

    def pack(self, groups: Sequence[Group], step: int, sizes: Sequence[int] = ()) -> StepBatches:
        """Packs the batches of the step after `step`, for `update`. Raises what `batch.pack` raises."""
        if step + 1 in self.skip_steps:  # pack no batch: packing may be the step that fails
            return StepBatches((), (), counts=skipped_metrics(groups))
        seed = self.seed, step
        batches, counts = self.objective.pack_batches(groups, seed, self.shape, sizes)
        pair_batch, pair_counts = (None, {}) if self.hard is None else self.hard.pack(groups, seed, self.shape, sizes)
        batch_order = [update_number % len(batches) for update_number in range(self.updates_per_batch)]
        return StepBatches(batches, batch_order, pair_batch, {**counts, **pair_counts})

    def pack_examples(self, examples: Sequence[Example], max_examples: int) -> TrainBatch:
        """Packs pairs or trajectories into a batch with rows for `max_examples` of them."""
        rows = self.shape.rows_for(max_examples, 2 if self.objective.loss.is_paired else 1)
        return pack_examples(examples, self.shape, rows)

    def count_live(self, batch: TrainBatch) -> np.int32:
        """The number of micro-batches that hold tokens; they come first."""
        return np.int32(-(-count_rows(batch) // self.micro_rows))

    def prepare(self, state: TrainState, batch: TrainBatch, live_count: np.int32, hard: bool = False) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices, with reference and old log-probs if they are needed.

        In a batch of `hard` negatives the reference is the policy in `state`.
        """
        with self.hosts.operation("prepare", state, batch, live_count, hard) as record:
            device_batch = self.placement.split_batch(batch, self.micro_rows)
            columns: dict[str, jax.Array] = {}
            if hard or not self.on_policy:
                own_logprobs = self._forward_fn(self._base, state.params, device_batch, live_count)
                columns["reference_logprobs" if hard else "old_logprobs"] = own_logprobs
            if self.reads_reference and not hard:
                columns["reference_logprobs"] = self._forward_fn(self.reference, None, device_batch, live_count)
            elif self.round_reference == "round" and not hard:
                columns["reference_logprobs"] = columns["old_logprobs"]
            return record(dataclasses.replace(device_batch, **columns))

    def update_once(
        self, state: TrainState, batch: TrainBatch, count: np.int32, pairs: tuple[TrainBatch, np.int32] | None = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """One update of `update`, from the first `count` micro-batches of a prepared batch, and of pairs."""
        with self.hosts.operation("update", state, batch, count, pairs) as record:
            shardings = self.placement.list_shardings(state)
            return record(self._update_fn(state, self._base, batch, count, pairs, shardings=shardings))

    def lower_programs(
        self, state: TrainState, batch: TrainBatch, pairs: TrainBatch | None = None
    ) -> Mapping[str, Callable[[], Lowered]]:
        """Functions that lower the programs of `update_once` (update) and of `prepare` (reference, old, pairs)."""
        batch, count = self.placement.outline_batch(batch, self.micro_rows), np.int32(1)
        extra = None if pairs is None else (self.placement.outline_batch(pairs, self.micro_rows), count)
        defer, shardings = functools.partial, self.placement.list_shardings(state)
        programs = {"update": defer(self._update_fn.lower, state, self._base, batch, count, extra, shardings=shardings)}
        if self.reads_reference:
            programs["reference"] = defer(self._forward_fn.lower, self.reference, None, batch, count)
        if not self.on_policy:
            programs["old"] = defer(self._forward_fn.lower, self._base, state.params, batch, count)
        if extra is not None:
            programs["pairs"] = defer(self._forward_fn.lower, self._base, state.params, *extra)
        return programs

    def policy(self, state: TrainState) -> Params:
        """The policy with adapters merged into their matrices, which have `config.dtype`."""
        with self.hosts.operation("policy", state) as record:
            if self.lora is None:
                return record(cast_for_compute(self.config, state.params))
            assert self.reference is not None
            return record(merge(self.config, self.lora, self.reference, state.params))

    def weights(self, state: TrainState, version: int) -> Weights:
        """The policy for an engine, under Hugging Face names. Read it before the next update, which donates `state`."""
        make_policy, hash_policy = functools.partial(self.policy, state), functools.partial(self.fingerprint, state)
        return make_weights(self.config, make_policy, self.hosts, version, hash_policy)

    def fingerprint(self, state: TrainState) -> str:
        """A string that is equal for equal policies."""
        with self.hosts.operation("policy_fingerprint", state) as record:
            return record(hash_leaves((state.params, None if self.lora is None else self.reference)))

    @functools.cached_property
    def _update_fn(self) -> Wrapped:
        """`arithmetic.update`, jitted: (state, frozen, batch [M, b, T], count, pairs, shardings) → (state, metrics)."""
        loss = self.objective.loss
        update = functools.partial(
            arithmetic.update, score=functools.partial(self._scores, entropy=loss.entropy), cast=self._cast, loss=loss,
            optimizer=self.compensated_optimizer, on_policy=self.on_policy,
            pair_loss=None if self.hard is None else self.hard.loss,
        )  # fmt: skip
        functools.update_wrapper(update, arithmetic.update)  # its name, which profiles show
        return jit_policy(update, self.config, donate_argnums=0, static_argnames="shardings")

    @functools.cached_property
    def _forward_fn(self) -> Wrapped:
        """(frozen, params, batch [M, b, T], count) → float32[M, b, T], without gradient; 0 beyond the count."""

        def forward(base: Params | None, params: Params | None, batch: TrainBatch, count: jax.Array) -> jax.Array:
            score = functools.partial(self._scores, base, self._cast(params), entropy="none")
            return compute_logprobs(score, batch, count)

        return jit_policy(forward, self.config, out_shardings=self.placement.batch)

    def _scores(self, base: Params | None, params: Params | None, batch: TrainBatch, *, entropy: str) -> TokenScores:
        """Scores float32[b, T] of a policy.

        The policy is `params` or `base`, whichever is given; if both are, it is `base` with adapters `params`.
        """
        policy_params = base if params is None else params
        if base is not None and params is not None:
            assert self.lora is not None
            policy_params = add_adapters(self.config, self.lora, base, params)
        assert policy_params is not None
        return token_scores(
            self.config, policy_params, batch.tokens, batch.positions, batch.segment_ids, mask=batch.weights > 0,
            temperature=self.temperature, remat=self.remat, mesh=self.mesh, entropy=entropy, routes=batch.routes,
            replay=self.routes == "replayed", prefix_ids=batch.prefix_ids if self.shape.shares else None,
        )  # fmt: skip

    def _cast(self, params: Params | None) -> Params | None:
        """The learned parameters in the dtypes of their products; adapters stay as they are."""
        return params if params is None or self.lora is not None else cast_for_compute(self.config, params)

    @property
    def _base(self) -> Params | None:
        """The base of adapters, which an update reads but does not change; None without adapters."""
        return None if self.lora is None else self.reference


def _check_settings(learner: Learner) -> None:
    """Raises ValueError that says what to set instead."""
    for setting_name, choices in _CHOICES_BY_SETTING.items():
        if (choice := vars(learner)[setting_name]) not in choices:
            raise ValueError(f"{setting_name} {choice!r} not found; available: {', '.join(sorted(choices))}")
    if learner.config.dtype == "float16":
        raise ValueError(
            "dtype is float16, in which gradients of single tokens vanish; set model.dtype=bfloat16 or float32"
        )
    if learner.updates_per_batch < 1:
        raise ValueError(f"updates_per_batch is {learner.updates_per_batch}; expected 1 or more")
    if learner.reads_reference and learner.reference is None:
        raise ValueError(
            f"loss {learner.loss!r} reads reference_logprobs under its settings, but there is no reference; pass "
            "reference=params, or set the coefficient of that term, such as kl_coefficient, to 0"
        )
    if learner.lora is not None and learner.reference is None:
        raise ValueError("lora needs a reference, which the adapters are added to; pass reference=params")
    if learner.micro_rows % (shards := learner.placement.row_shards):
        raise ValueError(
            f"micro_rows is {learner.micro_rows}, but the mesh splits rows {shards} ways; set a multiple of {shards}"
        )


def find_route_shape(routes: str, config: ModelConfig, loss: str, loss_reads_routes: bool) -> RouteShape | None:
    """The shape of the routes that batches hold; None if they hold none.

    Raises ValueError for routes of a dense model, and for a loss that reads routes while `routes` is "own".
    """
    if routes != "own":
        return RouteShape.of(config)
    if loss_reads_routes:
        raise ValueError(
            f"loss {loss!r} reads routes_differing, but the sampler is not asked for its routes; set "
            "--config.learner.routes=compared or replayed"
        )
    return None


def learn_round(
    learner: Learner,
    state: TrainState,
    examples: Sequence[Example],
    epochs: int,
    batch_size: int,
    seed: tuple[int | str, ...],
) -> tuple[TrainState, Metrics]:
    """One round of learning; `state` is donated. All examples are pairs, or all are trajectories.

    `seed` deals the examples to batches of `batch_size`, and each of the `epochs` takes the batches in an order of its
    own. All reference and old log-probs are computed before the first update. Metrics are means over updates;
    `tokens_trained` and `tokens_processed` are sums over them. Without examples the policy stays as it is. Raises
    NonFiniteUpdate, and what `assign_rows` raises.
    """
    if int(state.step) + 1 in learner.skip_steps:
        examples = ()
    shuffled_examples = random.Random(repr(("round", seed))).sample(list(examples), len(examples))
    batches = [
        learner.pack_examples(shuffled_examples[start : start + batch_size], batch_size)
        for start in range(0, len(shuffled_examples), batch_size)
    ]
    batch_order = [
        batch_number
        for epoch in range(epochs)
        for batch_number in random.Random(repr(("epoch", epoch, seed))).sample(range(len(batches)), len(batches))
    ]
    state, metrics = learner.update(state, StepBatches(batches, batch_order))
    batch_counts = [describe(batches[batch_number]) for batch_number in batch_order]
    sums = {name: sum(counts[name] for counts in batch_counts) for name in ("tokens_trained", "tokens_processed")}
    return state, {**arithmetic.combine_updates(batch_counts), **metrics, **sums}


def get_log_ratio(learner: Learner, state: TrainState, trajectories: Sequence[Trajectory], batch_size: int) -> float:
    """The mean over sampled tokens of log π_sampler − log π of the policy in `state`, in nats; 0 without a token.

    It estimates KL(π_sampler ‖ π) per token. The learner must learn in rounds.
    """
    log_ratio_sum, token_count = 0.0, 0
    for start in range(0, len(trajectories), batch_size):
        batch = learner.pack_examples(trajectories[start : start + batch_size], batch_size)
        device_batch = fetch(learner.hosts, learner.prepare(state, batch, learner.count_live(batch)))
        logprobs = device_batch.old_logprobs.reshape(batch.tokens.shape)
        mask = batch.weights > 0
        log_ratio_sum += float((batch.sampler_logprobs - logprobs)[mask].sum(dtype=np.float64))
        token_count += int(mask.sum())
    return log_ratio_sum / token_count if token_count else 0.0

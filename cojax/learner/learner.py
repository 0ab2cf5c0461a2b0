"""`Learner`: one step of learning, the jitted update bound to a model, an objective and an optimiser.

State is explicit: a TrainState goes in and is donated; the next one comes out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.stages import Lowered, Wrapped

from cojax.learner.batch import TrainBatch
from cojax.learner.conflicts import check_settings
from cojax.learner.hard_negatives import HardNegatives
from cojax.learner.hosts import ONE_PROCESS, Hosts, advance, fetch, together
from cojax.learner.objective import Objective, objective
from cojax.learner.packing import describe, live_rows, skipped_metrics
from cojax.learner.placement import Placement, Shardings
from cojax.learner.rounding import compensate_rounding
from cojax.learner.routing import required_route_shape
from cojax.learner.saved_policy import weights_of
from cojax.learner.train_state import Params, TrainState
from cojax.learner.update import Metrics, NonFiniteUpdate, batch_logprobs, combine_updates, mean_metrics, train_step
from cojax.policy.adapters import Lora, adapted_rows, add_adapters, factors, initialize_adapters, merge
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import TokenScores, token_scores
from cojax.policy.moe import RouteShape
from cojax.policy.parameters import cast_for_compute, evaluate, fingerprint, parameters
from cojax.rollout.engine import Weights
from cojax.settings.tree import LearnerSettings
from cojax.types import Group

# A prepared batch of pairs, and the number of its live micro-batches.
PreparedPairs = tuple[TrainBatch, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Stage 1's learner: takes a state and groups, returns the next state and metrics.

    `micro_rows` rows of `row_length` tokens go through the model at a time. `loss`, `advantage` and `weighting` name
    entries of LOSSES, ADVANTAGES and WEIGHTINGS, or `package.module:function`; their settings are keywords of those
    functions. `temperature` is the sampler's. `remat` names an entry of REMAT: what the backward pass keeps of a layer.

    A step makes `updates_per_batch` updates: each from the whole batch, or with `each_update="part"` each from its own
    part of the groups, drawn by `seed` (PPO's mini-batches). Steps listed in `skip_steps` make none. `routes` is one of
    ROUTES: it says which experts the current, the old and the reference log-probs are computed with.

    `reference` is π_ref, stored in the dtype it is computed in; a loss that reads reference log-probs needs it. With
    `lora` it is also the frozen base, and the state holds only the adapters. With a `mesh`, rows are split over its
    data and fsdp axes, and the reference is spread like the parameters. `round_reference` is for learning in rounds
    (rounds.py): π_ref is `reference` ("initial"), or the policy at the beginning of each round ("round"). `hard` adds a
    loss of the groups' hard negatives to each update. `hosts` are the processes that compute together.
    """

    config: ModelConfig
    optimizer: optax.GradientTransformation
    loss: str = LearnerSettings.loss
    loss_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    advantage: str = LearnerSettings.advantage
    advantage_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weighting: str = LearnerSettings.weighting
    weighting_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    temperature: float = 1.0
    row_length: int = 256
    micro_rows: int = LearnerSettings.micro_rows
    updates_per_batch: int = LearnerSettings.updates_per_batch
    each_update: str = LearnerSettings.each_update
    skip_steps: Sequence[int] = LearnerSettings.skip_steps
    seed: int = 0
    remat: str = LearnerSettings.remat
    routes: str = LearnerSettings.routes
    reference: Params | None = None
    lora: Lora | None = None
    mesh: Mesh | None = None
    round_reference: str = ""
    hard: HardNegatives | None = None
    hosts: Hosts = ONE_PROCESS
    route_shape: RouteShape | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        check_settings(self)
        shape = required_route_shape(self.routes, self.config, self.loss, self.objective.loss.routes)
        object.__setattr__(self, "route_shape", shape)
        if self.reference is not None:
            reference = cast_for_compute(self.config, self.reference)
            object.__setattr__(self, "reference", self.placement.params(reference, parameters(self.config)))

    @functools.cached_property
    def objective(self) -> Objective:
        """Loss, advantage and weighting. Raises ValueError for an unknown name or setting, and where they conflict."""
        return objective(
            self.loss, self.loss_settings, self.advantage, self.advantage_settings, self.weighting,
            self.weighting_settings, parts=self.updates_per_batch if self.each_update == "part" else 1,
        )  # fmt: skip

    @functools.cached_property
    def placement(self) -> Placement:
        return Placement(self.config, self.mesh)

    @functools.cached_property
    def compensated_optimizer(self) -> optax.GradientTransformation:
        """The optimiser; for parameters stored as bfloat16 with the bits that rounding would lose."""
        stored_half = self.lora is None and self.config.param_dtype == "bfloat16"
        return compensate_rounding(self.optimizer) if stored_half else self.optimizer

    @property
    def reads_reference(self) -> bool:
        return "reference_logprobs" in self.objective.loss.uses and self.round_reference != "round"

    @property
    def on_policy(self) -> bool:
        """Whether every update starts from the policy that π_old is."""
        return self.updates_per_batch == 1 and not self.round_reference

    @together
    def init(self, params: Params, seed: int = 0) -> TrainState:
        """The state before the first update. It holds copies, so that the caller's arrays outlive the donated ones.

        With `lora` the state holds fresh adapters, drawn by `seed`; `params` is not read, and the policy begins as the
        reference. On a mesh, `params` may be outlines (ShapeDtypeStruct); the state then consists of outlines too.
        """
        if self.lora is None:
            params, rows = evaluate(lambda tree: jax.tree.map(jnp.copy, tree), params), parameters(self.config)
        else:
            lora = self.lora
            params = evaluate(lambda _: initialize_adapters(self.config, lora, seed), params)
            rows = tuple(factor for row in adapted_rows(self.config, lora) for factor in factors(row))
        return self.placement.state(params, rows, self.compensated_optimizer)

    def update(
        self, state: TrainState, groups: Sequence[Group], sizes: Sequence[int] = ()
    ) -> tuple[TrainState, Metrics]:
        """One step of learning from groups. Raises what `pack` and `train` raise.

        `sizes` are trajectories of each group that a step may have; () means those of the given groups. The batch has
        the shape for `sizes`, so that a step with fewer groups is not compiled anew.
        """
        step = int(state.step)
        if step + 1 in self.skip_steps:  # no batch is made: making it may be what fails
            return advance(self.hosts, state), skipped_metrics(groups)
        batches, facts = self.objective.batches(
            groups, (self.seed, step), self.row_length, self.micro_rows, sizes, self.route_shape
        )
        pairs, found = None, dict[str, float]()
        if self.hard is not None:
            packed, found = self.hard.pack(
                groups, (self.seed, step), self.row_length, self.micro_rows, sizes, self.route_shape
            )
            pairs = self.prepare_pairs(state, packed, np.int32(-(-live_rows(packed) // self.micro_rows)))
        state, metrics = self._learn(state, batches, pairs)
        return state, {**facts, **found, **metrics}

    def train(self, state: TrainState, batch: TrainBatch) -> tuple[TrainState, Metrics]:
        """One step of learning from a packed batch, whose rows are a multiple of `micro_rows`. `state` is donated.

        Where no row is live, the parameters and the optimiser's state stay. Raises NonFiniteUpdate.
        """
        state, metrics = self._learn(state, [batch])
        return state, {**describe(batch), **metrics}

    def _learn(
        self, state: TrainState, batches: Sequence[TrainBatch], pairs: PreparedPairs | None = None
    ) -> tuple[TrainState, Metrics]:
        """The updates of a step: one from each batch in turn, or all of them from the only batch."""
        counts = [np.int32(-(-live_rows(batch) // self.micro_rows)) for batch in batches]
        # All batches are prepared before the first update: their old log-probs are those of the policy before it.
        placed = [
            self.prepare(state, batch, count) if count else None for batch, count in zip(batches, counts, strict=True)
        ]
        updates: list[Metrics] = []
        for number in range(self.updates_per_batch):
            index = number % len(batches)
            batch = placed[index]
            if batch is None:
                continue
            state, raw = self.apply(state, batch, counts[index], pairs)
            updates.append(mean_metrics(jax.device_get(raw), batches[index]))
            if not np.isfinite([updates[-1]["loss"], updates[-1]["grad_norm"]]).all():
                flat = jax.tree.map(lambda array: np.reshape(array, (-1, *array.shape[2:])), fetch(self.hosts, batch))
                raise NonFiniteUpdate(state, flat, updates[-1], len(updates) - 1)
        return advance(self.hosts, state), combine_updates(updates)

    @together
    def prepare(self, state: TrainState, batch: TrainBatch, count: np.int32) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices, with reference and old log-probs where they are needed."""
        placed = self.placement.micro_batches(batch, self.micro_rows)
        if not self.on_policy:
            old = self._forward(self._frozen, state.params, placed, count)
            placed = dataclasses.replace(placed, old_logprobs=old)
        if self.reads_reference:
            reference = self._forward(self.reference, None, placed, count)
            placed = dataclasses.replace(placed, reference_logprobs=reference)
        elif self.round_reference == "round":
            placed = dataclasses.replace(placed, reference_logprobs=placed.old_logprobs)
        return placed

    @together
    def prepare_pairs(self, state: TrainState, batch: TrainBatch, count: np.int32) -> PreparedPairs:
        """As `prepare`, of hard negatives: their reference is the policy in `state`."""
        placed = self.placement.micro_batches(batch, self.micro_rows)
        reference = self._forward(self._frozen, state.params, placed, count)
        return dataclasses.replace(placed, reference_logprobs=reference), count

    @together
    def apply(
        self, state: TrainState, batch: TrainBatch, count: np.int32, pairs: PreparedPairs | None = None
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """`train_step` on the first `count` micro-batches of a prepared batch, and on pairs. `state` is donated."""
        return self._step(state, self._frozen, batch, count, pairs, shardings=self.placement.shardings(state))

    def lowered(self, state: TrainState, batch: TrainBatch, pairs: TrainBatch | None = None) -> dict[str, Lowered]:
        """Programs of `apply` (update), `prepare` (reference, old) and `prepare_pairs` (pairs), for these shapes."""
        batch, count = self.placement.abstract(batch, self.micro_rows), np.int32(1)
        extra = None if pairs is None else (self.placement.abstract(pairs, self.micro_rows), count)
        shardings = self.placement.shardings(state)
        lowered = {"update": self._step.lower(state, self._frozen, batch, count, extra, shardings=shardings)}
        if self.reads_reference:
            lowered["reference"] = self._forward.lower(self.reference, None, batch, count)
        if not self.on_policy:
            lowered["old"] = self._forward.lower(self._frozen, state.params, batch, count)
        if extra is not None:
            lowered["pairs"] = self._forward.lower(self._frozen, state.params, *extra)
        return lowered

    @together
    def policy(self, state: TrainState) -> Params:
        """The policy without adapters: they are summed into their matrices, which have `config.dtype`."""
        if self.lora is None:
            return cast_for_compute(self.config, state.params)
        assert self.reference is not None
        return merge(self.config, self.lora, self.reference, state.params)

    def weights(self, state: TrainState, version: int) -> Weights:
        """The policy for an engine, under Hugging Face names. Read it before the next update, which takes `state`."""
        policy, name = functools.partial(self.policy, state), functools.partial(self.fingerprint, state)
        return weights_of(self.config, policy, self.hosts, version, name)

    @together
    def fingerprint(self, state: TrainState) -> str:
        """Equal for equal policies."""
        return fingerprint((state.params, None if self.lora is None else self.reference))

    @functools.cached_property
    def _step(self) -> Wrapped:
        """(state, frozen, batch [M, b, T], count, pairs, shardings) → (state, metrics); the state is donated."""

        def step(
            state: TrainState, frozen: Params | None, batch: TrainBatch, count: jax.Array, pairs: PreparedPairs | None,
            *, shardings: Shardings,
        ) -> tuple[TrainState, dict[str, jax.Array]]:  # fmt: skip
            return train_step(
                state, batch, count,
                score=functools.partial(self._scores, frozen, entropy=self.objective.loss.entropy),
                loss=self.objective.loss, optimizer=self.compensated_optimizer,
                on_policy=self.on_policy, shardings=shardings,
                extra=None if pairs is None or self.hard is None else (*pairs, self.hard.loss),
            )  # fmt: skip

        return jax.jit(step, donate_argnums=0, static_argnames="shardings")

    @functools.cached_property
    def _forward(self) -> Wrapped:
        """(frozen, params, batch [M, b, T], count) → float32[M, b, T], without gradient; 0 beyond `count`."""

        def forward(frozen: Params | None, params: Params | None, batch: TrainBatch, count: jax.Array) -> jax.Array:
            return batch_logprobs(functools.partial(self._scores, frozen, params, entropy="none"), batch, count)

        return jax.jit(forward, out_shardings=self.placement.batch)

    def _scores(self, frozen: Params | None, params: Params | None, batch: TrainBatch, *, entropy: str) -> TokenScores:
        """Scores float32[b, T] of a policy.

        The policy is `params` or `frozen`, whichever is given; where both are, it is `frozen` with adapters `params`.
        """
        policy = frozen if params is None else params
        if frozen is not None and params is not None:
            assert self.lora is not None
            policy = add_adapters(self.config, self.lora, frozen, params)
        assert policy is not None
        rows = batch.tokens, batch.positions, batch.segment_ids
        return token_scores(
            self.config, policy, *rows, wanted=batch.weights > 0, temperature=self.temperature, remat=self.remat,
            mesh=self.mesh, entropy=entropy, routes=batch.routes, replay=self.routes == "replayed",
        )  # fmt: skip

    @property
    def _frozen(self) -> Params | None:
        """The parameters that an update reads and does not change: the base of adapters."""
        return None if self.lora is None else self.reference

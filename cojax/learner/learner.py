"""A step of learning: `Learner` binds the one jitted update to a model, an objective and an optimiser.

State is explicit: a TrainState goes in, is donated, and the next one comes out.
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

from cojax.learner.batch import TrainBatch, describe, live_rows, skipped
from cojax.learner.objective import ADVANTAGE, WEIGHTING, Objective, objective
from cojax.learner.placement import Placement, Shardings
from cojax.learner.rounding import kept_exactly
from cojax.learner.routing import ROUTES, shape_read
from cojax.learner.update import Metrics, NonFiniteUpdate, Params, TrainState, averaged, micro_batch, train_step
from cojax.policy.adapters import Lora, adapted, adapted_rows, factors, initialize_adapters, merge
from cojax.policy.config import ModelConfig
from cojax.policy.fingerprint import fingerprint
from cojax.policy.logprobs import TokenScores, token_scores
from cojax.policy.parameters import parameters, to_hf
from cojax.policy.precision import computed
from cojax.policy.routes import RouteShape
from cojax.policy.transformer import REMAT
from cojax.rollout.engine import Weights
from cojax.types import Group

# What each of a step's updates sees.
_EACH_UPDATE = ("whole", "part")


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Stage 1's learner: groups in, the next TrainState and figures out.

    `micro_rows` rows of `row_length` tokens go through the model at a time. `loss`, `advantage` and `weighting` name
    entries of LOSSES, ADVANTAGES and WEIGHTINGS, or `package.module:function`; their settings are those functions'
    keywords. `temperature` is the one sampled with. `remat` names what the backward pass keeps of a layer (REMAT).

    A step makes `updates_per_batch` updates: each of the whole batch, or with `each_update="part"` each of its own part
    of the groups, dealt out by `seed` (PPO's mini-batches). Steps listed in `skip_steps` make none.
    `routes` is one of ROUTES, by whose experts all log-probs are: current, old and reference.

    `reference` is π_ref, needed where the loss reads its log-probs, and kept as it is computed with. With `lora` it is
    also what stays frozen: the state then holds the adapters beside it alone. With a `mesh`, rows are split over its
    data and fsdp axes, and the reference like the parameters.
    """

    config: ModelConfig
    optimizer: optax.GradientTransformation
    loss: str = "grpo"
    loss_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    advantage: str = ADVANTAGE
    advantage_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    weighting: str = WEIGHTING
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
    route_shape: RouteShape | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        for kind, known in (("remat", REMAT), ("each_update", _EACH_UPDATE), ("routes", ROUTES)):
            name = vars(self)[kind]
            if name not in known:
                raise ValueError(f"{kind} {name!r} not found; available: {', '.join(sorted(known))}")
        if self.config.dtype == "float16":
            raise ValueError(
                "dtype is float16, in which gradients of single tokens vanish; set model.dtype=bfloat16 or float32"
            )
        if self.updates_per_batch < 1:
            raise ValueError(f"updates_per_batch is {self.updates_per_batch}; expected 1 or more")
        if self.reads_reference and self.reference is None:
            raise ValueError(
                f"loss {self.loss!r} reads reference_logprobs under its settings, but there is no reference; pass "
                "reference=params, or set what weighs it, as kl_coefficient, to 0"
            )
        if self.lora is not None and self.reference is None:
            raise ValueError("lora without a reference; pass reference=params, which the adapters are added to")
        if self.micro_rows % (shards := self.placing.row_shards):
            raise ValueError(
                f"micro_rows is {self.micro_rows}, the mesh splits rows {shards} ways; make it a multiple of {shards}"
            )
        shape = shape_read(self.routes, self.config, self.loss, self.objective.loss.routes)
        object.__setattr__(self, "route_shape", shape)
        if self.reference is not None:
            reference = computed(self.config, self.reference)
            object.__setattr__(self, "reference", self.placing.params(reference, parameters(self.config)))

    @functools.cached_property
    def objective(self) -> Objective:
        """Raises ValueError for an unknown name or setting, and for what does not go together."""
        return objective(
            self.loss,
            self.loss_settings,
            self.advantage,
            self.advantage_settings,
            self.weighting,
            self.weighting_settings,
            parts=self.updates_per_batch if self.each_update == "part" else 1,
        )

    @functools.cached_property
    def placing(self) -> Placement:
        return Placement(self.config, self.mesh)

    @functools.cached_property
    def whole_optimizer(self) -> optax.GradientTransformation:
        """The optimiser; where parameters are stored as bfloat16, with what would be rounded away."""
        stored_half = self.lora is None and self.config.param_dtype == "bfloat16"
        return kept_exactly(self.optimizer) if stored_half else self.optimizer

    @property
    def reads_reference(self) -> bool:
        return "reference_logprobs" in self.objective.loss.uses

    @property
    def on_policy(self) -> bool:
        """Whether the policy of every update is the one whose log-probs are called old."""
        return self.updates_per_batch == 1

    def init(self, params: Params, seed: int = 0) -> TrainState:
        """The state before the first update. Copies: the caller's arrays outlive the donated ones.

        With `lora` it holds fresh adapters, drawn by `seed`; the policy begins as the reference: `params` is not read.
        """
        if self.lora is None:
            params, rows = jax.tree.map(jnp.copy, params), parameters(self.config)
        else:
            params = initialize_adapters(self.config, self.lora, seed)
            rows = tuple(factor for row in adapted_rows(self.config, self.lora) for factor in factors(row))
        return self.placing.state(params, rows, self.whole_optimizer)

    def update(
        self, state: TrainState, groups: Sequence[Group], room: Sequence[int] = ()
    ) -> tuple[TrainState, Metrics]:
        """One step of learning; `room` are sizes of the groups it may have, if fewer. Raises as `pack` and `train`."""
        step = int(state.step)
        if step + 1 in self.skip_steps:  # nothing is made of its groups: that may be what fails
            return dataclasses.replace(state, step=state.step + 1), skipped(groups)
        batches, facts = self.objective.batches(
            groups, (self.seed, step), self.row_length, self.micro_rows, room, self.route_shape
        )
        state, metrics = self._learn(state, batches)
        return state, {**facts, **metrics}

    def train(self, state: TrainState, batch: TrainBatch) -> tuple[TrainState, Metrics]:
        """One step of learning from a packed batch, whose rows are a multiple of `micro_rows`. `state` is donated.

        Without a live row the parameters and the optimiser's state stay as they are. Raises NonFiniteUpdate.
        """
        state, metrics = self._learn(state, [batch])
        return state, {**describe(batch), **metrics}

    def _learn(self, state: TrainState, batches: Sequence[TrainBatch]) -> tuple[TrainState, Metrics]:
        """The updates of a step, on each batch in turn, or as many on the only one."""
        counts = [np.int32(-(-live_rows(batch) // self.micro_rows)) for batch in batches]
        # All of them before the first update, by the policy that is called old.
        placed = [
            self.prepare(state, batch, count) if count else None for batch, count in zip(batches, counts, strict=True)
        ]
        updates: list[Metrics] = []
        for number in range(self.updates_per_batch):
            index = number % len(batches)
            batch = placed[index]
            if batch is None:
                continue
            tokens = float((batches[index].weights > 0).sum())
            state, raw = self.apply(state, batch, counts[index])
            updates.append(averaged(jax.device_get(raw), tokens))
            if not np.isfinite([updates[-1]["loss"], updates[-1]["grad_norm"]]).all():
                flat = jax.tree.map(lambda array: np.reshape(array, (-1, *array.shape[2:])), jax.device_get(batch))
                raise NonFiniteUpdate(state, flat, updates[-1], len(updates) - 1)
        metrics: Metrics = {"updates": float(len(updates))}
        for name in updates[0] if updates else ():
            values = [update[name] for update in updates]
            metrics[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        return dataclasses.replace(state, step=state.step + 1), metrics

    def prepare(self, state: TrainState, batch: TrainBatch, count: np.int32) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices, with those log-probs that are not the current ones."""
        placed = self.placing.micro_batches(batch, self.micro_rows)
        if self.reads_reference:
            reference = self._forward(self.reference, None, placed, count)
            placed = dataclasses.replace(placed, reference_logprobs=reference)
        if not self.on_policy:
            old = self._forward(self._frozen, state.params, placed, count)
            placed = dataclasses.replace(placed, old_logprobs=old)
        return placed

    def apply(self, state: TrainState, batch: TrainBatch, count: np.int32) -> tuple[TrainState, dict[str, jax.Array]]:
        """`train_step` on the first `count` micro-batches of a prepared batch. `state` is donated."""
        return self._step(state, self._frozen, batch, count, shardings=self.placing.of(state))

    def programs(self, state: TrainState, batch: TrainBatch) -> list[jax.stages.Compiled]:
        """What `prepare` and `apply` run, compiled for a batch [B, T] of this shape; later calls find it compiled."""
        batch, count = self.placing.abstract(batch, self.micro_rows), np.int32(1)
        lowered = [self._step.lower(state, self._frozen, batch, count, shardings=self.placing.of(state))]
        if self.reads_reference:
            lowered.append(self._forward.lower(self.reference, None, batch, count))
        if not self.on_policy:
            lowered.append(self._forward.lower(self._frozen, state.params, batch, count))
        return [program.compile() for program in lowered]

    @property
    def devices(self) -> Sequence[jax.Device]:
        """Where it computes."""
        return self.placing.devices

    def policy(self, state: TrainState) -> Params:
        """The whole policy, as the update computes with it: adapters summed in, matrices as `config.dtype`."""
        if self.lora is None:
            return computed(self.config, state.params)
        assert self.reference is not None
        return merge(self.config, self.lora, self.reference, state.params)

    def weights(self, state: TrainState, version: int) -> Weights:
        """The policy for an engine, under its HF names. To be read before `state` is given to the next update."""
        # Arrays of to_hf are copies of their own: the next update is given these buffers to overwrite.
        learned = (state.params, None if self.lora is None else self.reference)
        return Weights(
            version,
            lambda: to_hf(self.config, self.policy(state)),
            fingerprint=lambda: fingerprint(learned),
        )

    @functools.cached_property
    def _step(self) -> jax.stages.Wrapped:
        """(state, frozen, batch [M, b, T], count, shardings) → (state, metrics); the state is donated."""

        def step(
            state: TrainState, frozen: Params | None, batch: TrainBatch, count: jax.Array, *, shardings: Shardings
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            return train_step(
                state,
                batch,
                count,
                score=functools.partial(self._scores, frozen, entropy=self.objective.loss.entropy),
                loss=self.objective.loss,
                optimizer=self.whole_optimizer,
                on_policy=self.on_policy,
                shardings=shardings,
            )

        return jax.jit(step, donate_argnums=0, static_argnames="shardings")

    @functools.cached_property
    def _forward(self) -> jax.stages.Wrapped:
        """(frozen, params, batch [M, b, T], count) → float32[M, b, T], without gradient; 0 beyond `count`."""

        def forward(frozen: Params | None, params: Params | None, batch: TrainBatch, count: jax.Array) -> jax.Array:
            def fill(index: jax.Array, out: jax.Array) -> jax.Array:
                scores = self._scores(frozen, params, micro_batch(batch, index), entropy="none")
                return jax.lax.dynamic_update_index_in_dim(out, scores.logprobs, index, 0)

            return jax.lax.fori_loop(0, count, fill, jnp.zeros(batch.tokens.shape, jnp.float32))

        return jax.jit(forward, out_shardings=self.placing.batch)

    def _scores(self, frozen: Params | None, params: Params | None, batch: TrainBatch, *, entropy: str) -> TokenScores:
        """Of a policy, float32[b, T] each: all of it in either, or frozen with adapters as the params."""
        policy = frozen if params is None else params
        if frozen is not None and params is not None:
            assert self.lora is not None
            policy = adapted(self.config, self.lora, frozen, params)
        assert policy is not None
        return token_scores(
            self.config,
            policy,
            batch.tokens,
            batch.positions,
            batch.segment_ids,
            wanted=batch.weights > 0,
            temperature=self.temperature,
            remat=self.remat,
            mesh=self.mesh,
            entropy=entropy,
            routes=batch.routes,
            replay=self.routes == "replayed",
        )

    @property
    def _frozen(self) -> Params | None:
        """What an update reads beside its state."""
        return None if self.lora is None else self.reference

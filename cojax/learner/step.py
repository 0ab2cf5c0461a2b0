"""A step of learning: `Learner` binds the one jitted update to a model, a loss and an optimiser.

State is explicit: a TrainState goes in, is donated, and the next one comes out.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from cojax.learner.advantages import ADVANTAGES
from cojax.learner.batch import TrainBatch, describe, live_rows, pack, staleness
from cojax.learner.losses import LOSSES
from cojax.learner.update import Metrics, NonFiniteUpdate, Params, TrainState, micro_batch, train_step
from cojax.policy.adapters import Lora, adapted, adapted_rows, factors, initialize_adapters, merge
from cojax.policy.config import ModelConfig
from cojax.policy.fingerprint import fingerprint
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import Parameter, parameters, to_hf
from cojax.policy.precision import computed
from cojax.policy.sharding import shard
from cojax.policy.transformer import REMAT
from cojax.rollout.engine import Weights
from cojax.types import Group

Shardings = tuple[jax.sharding.Sharding, ...] | None


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Stage 1's learner: groups in, the next TrainState and figures out.

    `micro_rows` rows of `row_length` tokens go through the model at a time. `loss` and `advantage` name entries of
    LOSSES and ADVANTAGES; `loss_settings` are that loss's keywords. `temperature` is the one sampled with. `remat`
    names what the backward pass keeps of a layer (REMAT).
    `reference` is π_ref, needed where kl_coefficient > 0, and kept as it is computed with. With `lora` it is also what
    stays frozen: the state then holds the adapters beside it alone. With a `mesh`, rows are split over its data and
    fsdp axes, and the reference like the parameters.
    """

    config: ModelConfig
    optimizer: optax.GradientTransformation
    loss: str = "grpo"
    loss_settings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    advantage: str = "group_relative"
    temperature: float = 1.0
    row_length: int = 256
    micro_rows: int = 8
    updates_per_batch: int = 1
    remat: str = "layers"
    reference: Params | None = None
    lora: Lora | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        named: Sequence[tuple[str, str, Mapping[str, object]]] = (
            ("loss", self.loss, LOSSES), ("advantage", self.advantage, ADVANTAGES), ("remat", self.remat, REMAT),
        )  # fmt: skip
        for kind, name, table in named:
            if name not in table:
                raise ValueError(f"{kind} {name!r} not found; available: {', '.join(sorted(table))}")
        known = [p.name for p in inspect.signature(LOSSES[self.loss]).parameters.values() if p.kind == p.KEYWORD_ONLY]
        if unknown := sorted(set(self.loss_settings) - set(known)):
            raise ValueError(
                f"loss {self.loss!r} has no setting {', '.join(unknown)}; it has: {', '.join(known) or 'none'}"
            )
        if self.config.dtype == "float16":
            raise ValueError(
                "dtype is float16, in which gradients of single tokens vanish; set model.dtype=bfloat16 or float32"
            )
        if self.updates_per_batch < 1:
            raise ValueError(f"updates_per_batch is {self.updates_per_batch}; expected 1 or more")
        if self.kl_coefficient > 0 and self.reference is None:
            raise ValueError(
                f"kl_coefficient is {self.kl_coefficient} but there is no reference; "
                "pass reference=params, or set it to 0"
            )
        if self.lora is not None and self.reference is None:
            raise ValueError("lora without a reference; pass reference=params, which the adapters are added to")
        if self.mesh is not None and self.micro_rows % self._row_shards:
            raise ValueError(
                f"micro_rows is {self.micro_rows}, the mesh splits rows {self._row_shards} ways; "
                f"make it a multiple of {self._row_shards}"
            )
        if self.reference is not None:
            reference = computed(self.config, self.reference)
            placed = reference if self.mesh is None else self._spread(reference, parameters(self.config))
            object.__setattr__(self, "reference", placed)

    @property
    def kl_coefficient(self) -> float:
        return self.loss_settings.get("kl_coefficient", 0.0)

    def init(self, params: Params, seed: int = 0) -> TrainState:
        """The state before the first update. Copies: the caller's arrays outlive the donated ones.

        With `lora` it holds fresh adapters, drawn by `seed`; the policy begins as the reference, and `params` is not
        read.
        """
        if self.lora is None:
            params, rows = jax.tree.map(jnp.copy, params), parameters(self.config)
        else:
            params = initialize_adapters(self.config, self.lora, seed)
            rows = tuple(factor for row in adapted_rows(self.config, self.lora) for factor in factors(row))
        if self.mesh is None:
            # All of it bound to the device, as an update leaves it: a mixture would compile twice.
            return jax.device_put(TrainState(jnp.int32(0), params, self.optimizer.init(params)), self.devices[0])
        params = self._spread(params, rows)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        opt_state = optax.tree.map_params(
            self.optimizer,
            lambda leaf, param: jax.device_put(leaf, param.sharding),
            self.optimizer.init(params),
            params,
            transform_non_params=lambda leaf: jax.device_put(leaf, everywhere),
        )
        return TrainState(jax.device_put(jnp.int32(0), everywhere), params, opt_state)

    def update(self, state: TrainState, groups: Sequence[Group]) -> tuple[TrainState, Metrics]:
        """One step of learning from the groups of a step. Raises what `pack` and `train` raise."""
        batch, facts = pack(
            groups, ADVANTAGES[self.advantage], self.row_length, self.micro_rows, skip_flat=self.kl_coefficient == 0
        )
        facts |= staleness(batch, int(state.step))
        state, metrics = self.train(state, batch)
        return state, {**facts, **metrics}

    def train(self, state: TrainState, batch: TrainBatch) -> tuple[TrainState, Metrics]:
        """One step of learning from a packed batch, whose rows are a multiple of `micro_rows`. `state` is donated.

        Without a live row the parameters and the optimiser's state stay as they are. Raises NonFiniteUpdate.
        """
        metrics = describe(batch)
        count = np.int32(-(-live_rows(batch) // self.micro_rows))
        updates: list[Metrics] = []
        if count:
            placed = self.prepare(state, batch, count)
            for _ in range(self.updates_per_batch):
                state, raw = self.apply(state, placed, count)
                updates.append(_averaged(jax.device_get(raw), metrics["tokens_trained"]))
                if not np.isfinite([updates[-1]["loss"], updates[-1]["grad_norm"]]).all():
                    flat = jax.tree.map(lambda array: np.reshape(array, batch.tokens.shape), jax.device_get(placed))
                    raise NonFiniteUpdate(state, flat, updates[-1])
        for name in updates[0] if updates else ():
            values = [update[name] for update in updates]
            metrics[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        return dataclasses.replace(state, step=state.step + 1), {"updates": float(len(updates)), **metrics}

    def prepare(self, state: TrainState, batch: TrainBatch, count: np.int32) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices, with those log-probs that are not the current ones."""
        batch = jax.tree.map(lambda array: array.reshape(-1, self.micro_rows, array.shape[-1]), batch)
        placed = jax.device_put(batch, self._batch_sharding)
        if self.kl_coefficient > 0:
            reference = self._forward(self.reference, None, placed, count)
            placed = dataclasses.replace(placed, reference_logprobs=reference)
        if self.updates_per_batch > 1:
            old = self._forward(self._frozen, state.params, placed, count)
            placed = dataclasses.replace(placed, old_logprobs=old)
        return placed

    def apply(self, state: TrainState, batch: TrainBatch, count: np.int32) -> tuple[TrainState, dict[str, jax.Array]]:
        """`train_step` on the first `count` micro-batches of a prepared batch. `state` is donated."""
        return self._step(state, self._frozen, batch, count, shardings=self._shardings(state))

    def programs(self, state: TrainState, batch: TrainBatch) -> list[jax.stages.Compiled]:
        """What `prepare` and `apply` run, compiled for a batch [B, T] of this shape; later calls find it compiled."""
        place, count = self._batch_sharding, np.int32(1)
        shape = (len(batch.tokens) // self.micro_rows, self.micro_rows, batch.tokens.shape[1])
        batch = jax.tree.map(lambda array: jax.ShapeDtypeStruct(shape, array.dtype, sharding=place), batch)
        lowered = [self._step.lower(state, self._frozen, batch, count, shardings=self._shardings(state))]
        if self.kl_coefficient > 0:
            lowered.append(self._forward.lower(self.reference, None, batch, count))
        if self.updates_per_batch > 1:
            lowered.append(self._forward.lower(self._frozen, state.params, batch, count))
        return [program.compile() for program in lowered]

    @property
    def devices(self) -> Sequence[jax.Device]:
        """Where it computes."""
        return jax.local_devices()[:1] if self.mesh is None else list(self.mesh.devices.flat)

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
                logprobs=functools.partial(self._logprobs, frozen),
                loss=functools.partial(LOSSES[self.loss], **self.loss_settings),
                optimizer=self.optimizer,
                on_policy=self.updates_per_batch == 1,
                shardings=shardings,
            )

        return jax.jit(step, donate_argnums=0, static_argnames="shardings")

    @functools.cached_property
    def _forward(self) -> jax.stages.Wrapped:
        """(frozen, params, batch [M, b, T], count) → float32[M, b, T], without gradient; 0 beyond `count`."""

        def forward(frozen: Params | None, params: Params | None, batch: TrainBatch, count: jax.Array) -> jax.Array:
            def fill(index: jax.Array, out: jax.Array) -> jax.Array:
                logprobs = self._logprobs(frozen, params, micro_batch(batch, index))
                return jax.lax.dynamic_update_index_in_dim(out, logprobs, index, 0)

            return jax.lax.fori_loop(0, count, fill, jnp.zeros(batch.tokens.shape, jnp.float32))

        return jax.jit(forward, out_shardings=self._batch_sharding)

    def _logprobs(self, frozen: Params | None, params: Params | None, batch: TrainBatch) -> jax.Array:
        """float32[b, T] of a policy: all of it in either, or frozen with adapters as the params."""
        policy = frozen if params is None else params
        if frozen is not None and params is not None:
            assert self.lora is not None
            policy = adapted(self.config, self.lora, frozen, params)
        assert policy is not None
        return token_logprobs(
            self.config,
            policy,
            batch.tokens,
            batch.positions,
            batch.segment_ids,
            wanted=batch.weights > 0,
            temperature=self.temperature,
            remat=self.remat,
            mesh=self.mesh,
        )

    @property
    def _frozen(self) -> Params | None:
        """What an update reads beside its state."""
        return None if self.lora is None else self.reference

    @property
    def _row_shards(self) -> int:
        return 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    @property
    def _batch_sharding(self) -> jax.sharding.Sharding:
        if self.mesh is None:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(None, ("data", "fsdp")))

    def _spread(self, params: Params, rows: Sequence[Parameter]) -> Params:
        """Leaves of these rows over the mesh."""
        assert self.mesh is not None
        return jax.tree.map(self._canonical, shard(self.config, params, self.mesh, rows))

    def _canonical(self, leaf: jax.Array) -> jax.Array:
        """The same layout in the words the compiler will use for it: another spelling would compile again."""
        assert self.mesh is not None
        assert isinstance(leaf.sharding, NamedSharding)
        spec = [axis if axis and self.mesh.shape[axis] > 1 else None for axis in leaf.sharding.spec]
        while spec and spec[-1] is None:
            spec.pop()
        return jax.device_put(leaf, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def _shardings(self, state: TrainState) -> Shardings:
        return None if self.mesh is None else tuple(leaf.sharding for leaf in jax.tree.leaves(state))


def _averaged(raw: Mapping[str, np.ndarray], tokens: float) -> Metrics:
    """Sums over the learned tokens → means; loss, norm and maxima stay."""
    whole = {name for name in raw if name in ("loss", "grad_norm") or name.endswith("_max")}
    return {name: float(value) if name in whole else float(value) / tokens for name, value in raw.items()}

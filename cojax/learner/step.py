"""The update. `train_step` is the only jitted one; `Learner` binds it to a model, a loss and an optimiser.

State is explicit: a TrainState goes in, is donated, and the next one comes out.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cojax.learner.advantages import ADVANTAGES
from cojax.learner.batch import TrainBatch, describe, live_rows, pack
from cojax.learner.losses import LOSSES, Loss
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import to_hf
from cojax.policy.sharding import shard
from cojax.rollout.engine import Weights
from cojax.types import Group

Params = Any  # a nested dict of jax.Array
Metrics = dict[str, float]

# Facts whose largest value over the learned tokens is worth a line beside their mean.
PEAKS = ("logprob_mismatch", "ratio")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """step: int32[], batches seen; params: nested dict of arrays; opt_state: optax's."""

    step: Any
    params: Params
    opt_state: Any


class NonFiniteUpdate(RuntimeError):
    """A loss or gradient was not a number. `state` is as before that update; `batch` and `metrics` are its causes."""

    def __init__(self, state: TrainState, batch: TrainBatch, metrics: Metrics):
        self.state, self.batch, self.metrics = state, batch, metrics
        super().__init__(
            f"step {int(state.step)}: loss {metrics['loss']}, gradient norm {metrics['grad_norm']}; expected finite "
            "numbers. The parameters are unchanged. Look at the saved batch; if its log-probs are sound, "
            "lower learning_rate or importance_cap, in a new workdir."
        )

    def save(self, path: Path) -> None:
        """Writes the batch and the metrics as one .npz; `numpy.load` reads it."""
        arrays = {field.name: getattr(self.batch, field.name) for field in dataclasses.fields(self.batch)}
        arrays |= {f"metric_{name}": np.float64(value) for name, value in self.metrics.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)


def adamw(
    learning_rate: float | optax.Schedule,
    *,
    warmup_steps: int = 0,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.0,
    clip_norm: float = 1.0,
) -> optax.GradientTransformation:
    """AdamW behind a clip of the global gradient norm; the rate rises linearly over `warmup_steps` updates.

    Norm scales and biases do not decay.
    """
    rate = learning_rate if callable(learning_rate) else optax.constant_schedule(learning_rate)

    def warmed(count: jax.Array) -> jax.Array:
        return rate(count) * jnp.minimum(1.0, (count + 1) / max(1, warmup_steps))

    def decayed(params: Params) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: not any(word in jax.tree_util.keystr(path) for word in ("norm", "bias")), params
        )

    return optax.chain(
        optax.clip_by_global_norm(clip_norm),
        optax.adamw(warmed, b1=b1, b2=b2, weight_decay=weight_decay, mask=decayed),
    )


def train_step(
    state: TrainState,
    batch: TrainBatch,
    count: jax.Array,
    *,
    logprobs: Callable[[Params, TrainBatch], jax.Array],
    loss: Loss,
    optimizer: optax.GradientTransformation,
    on_policy: bool,
    shardings: tuple[jax.sharding.Sharding, ...] | None = None,
) -> tuple[TrainState, dict[str, jax.Array]]:
    """One optimiser update on the first `count` of M micro-batches, which add up exactly to the full batch.

    batch: arrays [M, b, T]; count: int32[], at most M, so that one compiled program serves any number of live rows.
    With `on_policy`, old log-probs are the current ones without gradient; else they are read from the batch.
    `shardings`, one for each leaf of the state, keep the new state laid out as the old one.

    Returns the state, unchanged but for nothing where loss or gradient is not finite, and float32[] metrics: `loss`,
    `grad_norm` before clipping, sums of the facts over the learned tokens, and `…_max` for those in PEAKS.
    """

    def micro_loss(params: Params, micro: TrainBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        current = logprobs(params, micro)
        if on_policy:
            micro = dataclasses.replace(micro, old_logprobs=jax.lax.stop_gradient(current))
        per_token, facts = loss(current, micro)
        learned = micro.weights > 0
        facts = {"entropy": -current, **facts}
        sums = {name: jnp.sum(jnp.where(learned, fact, 0.0)) for name, fact in facts.items()}
        peaks = {f"{name}_max": jnp.max(jnp.where(learned, facts[name], 0.0)) for name in PEAKS if name in facts}
        return jnp.sum(micro.weights * per_token), jax.lax.stop_gradient({**sums, **peaks})

    gradient = jax.value_and_grad(micro_loss, has_aux=True)

    def add(index: jax.Array, total: Any) -> Any:
        (value, facts), gradients = gradient(state.params, _micro(batch, index))
        facts = {
            name: jnp.maximum(total[1][name], fact) if name.endswith("_max") else total[1][name] + fact
            for name, fact in facts.items()
        }
        return total[0] + value, facts, jax.tree.map(jnp.add, total[2], gradients)

    (value, facts), gradients = jax.eval_shape(gradient, state.params, _micro(batch, 0))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (value, facts, gradients))
    total, facts, gradients = jax.lax.fori_loop(0, count, add, zeros)

    norm = optax.tree.norm(gradients)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    new = dataclasses.replace(state, params=optax.apply_updates(state.params, updates), opt_state=opt_state)
    finite = jnp.isfinite(total) & jnp.isfinite(norm)
    new = jax.tree.map(lambda after, before: jnp.where(finite, after, before), new, state)
    if shardings is not None:
        leaves, structure = jax.tree.flatten(new)
        leaves = [jax.lax.with_sharding_constraint(leaf, s) for leaf, s in zip(leaves, shardings, strict=True)]
        new = jax.tree.unflatten(structure, leaves)
    return new, {"loss": total, "grad_norm": norm, **facts}


@dataclasses.dataclass(frozen=True, eq=False)
class Learner:
    """Stage 1's learner: groups in, the next TrainState and figures out.

    `micro_rows` rows of `row_length` tokens go through the model at a time. `loss` and `advantage` name entries of
    LOSSES and ADVANTAGES; `loss_settings` are that loss's keywords. `temperature` is the one sampled with. `remat`
    names what the backward pass keeps of a layer (REMAT).
    `reference` is π_ref, needed where kl_coefficient > 0. With a `mesh`, rows are split over its data and fsdp axes.
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
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        for kind, name, table in (("loss", self.loss, LOSSES), ("advantage", self.advantage, ADVANTAGES)):
            if name not in table:
                raise ValueError(f"{kind} {name!r} not found; available: {', '.join(sorted(table))}")
        known = [p.name for p in inspect.signature(LOSSES[self.loss]).parameters.values() if p.kind == p.KEYWORD_ONLY]
        if unknown := sorted(set(self.loss_settings) - set(known)):
            raise ValueError(
                f"loss {self.loss!r} has no setting {', '.join(unknown)}; it has: {', '.join(known) or 'none'}"
            )
        if self.updates_per_batch < 1:
            raise ValueError(f"updates_per_batch is {self.updates_per_batch}; expected 1 or more")
        if self.kl_coefficient > 0 and self.reference is None:
            raise ValueError(
                f"kl_coefficient is {self.kl_coefficient} but there is no reference; "
                "pass reference=params, or set it to 0"
            )
        if self.mesh is not None and self.micro_rows % self._row_shards:
            raise ValueError(
                f"micro_rows is {self.micro_rows}, the mesh splits rows {self._row_shards} ways; "
                f"make it a multiple of {self._row_shards}"
            )

    @property
    def kl_coefficient(self) -> float:
        return self.loss_settings.get("kl_coefficient", 0.0)

    def init(self, params: Params) -> TrainState:
        """The state before the first update. Copies: the caller's arrays outlive the donated ones."""
        params = jax.tree.map(jnp.copy, params)
        if self.mesh is None:
            return TrainState(jnp.int32(0), params, self.optimizer.init(params))
        params = jax.tree.map(self._canonical, shard(self.config, params, self.mesh))
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
            placed = self._place(batch)
            if self.kl_coefficient > 0:
                reference = self._forward(self.reference, placed, count)
                placed = dataclasses.replace(placed, reference_logprobs=reference)
            if self.updates_per_batch > 1:
                placed = dataclasses.replace(placed, old_logprobs=self._forward(state.params, placed, count))
            for _ in range(self.updates_per_batch):
                state, raw = self._step(state, placed, count, shardings=self._shardings(state))
                updates.append(_averaged(jax.device_get(raw), metrics["tokens_trained"]))
                if not np.isfinite([updates[-1]["loss"], updates[-1]["grad_norm"]]).all():
                    flat = jax.tree.map(lambda array: np.reshape(array, batch.tokens.shape), jax.device_get(placed))
                    raise NonFiniteUpdate(state, flat, updates[-1])
        for name in updates[0] if updates else ():
            values = [update[name] for update in updates]
            metrics[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
        return dataclasses.replace(state, step=state.step + 1), {"updates": float(len(updates)), **metrics}

    def weights(self, state: TrainState, version: int) -> Weights:
        """The policy for an engine, under its HF names. To be read before `state` is given to the next update."""

        def arrays() -> Iterator[tuple[str, np.ndarray]]:
            for name, array in to_hf(self.config, state.params):
                # On CPU an array may be a view of a buffer that the next update is given to overwrite.
                yield name, np.array(array)

        return Weights(version, arrays)

    @functools.cached_property
    def _step(self) -> Callable[..., tuple[TrainState, dict[str, jax.Array]]]:
        step = functools.partial(
            train_step,
            logprobs=self._logprobs,
            loss=functools.partial(LOSSES[self.loss], **self.loss_settings),
            optimizer=self.optimizer,
            on_policy=self.updates_per_batch == 1,
        )
        return jax.jit(step, donate_argnums=0, static_argnames="shardings")

    @functools.cached_property
    def _forward(self) -> Callable[[Params, TrainBatch, Any], jax.Array]:
        """(params, batch [M, b, T], count) → float32[M, b, T], without gradient; 0 beyond `count`."""

        def forward(params: Params, batch: TrainBatch, count: jax.Array) -> jax.Array:
            def fill(index: jax.Array, out: jax.Array) -> jax.Array:
                logprobs = self._logprobs(params, _micro(batch, index))
                return jax.lax.dynamic_update_index_in_dim(out, logprobs, index, 0)

            return jax.lax.fori_loop(0, count, fill, jnp.zeros(batch.tokens.shape, jnp.float32))

        return jax.jit(forward)

    def _logprobs(self, params: Params, batch: TrainBatch) -> jax.Array:
        return token_logprobs(
            self.config,
            params,
            batch.tokens,
            batch.positions,
            batch.segment_ids,
            wanted=batch.weights > 0,
            temperature=self.temperature,
            remat=self.remat,
            mesh=self.mesh,
        )

    @property
    def _row_shards(self) -> int:
        return 1 if self.mesh is None else self.mesh.shape["data"] * self.mesh.shape["fsdp"]

    def _place(self, batch: TrainBatch) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices."""
        batch = jax.tree.map(lambda array: array.reshape(-1, self.micro_rows, array.shape[-1]), batch)
        if self.mesh is None:
            return jax.device_put(batch)
        return jax.device_put(batch, NamedSharding(self.mesh, PartitionSpec(None, ("data", "fsdp"))))

    def _canonical(self, leaf: jax.Array) -> jax.Array:
        """The same layout in the words the compiler will use for it: another spelling would compile again."""
        assert self.mesh is not None
        assert isinstance(leaf.sharding, NamedSharding)
        spec = [axis if axis and self.mesh.shape[axis] > 1 else None for axis in leaf.sharding.spec]
        while spec and spec[-1] is None:
            spec.pop()
        return jax.device_put(leaf, NamedSharding(self.mesh, PartitionSpec(*spec)))

    def _shardings(self, state: TrainState) -> tuple[jax.sharding.Sharding, ...] | None:
        return None if self.mesh is None else tuple(leaf.sharding for leaf in jax.tree.leaves(state))


def _micro(batch: TrainBatch, index: jax.Array | int) -> TrainBatch:
    """[M, b, T] → micro-batch `index`, [b, T]."""
    return jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, index, keepdims=False), batch)


def _averaged(raw: Mapping[str, np.ndarray], tokens: float) -> Metrics:
    """Sums over the learned tokens → means; loss, norm and maxima stay."""
    whole = {name for name in raw if name in ("loss", "grad_norm") or name.endswith("_max")}
    return {name: float(value) if name in whole else float(value) / tokens for name, value in raw.items()}

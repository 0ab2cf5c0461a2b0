"""`Placement`: puts a learner's arrays on one device, or spreads them over a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from cojax.learner.batch import TrainBatch
from cojax.learner.train_state import Params, TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Parameter, evaluate
from cojax.policy.sharding import ROWS, devices_along, place, shard

Shardings = tuple[jax.sharding.Sharding, ...] | None


@dataclasses.dataclass(frozen=True)
class Placement:
    """How batches, parameters and states are laid out; `mesh` is None for one device."""

    config: ModelConfig
    mesh: Mesh | None

    @property
    def devices(self) -> Sequence[jax.Device]:
        """The devices that are computed on."""
        return jax.local_devices()[:1] if self.mesh is None else list(self.mesh.devices.flat)

    @property
    def row_shards(self) -> int:
        """Into how many parts the rows of a micro-batch are split."""
        return devices_along(self.mesh, *ROWS)

    @property
    def batch(self) -> jax.sharding.Sharding:
        """The sharding of arrays [M, b, T]."""
        if self.mesh is None:
            return SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(None, ROWS))

    def micro_batches(self, batch: TrainBatch, rows: int) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices, of `rows` rows each."""
        micro = jax.tree.map(lambda array: array.reshape(-1, rows, *array.shape[1:]), batch)
        if self.batch.is_fully_addressable:
            return jax.device_put(micro, self.batch)
        return jax.tree.map(lambda array: place(array, self.batch), micro)

    def abstract(self, batch: TrainBatch, rows: int) -> TrainBatch:
        """The result of `micro_batches` as ShapeDtypeStructs."""
        lead = len(batch.tokens) // rows, rows
        return jax.tree.map(
            lambda array: jax.ShapeDtypeStruct((*lead, *array.shape[1:]), array.dtype, sharding=self.batch), batch
        )

    def params(self, params: Params, rows: Sequence[Parameter]) -> Params:
        """The parameters, whose leaves `rows` describes, spread over the mesh."""
        if self.mesh is None:
            return params
        return jax.tree.map(self._canonicalise, shard(self.config, params, self.mesh, rows))

    def state(self, params: Params, rows: Sequence[Parameter], optimizer: optax.GradientTransformation) -> TrainState:
        """The state before the first update; moments are laid out like their parameters.

        On a mesh, `params` may be outlines (ShapeDtypeStruct); the state then consists of outlines too.
        """
        if self.mesh is None:
            # Every leaf is committed to the device, as after an update: a mixture would compile twice.
            return jax.device_put(TrainState(jnp.int32(0), params, optimizer.init(params)), self.devices[0])
        params = self.params(params, rows)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        opt_state = optax.tree.map_params(
            optimizer,
            lambda leaf, param: place(leaf, param.sharding),
            evaluate(optimizer.init, params),
            params,
            transform_non_params=lambda leaf: place(leaf, everywhere),
        )
        step = evaluate(lambda _: jnp.int32(0), params)
        return TrainState(place(step, everywhere), params, opt_state)

    def shardings(self, state: TrainState) -> Shardings:
        """The sharding of each leaf of the state; None on one device."""
        return None if self.mesh is None else tuple(leaf.sharding for leaf in jax.tree.leaves(state))

    def _canonicalise(self, leaf: jax.Array) -> jax.Array:
        """The same layout, spelled as the compiler spells it: another spelling would compile again."""
        assert self.mesh is not None
        assert isinstance(leaf.sharding, NamedSharding)
        spec = [axis if axis and self.mesh.shape[axis] > 1 else None for axis in leaf.sharding.spec]
        while spec and spec[-1] is None:
            spec.pop()
        return place(leaf, NamedSharding(self.mesh, PartitionSpec(*spec)))

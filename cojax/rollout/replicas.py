"""The replicas of a mesh that spans several processes: each process computes those that its devices belong to.

Process 0 schedules all replicas, in rounds: in one operation of all processes (`cojax.learner.placement.Hosts`) each
replica runs what its batcher plans. Replicas exchange nothing but the sampled tokens, which are gathered at the end.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cojax.learner.placement import Hosts, to_host
from cojax.policy.cached import unstack
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters, with_leaf
from cojax.policy.sharding import ROWS, SAMPLING_AXES, list_replicas, partition, shard
from cojax.policy.transformer import Params
from cojax.rollout.batching import STEPS_PER_CALL
from cojax.rollout.forwards import Calls, Forwards


@functools.cache
def _make_spread(config: ModelConfig, mesh: Mesh) -> Callable[[Params], tuple[Params, jax.Array]]:
    shardings: Params = {}
    for parameter in parameters(config):
        axes = [axis if axis in SAMPLING_AXES else None for axis in partition(parameter)]
        has_layers = parameter.axes[0] == "layers"
        sharding = NamedSharding(mesh, PartitionSpec(*axes[has_layers:]))
        leaf: Any = [sharding] * config.num_hidden_layers if has_layers else sharding
        shardings = with_leaf(shardings, parameter, leaf)

    def spread_params(params: Params) -> tuple[Params, jax.Array]:
        is_finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()
        return unstack(config, params), is_finite

    return jax.jit(spread_params, out_shardings=(unstack(config, shardings), NamedSharding(mesh, PartitionSpec())))


def spread(config: ModelConfig, mesh: Mesh, params: Params) -> tuple[Params, jax.Array]:
    """A copy of the policy on each replica of the mesh, as `unstack` returns it, and bool[]: whether it is finite.

    No array travels over a host.
    """
    return _make_spread(config, mesh)(params)


def spread_leaves(config: ModelConfig, mesh: Mesh, leaves: Sequence[np.ndarray]) -> tuple[Params, jax.Array]:
    """As `spread`, from the arrays on the host, in the order of the parameter table."""
    params: Params = {}
    for parameter, leaf in zip(parameters(config), leaves, strict=True):
        params = with_leaf(params, parameter, leaf)  # type: ignore[arg-type]
    return spread(config, mesh, shard(config, params, mesh))


def is_on(params: Params, mesh: Mesh) -> bool:
    """Whether the parameters lie on all devices of the mesh."""
    return next(iter(jax.tree.leaves(params))).sharding.device_set == {*mesh.devices.flat}  # type: ignore[no-any-return]


def view(params: Params, replica: Mesh) -> Params:
    """The arrays of `spread` as the replica's devices hold them; nothing is copied."""
    devices = set(replica.devices.flat)

    def view_leaf(leaf: jax.Array) -> jax.Array:
        parts = [shard.data for shard in leaf.addressable_shards if shard.device in devices]
        sharding = NamedSharding(replica, leaf.sharding.spec)  # type: ignore[attr-defined]
        return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)

    return jax.tree.map(view_leaf, params)


class ReplicaForwards:
    """The forwards of the replicas that this process takes part in. All processes call `run` together."""

    def __init__(self, config: ModelConfig, slot_count: int, page_count: int, page_length: int, mesh: Mesh) -> None:
        """Slots and pages are those of each replica."""
        self._mesh, self._slot_count = mesh, slot_count
        self._params: Params = {}
        self._replica_count = len(list_replicas(mesh))
        self._own_forwards = {
            index: Forwards(config, page_count, page_length, False, replica)
            for index, replica in enumerate(list_replicas(mesh))
            if any(device.process_index == jax.process_index() for device in replica.devices.flat)
        }
        self._gather = jax.jit(lambda *arrays: arrays, out_shardings=NamedSharding(mesh, PartitionSpec()))
        shape = STEPS_PER_CALL, slot_count
        self._nothing = np.zeros(shape, np.int32), np.zeros(shape, np.float32)

    def run(self, params: Params, plans: Sequence[Calls]) -> tuple[jax.Array, jax.Array] | None:
        """Runs the plan of each replica with the weights that `spread` returned.

        Returns tokens int32[N, D · S] and log-probabilities float32[N, D · S] of D replicas, whole in every process; 0
        for a replica that does not decode; None if none does.
        """
        if params is not self._params:
            for forwards in self._own_forwards.values():
                assert forwards.mesh is not None
                forwards.params = view(params, forwards.mesh)
            self._params = params
        results = {index: forwards.run(plans[index]) for index, forwards in self._own_forwards.items()}
        decodes = [bool(plan) and plan[-1][0] == "decode" for plan in plans]
        if not any(decodes):
            return None
        sampled = [results[index][:2] if decodes[index] else self._nothing for index in results]
        return self._gather(*(self._join(arrays) for arrays in zip(*sampled, strict=True)))  # type: ignore[no-any-return]

    def _join(self, arrays: Sequence[jax.Array | np.ndarray]) -> jax.Array:
        """One array [N, D · S] of all processes from the arrays [N, S] of this one's replicas."""
        parts: list[jax.Array] = []
        for array, forwards in zip(arrays, self._own_forwards.values(), strict=True):
            assert forwards.mesh is not None
            if isinstance(array, jax.Array):
                whole = jax.device_put(array, NamedSharding(forwards.mesh, PartitionSpec()))
                parts += [shard.data for shard in whole.addressable_shards]
            else:
                own_devices = [d for d in forwards.mesh.devices.flat if d.process_index == jax.process_index()]
                parts += [jax.device_put(array, device) for device in own_devices]
        shape = STEPS_PER_CALL, self._slot_count * self._replica_count
        return jax.make_array_from_single_device_arrays(
            shape, NamedSharding(self._mesh, PartitionSpec(None, ROWS)), parts
        )


class LedForwards:
    """The forwards of all replicas, as process 0 has all processes run them; `params` are those of `spread`."""

    def __init__(self, own: ReplicaForwards, hosts: Hosts) -> None:
        self._own, self._hosts, self.params = own, hosts, dict[str, Any]()

    def run_all(self, plans: Sequence[Calls]) -> Sequence[Any]:
        """Runs a plan on each replica; their results, of which only those of decoding count."""
        with self._hosts.operation("forward", self.params, tuple(plans)) as record:
            result = record(self._own.run(self.params, plans))
        if result is None:
            return [None] * len(plans)
        tokens, logprobs = (np.split(array, len(plans), axis=1) for array in to_host(result))
        return [
            (*sampled, None) if plan and plan[-1][0] == "decode" else None
            for plan, *sampled in zip(plans, tokens, logprobs, strict=True)
        ]

    def wait(self) -> None:
        """Returns at once: an operation ends with its result."""

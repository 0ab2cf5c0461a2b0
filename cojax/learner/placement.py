"""Places a learner's arrays on one device, over a mesh, or over several hosts that compute together.

A program over the devices of several hosts runs only if every process starts it. So a learner announces each of its
computations by `Hosts.operation`. A single process announces nothing; with several, `cojax.distributed` tells the
others to run the operation of that name.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from cojax.learner.batch import TrainBatch
from cojax.learner.update import Params, TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Parameter, evaluate, get_leaf, parameters, to_hf
from cojax.policy.saved_params import save_params
from cojax.policy.sharding import ROWS, TOKENS, batch_sharding, count_devices, list_axes, place, shard
from cojax.rollout.engine import Weights

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Placement:
    """The layout of batches, parameters and states; `mesh` is None for one device."""

    config: ModelConfig
    mesh: Mesh | None

    @property
    def devices(self) -> Sequence[jax.Device]:
        """The devices that run the computation."""
        return jax.local_devices()[:1] if self.mesh is None else list(self.mesh.devices.flat)

    @property
    def row_shards(self) -> int:
        """The number of parts into which the rows of a micro-batch are split."""
        return count_devices(self.mesh, *ROWS)

    @property
    def token_shards(self) -> int:
        """The number of parts into which the tokens of a micro-batch are split."""
        return count_devices(self.mesh, *TOKENS)

    @property
    def batch(self) -> jax.sharding.Sharding:
        """The sharding of arrays [M, b, T]."""
        if self.mesh is None:
            return SingleDeviceSharding(self.devices[0])
        return batch_sharding(self.mesh, None)

    def split_batch(self, batch: TrainBatch, row_count: int) -> TrainBatch:
        """[B, T] on the host → [M, b, T] on the devices, of `row_count` rows each."""
        micro_batches = jax.tree.map(lambda array: array.reshape(-1, row_count, *array.shape[1:]), batch)
        if self.batch.is_fully_addressable:
            return jax.device_put(micro_batches, self.batch)
        return jax.tree.map(lambda array: place(array, self.batch), micro_batches)

    def outline_batch(self, batch: TrainBatch, row_count: int) -> TrainBatch:
        """The result of `split_batch` as ShapeDtypeStructs."""
        lead_shape = len(batch.tokens) // row_count, row_count
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((*lead_shape, *x.shape[1:]), x.dtype, sharding=self.batch), batch
        )

    def params(self, params: Params, table: Sequence[Parameter]) -> Params:
        """Spreads the parameters, whose leaves `table` describes, over the mesh."""
        if self.mesh is None:
            return params
        return jax.tree.map(self._canonicalise_sharding, shard(self.config, params, self.mesh, table))

    def state(self, params: Params, table: Sequence[Parameter], optimizer: optax.GradientTransformation) -> TrainState:
        """The state before the first update; moments are laid out like their parameters.

        On a mesh, `params` may be outlines (ShapeDtypeStruct); the state then consists of outlines too.
        """
        if self.mesh is None:
            # Commit every leaf to the device, as after an update: otherwise the update would compile twice.
            return jax.device_put(TrainState(jnp.int32(0), params, optimizer.init(params)), self.devices[0])
        params = self.params(params, table)
        replicated = NamedSharding(self.mesh, PartitionSpec())
        opt_state = optax.tree.map_params(
            optimizer,
            lambda leaf, param: place(leaf, param.sharding),
            evaluate(optimizer.init, params),
            params,
            transform_non_params=lambda leaf: place(leaf, replicated),
        )
        step = evaluate(lambda _: jnp.int32(0), params)
        return TrainState(place(step, replicated), params, opt_state)

    def list_shardings(self, state: TrainState) -> tuple[Sharding, ...] | None:
        """The sharding of each leaf of the state; None on one device."""
        return None if self.mesh is None else tuple(leaf.sharding for leaf in jax.tree.leaves(state))

    def _canonicalise_sharding(self, leaf: jax.Array) -> jax.Array:
        """The same layout, written as the compiler writes it: any other form would compile again."""
        assert self.mesh is not None
        assert isinstance(leaf.sharding, NamedSharding)
        names = [tuple(name for name in list_axes(entry) if self.mesh.shape[name] > 1) for entry in leaf.sharding.spec]
        spec = [entry[0] if len(entry) == 1 else entry or None for entry in names]
        while spec and spec[-1] is None:
            spec.pop()
        return place(leaf, NamedSharding(self.mesh, PartitionSpec(*spec)))


class Hosts(Protocol):
    """All processes that compute together."""

    def operation(self, operation_name: str, *arguments: Any) -> contextlib.AbstractContextManager[Callable[[_T], _T]]:
        """While this process computes in the block, every other one runs the operation of that name.

        The context yields a function; the block passes its result through it. Arguments are plain values, batches on
        the host, and results of earlier operations.
        """


class OneProcess:
    """This process computes alone."""

    def operation(self, operation_name: str, *arguments: Any) -> contextlib.AbstractContextManager[Callable[[_T], _T]]:
        return contextlib.nullcontext(lambda result: result)


ONE_PROCESS = OneProcess()


def copy_arrays(tree: Any) -> Any:
    """Copies of the arrays, in memory of their own."""
    return jax.tree.map(jnp.copy, tree)


def advance_step(state: TrainState) -> TrainState:
    """The same state, one step of learning later."""
    return dataclasses.replace(state, step=state.step + 1)


def fetch(hosts: Hosts, arrays: Any) -> Any:
    """Fetches arrays to this host as NumPy arrays; all processes gather them."""
    with hosts.operation("replicate", arrays) as record:
        return to_host(record(replicate(arrays)))


def replicate(tree: Any) -> Any:
    """The same arrays, each whole on every host."""
    return jax.tree.map(lambda leaf: leaf if _is_whole(leaf) else _make_gather(_replicated_sharding(leaf))(leaf), tree)


def to_host(tree: Any) -> Any:
    """Converts arrays that are whole on this host to NumPy."""
    return jax.tree.map(lambda leaf: np.asarray(leaf if leaf.is_fully_addressable else leaf.addressable_data(0)), tree)


def _is_whole(leaf: jax.Array) -> bool:
    return leaf.is_fully_addressable or leaf.is_fully_replicated


def _replicated_sharding(leaf: jax.Array) -> Sharding:
    """A layout that gives every host the whole array, on all devices of its mesh.

    An array without a mesh stays on its device: every host has its own, drawn by the same seed. Raises TypeError for an
    array that is spread over hosts in another way.
    """
    if isinstance(leaf.sharding, NamedSharding):
        return NamedSharding(leaf.sharding.mesh, PartitionSpec())
    if not leaf.is_fully_addressable:
        raise TypeError(f"an array of {leaf.shape} is spread over hosts by {leaf.sharding}; spread it over a mesh")
    return SingleDeviceSharding(min(leaf.devices(), key=lambda device: device.id))


@functools.cache
def _make_gather(layout: Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda leaf: leaf, out_shardings=layout)


@functools.cache
def _make_layer_gather(layout: Sharding) -> Callable[[jax.Array, int], jax.Array]:
    return jax.jit(lambda leaf, layer: jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False), out_shardings=layout)


def gather_arrays(config: ModelConfig, policy: Callable[[], Params], hosts: Hosts) -> Iterator[tuple[str, np.ndarray]]:
    """`to_hf` of a policy. If it is spread over hosts, all of them gather one layer of one matrix at a time."""
    params = policy()
    if hosts is ONE_PROCESS:
        yield from to_hf(config, params)
        return
    for parameter_index, parameter in enumerate(parameters(config)):
        layer_indices = range(config.num_hidden_layers) if "layers" in parameter.lead_axes else (None,)
        stacked_names = parameter.hf_names(config)
        for layer in layer_indices:
            with hosts.operation("gather_leaf", params, parameter_index, layer) as record:
                array = to_host(record(gather_leaf(config, params, parameter_index, layer)))
            array_count = 1 if layer is None else int(np.prod(parameter.shape(config)[1 : len(parameter.lead_axes)]))
            for stack_index, hf_name in itertools.islice(stacked_names, array_count):
                yield hf_name, parameter.to_hf(array[stack_index[1:]], config)


def gather_leaf(config: ModelConfig, params: Params, parameter_index: int, layer: int | None) -> jax.Array:
    """One layer of the leaf with that number, or the whole leaf for None; it is complete on every host."""
    leaf = get_leaf(params, parameters(config)[parameter_index])
    return replicate(leaf) if layer is None else _make_layer_gather(_replicated_sharding(leaf))(leaf, layer)


def make_weights(
    config: ModelConfig, make_policy: Callable[[], Params], hosts: Hosts, version: int, hash_policy: Callable[[], str]
) -> Weights:
    """The policy for an engine. One of several processes that computes alone gets no `save`: Orbax waits for all."""
    is_alone = hosts is ONE_PROCESS and jax.process_count() > 1
    save = None if is_alone else functools.partial(_save_policy, config, make_policy, hosts)
    arrays = functools.partial(gather_arrays, config, make_policy, hosts)
    return Weights(version, arrays, None, hash_policy, save, make_policy)


def _save_policy(config: ModelConfig, make_policy: Callable[[], Params], hosts: Hosts, folder: str, dtype: str) -> None:
    params = make_policy()
    with hosts.operation("finite", params, dtype) as record:
        is_finite = to_host(record(check_finite(config, params, dtype)))
    if not is_finite.all():
        parameter_name = parameters(config)[int(np.argmin(is_finite))].name
        raise ValueError(f"{parameter_name} is not finite in {dtype}; training has diverged, nothing was written")
    with hosts.operation("save_params", params, folder, dtype):
        save_params(params, folder, dtype)


def check_finite(config: ModelConfig, params: Params, dtype: str) -> jax.Array:
    """bool[rows], complete on every host: whether each parameter's numbers are all finite when cast to `dtype`."""
    table = parameters(config)
    return replicate(_all_within([get_leaf(params, parameter) for parameter in table], _infinity_bound(dtype)))  # type: ignore[no-any-return]


def _infinity_bound(dtype: str) -> np.float32:
    """The smallest number that rounds to infinity."""
    max_value = np.asarray(jnp.finfo(dtype).max)
    next_value = np.nextafter(max_value, np.zeros_like(max_value))
    with np.errstate(over="ignore"):
        return np.float32(np.float64(max_value) + (np.float64(max_value) - np.float64(next_value)) / 2)


@jax.jit
def _all_within(leaves: list[jax.Array], bound: jax.Array) -> jax.Array:
    # Not isfinite of the cast number: a compiler may leave out the cast.
    return jnp.stack([(jnp.abs(leaf.astype(jnp.float32)) < bound).all() for leaf in leaves])

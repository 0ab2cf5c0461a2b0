"""Where the operations of a learner run: in this process alone, or in several processes at the same time.

A program over the devices of several hosts runs only if every process starts it. So whatever a learner computes on its
devices goes through `Hosts.run`. With one process that is a plain call; with several, `cojax.distributed` first tells
the others to run the same operation.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from cojax.learner.train_state import TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params, leaf_of, parameters, to_hf

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Hosts(Protocol):
    """All processes that compute together."""

    def run(self, operation: str, compute: Callable[..., _T], *arguments: Any) -> _T:
        """`compute(*arguments)` in this process, while every other process runs the `operation` of that name.

        Arguments are plain values, batches on the host, and results of earlier operations.
        """


class OneProcess:
    """This process computes alone."""

    def run(self, operation: str, compute: Callable[..., _T], *arguments: Any) -> _T:
        return compute(*arguments)


ONE_PROCESS = OneProcess()


class _HasHosts(Protocol):
    @property
    def hosts(self) -> Hosts: ...


_Self = TypeVar("_Self", bound=_HasHosts)


def together(method: Callable[Concatenate[_Self, _P], _T]) -> Callable[Concatenate[_Self, _P], _T]:
    """Decorator: all processes run the method at the same time, as the operation that has its name."""

    @functools.wraps(method)
    def run(self: _Self, *arguments: _P.args, **keywords: _P.kwargs) -> _T:
        given = inspect.signature(method).bind(self, *arguments, **keywords).args if keywords else (self, *arguments)
        return self.hosts.run(method.__name__, functools.partial(method, self), *given[1:])

    return run


def copied(tree: Any) -> Any:
    """The same arrays in memory of their own."""
    return jax.tree.map(jnp.copy, tree)


def advanced(state: TrainState) -> TrainState:
    """The same state, one step of learning later."""
    return dataclasses.replace(state, step=state.step + 1)


def advance(hosts: Hosts, state: TrainState) -> TrainState:
    """`advanced`, in all processes."""
    return hosts.run("advance", advanced, state)


def fetch(hosts: Hosts, placed: Any) -> Any:
    """The same arrays on this host, as NumPy's; all processes gather them."""
    return on_host(hosts.run("replicate", replicated, placed))


def replicated(tree: Any) -> Any:
    """The same arrays, each whole on every host."""
    return jax.tree.map(lambda leaf: leaf if _is_whole(leaf) else _gather(_everywhere(leaf))(leaf), tree)


def on_host(tree: Any) -> Any:
    """NumPy arrays from arrays that are whole on this host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf if leaf.is_fully_addressable else leaf.addressable_data(0)), tree)


def _is_whole(leaf: jax.Array) -> bool:
    return leaf.is_fully_addressable or leaf.is_fully_replicated


def _everywhere(leaf: jax.Array) -> Sharding:
    """A layout in which every host has the whole array: on all devices of its mesh.

    An array without a mesh stays on its device; every host has one of its own, drawn by the same seed. Raises TypeError
    for one that is spread over hosts in another way.
    """
    if isinstance(leaf.sharding, NamedSharding):
        return NamedSharding(leaf.sharding.mesh, PartitionSpec())
    if not leaf.is_fully_addressable:
        raise TypeError(f"an array of {leaf.shape} is spread over hosts by {leaf.sharding}; spread it over a mesh")
    return SingleDeviceSharding(min(leaf.devices(), key=lambda device: device.id))


@functools.cache
def _gather(place: Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(lambda leaf: leaf, out_shardings=place)


@functools.cache
def _gather_layer(place: Sharding) -> Callable[[jax.Array, int], jax.Array]:
    return jax.jit(lambda leaf, layer: jax.lax.dynamic_index_in_dim(leaf, layer, keepdims=False), out_shardings=place)


def hf_arrays(config: ModelConfig, policy: Callable[[], Params], hosts: Hosts) -> Iterator[tuple[str, np.ndarray]]:
    """`to_hf` of a policy. Where it is spread over hosts, all of them gather one layer of one matrix at a time."""
    params = policy()
    if hosts is ONE_PROCESS:
        yield from to_hf(config, params)
        return
    for number, row in enumerate(parameters(config)):
        layers = range(config.num_hidden_layers) if "layers" in row.stacked else (None,)
        named = row.pieces(config)
        for layer in layers:
            part = on_host(hosts.run("piece", functools.partial(piece, config), params, number, layer))
            count = 1 if layer is None else int(np.prod(row.shape(config)[1 : len(row.stacked)]))
            for index, name in itertools.islice(named, count):
                yield name, row.to_hf(part[index[1:]], config)


def piece(config: ModelConfig, params: Params, number: int, layer: int | None) -> jax.Array:
    """One layer of the parameters' leaf of that number, or all of it, whole on every host."""
    leaf = leaf_of(params, parameters(config)[number])
    return replicated(leaf) if layer is None else _gather_layer(_everywhere(leaf))(leaf, layer)

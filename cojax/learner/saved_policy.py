"""The policy saved for servers by all processes together: each writes its own part, and nothing is gathered."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from cojax.learner.hosts import ONE_PROCESS, Hosts, hf_arrays, on_host, replicated
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params, leaf_of, parameters
from cojax.rollout.engine import Weights
from cojax.storage.checkpoint import save_params


def weights_of(
    config: ModelConfig, policy: Callable[[], Params], hosts: Hosts, version: int, fingerprint: Callable[[], str]
) -> Weights:
    """The policy for an engine. With several processes, one that computes alone gets no `save`: Orbax waits for all."""
    alone = hosts is ONE_PROCESS and jax.process_count() > 1
    save = None if alone else functools.partial(_save, config, policy, hosts)
    return Weights(version, functools.partial(hf_arrays, config, policy, hosts), None, fingerprint, save)


def _save(config: ModelConfig, policy: Callable[[], Params], hosts: Hosts, folder: str, dtype: str) -> None:
    params = policy()
    found = on_host(hosts.run("finite", functools.partial(finite, config), params, dtype))
    if not found.all():
        name = parameters(config)[int(np.argmin(found))].name
        raise ValueError(f"{name} is not finite in {dtype}; training has diverged, nothing was written")
    hosts.run("save_params", save_params, params, folder, dtype)


def finite(config: ModelConfig, params: Params, dtype: str) -> jax.Array:
    """bool[rows], whole on every host: whether all numbers of each parameter are finite once cast to `dtype`."""
    rows = parameters(config)
    return replicated(_within([leaf_of(params, row) for row in rows], _bound(dtype)))  # type: ignore[no-any-return]


def _bound(dtype: str) -> np.float32:
    """The smallest number that rounds to infinity."""
    largest = np.asarray(jnp.finfo(dtype).max)
    below = np.nextafter(largest, np.zeros_like(largest))
    with np.errstate(over="ignore"):
        return np.float32(np.float64(largest) + (np.float64(largest) - np.float64(below)) / 2)


@jax.jit
def _within(leaves: list[jax.Array], bound: jax.Array) -> jax.Array:
    # Not by isfinite of the cast number: a compiler may leave out the cast.
    return jnp.stack([(jnp.abs(leaf.astype(jnp.float32)) < bound).all() for leaf in leaves])

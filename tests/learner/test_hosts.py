"""What all processes run: weights gathered layer by layer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiling import initialize

from cojax.learner.placement import gather_arrays
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.sharding import make_mesh, shard

DENSE = ModelConfig(16, 32, 48, 2, 4, 2, 16)
SPARSE = ModelConfig(
    16,
    32,
    48,
    2,
    4,
    2,
    16,
    model_type="qwen3_moe",
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)


class Noting:
    """Notes what it runs."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []

    def operation(self, name: str, *arguments: Any) -> contextlib.AbstractContextManager[Callable[[Any], Any]]:
        self.ran.append((name, *arguments))
        return contextlib.nullcontext(lambda result: result)


@pytest.mark.parametrize(("config", "on_mesh"), [(DENSE, False), (SPARSE, True)], ids=["dense", "sparse"])
def test_weights_that_hosts_gather_are_those_of_one_process_in_the_same_order(config, on_mesh):
    params, noting = initialize(config, 0), Noting()
    # Parameters that were just drawn are not on the mesh yet.
    spread = shard(config, params, make_mesh(devices=None, data=-1)) if on_mesh else params
    expected, found = list(to_hf(config, params)), list(gather_arrays(config, lambda: spread, noting))
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert {operation for operation, *_ in noting.ran} == {"gather_leaf"}
    # One gather for a layer of a stacked leaf, however many experts it has, and one for any other leaf.
    layers = [layer for _, _, _, layer in noting.ran if layer is not None]
    assert sorted(set(layers)) == [0, 1]
    assert len(noting.ran) < len(expected) or not config.sparse

"""What all processes run: operations by name with positional arguments, and weights gathered layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from compiling import initialize

from cojax.learner.hosts import ONE_PROCESS, Hosts, hf_arrays, together
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.sharding import make_mesh, shard

DENSE = ModelConfig(16, 32, 48, 2, 4, 2, 16)
SPARSE = ModelConfig(
    16, 32, 48, 2, 4, 2, 16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True
)


class Noting:
    """Notes what it runs."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []

    def run(self, operation: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        self.ran.append((operation, *arguments))
        return compute(*arguments)


@dataclasses.dataclass
class Sum:
    hosts: Hosts
    start: int = 10

    @together
    def add(self, one: int, other: int = 2) -> int:
        """Adds."""
        return self.start + one + other


def test_a_method_runs_as_the_operation_of_its_name_with_positional_arguments():
    noting = Noting()
    made = Sum(noting)
    assert (made.add(1), made.add(1, 5), made.add(other=7, one=1)) == (13, 16, 18)
    assert noting.ran == [("add", 1), ("add", 1, 5), ("add", 1, 7)]
    assert (Sum(ONE_PROCESS).add(1), Sum.add.__doc__) == (13, "Adds.")


@pytest.mark.parametrize("on_mesh", [True, False])
@pytest.mark.parametrize("config", [DENSE, SPARSE])
def test_weights_that_hosts_gather_are_those_of_one_process_in_the_same_order(config, on_mesh):
    params, noting = initialize(config, 0), Noting()
    # Parameters that were just drawn are not on the mesh yet.
    spread = shard(config, params, make_mesh(devices=None, data=-1)) if on_mesh else params
    expected, found = list(to_hf(config, params)), list(hf_arrays(config, lambda: spread, noting))
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (_, one), (_, other) in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert {operation for operation, *_ in noting.ran} == {"piece"}
    # One gather for a layer of a stacked leaf, however many experts it has, and one for any other leaf.
    layers = [layer for _, _, _, layer in noting.ran if layer is not None]
    assert sorted(set(layers)) == [0, 1]
    assert len(noting.ran) < len(expected) or not config.sparse

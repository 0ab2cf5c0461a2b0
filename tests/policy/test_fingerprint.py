"""Another content has another name; the same content has the same one, wherever it lies."""

import os
from pathlib import Path

import compiling
import jax.numpy as jnp
import numpy as np
import pytest
from commands import Commands

from cojax.policy.parameters import hash_leaves


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_every_bit_and_every_place_counts(dtype: jnp.dtype) -> None:
    array = np.random.default_rng(0).normal(size=(3, 40, 17)).astype(dtype)
    name = hash_leaves({"a": jnp.asarray(array)})
    assert name == hash_leaves({"a": jnp.asarray(array.copy())})
    bits = array.copy().view(np.uint32 if array.itemsize == 4 else np.uint16)
    others = {name}
    for place in ((0, 0, 0), (2, 39, 16), (1, 7, 3)):
        changed = bits.copy()
        changed[place] ^= 1
        others.add(hash_leaves({"a": jnp.asarray(changed.view(dtype))}))
    swapped = array.copy()
    swapped[0, 0, [0, 1]] = swapped[0, 0, [1, 0]]
    others |= {hash_leaves({"a": jnp.asarray(swapped)}), hash_leaves({"a": jnp.asarray(array.reshape(3, 17, 40))})}
    assert len(others) == 6


def test_zeros_of_another_shape_or_dtype_and_leaves_in_another_order_differ() -> None:
    zeros = [jnp.zeros((4, 2)), jnp.zeros((2, 4)), jnp.zeros((8,)), jnp.zeros((4, 2), jnp.bfloat16), -jnp.zeros((4, 2))]
    pairs = [{"a": zeros[0], "b": jnp.ones((4, 2))}, {"a": jnp.ones((4, 2)), "b": zeros[0]}]
    assert len({hash_leaves(tree) for tree in [*zeros, *pairs]}) == 7


SPREAD = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from cojax.policy.parameters import hash_leaves
array = jnp.arange(8.0 * 6).reshape(8, 6)
places = [NamedSharding(Mesh(np.asarray(jax.devices()), ("data",)), PartitionSpec(*axes)) for axes in (("data",), ())]
assert len(jax.devices()) == 4
print(*[hash_leaves([jax.device_put(array, place)]) for place in places])
"""


def test_it_is_that_of_the_whole_where_an_array_is_spread_over_devices(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "spread.py").write_text(SPREAD)
    done = commands.run("spread", environment={**os.environ, "XLA_FLAGS": compiling.flags(4)}, folder=tmp_path)
    assert done.stdout.split() == [hash_leaves([jnp.arange(8.0 * 6).reshape(8, 6)])] * 2, done.stderr

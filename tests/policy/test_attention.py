"""Packed attention against JAX's own dense one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.policy.attention import packed_attention


@pytest.mark.parametrize("length", [5, 32, 33, 300])
def test_equals_dense_attention(length: int) -> None:
    draw = np.random.default_rng(length)
    query = draw.normal(size=(2, length, 4, 8)).astype(np.float32)
    key, value = (draw.normal(size=(2, length, 2, 8)).astype(np.float32) for _ in range(2))
    segments = np.sort(draw.integers(0, 3, (2, length))).astype(np.int32)
    mask = np.tril(np.ones((length, length), bool)) & (segments[:, :, None] == segments[:, None, :])
    expected = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])
    found = jax.jit(packed_attention)(query, key, value, jnp.asarray(segments))
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)

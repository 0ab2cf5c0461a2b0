"""Packed attention against JAX's own dense one, and the accelerators' kernels against it."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.compile.targets import CHIPS, lowered_for
from cojax.policy import attention
from cojax.policy.attention import packed_attention
from cojax.policy.sharding import make_mesh


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


def test_gradient_is_that_of_dense_attention() -> None:
    arrays, segments = rows(length=70, heads=4, groups=2, size=8)
    mask = np.tril(np.ones((70, 70), bool)) & (segments[:, :, None] == segments[:, None, :])

    def dense(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])

    for found, expected in zip(
        results(packed_attention, arrays, segments), results(dense, arrays, segments), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=5e-6)


@pytest.mark.parametrize("window", [1, 7, 70])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    """Values and gradients are those of dense attention with such a mask."""
    arrays, segments = rows(length=70, heads=4, groups=2, size=8)
    distance = np.arange(70)[:, None] - np.arange(70)
    mask = (distance >= 0) & (distance < window) & (segments[:, :, None] == segments[:, None, :])

    def dense(query: jax.Array, key: jax.Array, value: jax.Array, segment_ids: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])

    windowed = functools.partial(packed_attention, window=jnp.int32(window))
    for found, expected in zip(results(windowed, arrays, segments), results(dense, arrays, segments), strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-6)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_the_kernel_of_an_accelerator_computes_the_same(platform: str) -> None:
    """The kernel that runs there, interpreted: values and gradients, grouped heads, several segments and padding."""
    arrays, segments = rows(length=256, heads=2, groups=1, size=16)

    def kernel(*given: jax.Array) -> jax.Array:
        return attention.KERNELS[platform](*given, interpret=True)

    for found, expected in zip(
        results(kernel, arrays, segments), results(attention.blockwise, arrays, segments), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=5e-6)


def test_a_kernel_gets_its_rows_and_heads_of_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attention.KERNELS, "cpu", functools.partial(attention.tpu_kernel, interpret=True))
    arrays, segments = rows(length=130, heads=2, groups=1, size=16)
    mesh = make_mesh(devices=jax.devices()[:1])
    found = jax.jit(functools.partial(packed_attention, mesh=mesh))(*arrays[:3], segments)
    np.testing.assert_allclose(found, attention.blockwise(*arrays[:3], jnp.asarray(segments)), atol=5e-6)


@pytest.mark.compiles
@pytest.mark.parametrize(("platform", "call"), [("cuda", "xla.gpu.triton"), ("tpu", "tpu_custom_call")])
def test_the_kernel_of_an_accelerator_is_what_is_compiled_there(
    platform: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 130 tokens, so padded to 256, forward and backward in bfloat16, lowered for that platform."""
    name = {"cuda": "gpu"}.get(platform, platform)
    monkeypatch.setattr(attention.jax, "devices", lambda: [type("Device", (), {"platform": name})])
    gradient = jax.grad(lambda *given: packed_attention(*given).astype(jnp.float32).sum(), (0, 1, 2))
    query, key, segments = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in [((2, 130, 4, 128), "bfloat16"), ((2, 130, 2, 128), "bfloat16"), ((2, 130), "int32")]
    )
    device = type("Device", (), {"platform": platform, "device_kind": CHIPS["h100"].kind})
    with lowered_for(device):
        program = jax.jit(gradient).trace(query, key, key, segments).lower(lowering_platforms=(platform,)).as_text()
    assert program.count(call) >= 3  # forward, and the two halves of the backward pass


def rows(*, length: int, heads: int, groups: int, size: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Query, key, value, an arriving gradient, and descending segments that end in padding."""
    draw = np.random.default_rng(length)
    shapes = [(2, length, heads, size), (2, length, groups, size), (2, length, groups, size), (2, length, heads, size)]
    segments = np.sort(draw.integers(0, 4, (2, length)))[:, ::-1].astype(np.int32)
    return [draw.normal(size=shape).astype(np.float32) for shape in shapes], segments


def results(attend: Callable, arrays: list[np.ndarray], segments: np.ndarray) -> tuple[jax.Array, ...]:
    """What comes out, and the gradients of query, key and value."""
    *given, toward = arrays

    def both(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        out, pull = jax.vjp(lambda *given: attend(*given, arrays[4]), *arrays[:3])
        return out, *pull(arrays[3])

    return jax.jit(both)(*given, toward, segments)

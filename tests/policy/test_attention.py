"""Packed attention against JAX's own dense one, and the accelerators' kernels against it."""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cojax.compile.targets import CHIPS, lowered_for
from cojax.policy import attention, sharding
from cojax.policy.attention import packed_attention
from cojax.policy.sharding import make_mesh


@pytest.mark.parametrize("length", [5, 32, 300])
def test_equals_dense_attention(length: int) -> None:
    arrays, segments = rows(length=length, heads=4, groups=2, size=8)
    expected = dense(*arrays[:3], visible(segments, length))
    found = jax.jit(packed_attention)(*arrays[:3], segments)
    np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


def test_gradient_is_that_of_dense_attention() -> None:
    arrays, segments = rows(length=70, heads=4, groups=2, size=8)
    expected = results(dense, arrays, visible(segments, 70))
    for found, each in zip(results(packed_attention, arrays, segments), expected, strict=True):
        np.testing.assert_allclose(found, each, atol=5e-6)


def test_a_window_hides_what_lies_before_it() -> None:
    """Values and gradients are those of dense attention with such a mask."""
    arrays, segments = rows(length=70, heads=4, groups=2, size=8)
    for window in (1, 7, 70):
        expected = results(dense, arrays, visible(segments, window))
        for found, each in zip(results(windowed, arrays, segments, np.int32(window)), expected, strict=True):
            np.testing.assert_allclose(found, each, atol=5e-6)


@pytest.mark.parametrize("kernel", [attention.run_triton, attention.run_splash])
def test_the_kernel_of_an_accelerator_computes_the_same(kernel: Callable) -> None:
    """The kernel that runs there, interpreted: values and gradients, grouped heads, several segments and padding."""
    arrays, segments = rows(length=256, heads=2, groups=1, size=16)
    interpreted = functools.partial(kernel, interpret=True)
    expected = results(attention.attend_blockwise, arrays, segments)
    for found, each in zip(results(interpreted, arrays, segments), expected, strict=True):
        np.testing.assert_allclose(found, each, atol=5e-6)


def test_what_tokamax_is_told_of_segments_is_their_mask() -> None:
    """With tokamax's own reference in place of its kernel, which needs a card."""
    base = pytest.importorskip("tokamax._src.ops.attention.base")
    arrays, segments = rows(length=70, heads=4, groups=2, size=8)
    operation = base.DotProductAttention(vjp=base.DotProductAttentionVjp())
    told = functools.partial(attention.run_tokamax, operation=operation)
    for found, expected in zip(
        results(told, arrays, segments), results(attention.attend_blockwise, arrays, segments), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=5e-6)


def told_of_parts(kernel: Callable, count: int) -> Callable:
    """The kernel on each of a row's parts, as devices call it, with the keys and values of whole rows."""

    def attend(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array) -> jax.Array:
        mesh = types.SimpleNamespace(shape={"data": 1, "fsdp": 1, "context": count})
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sharding, "constrain", lambda x, mesh: x)
            queries, own = (sharding.split_rows(x, mesh).reshape(count, 2, -1, *x.shape[2:]) for x in (query, segments))
        parts = [kernel(queries[i], key, value, segments, part=(own[i], jnp.int32(i))) for i in range(count)]
        return sharding.join_parts(jnp.concatenate(parts), count)

    return attend


@pytest.mark.parametrize("count", [2, 4])
def test_parts_of_rows_see_what_their_rows_do(count: int) -> None:
    arrays, segments = rows(length=72, heads=4, groups=2, size=8)
    told = told_of_parts(attention.attend_blockwise, count)
    expected = results(attention.attend_blockwise, arrays, segments)
    for found, each in zip(results(told, arrays, segments), expected, strict=True):
        np.testing.assert_allclose(found, each, atol=5e-6)


def test_splash_computes_parts_of_rows() -> None:
    arrays, segments = rows(length=256, heads=2, groups=1, size=16)
    told = told_of_parts(functools.partial(attention.run_splash, interpret=True), 2)
    expected = results(attention.attend_blockwise, arrays, segments)
    for found, each in zip(results(told, arrays, segments), expected, strict=True):
        np.testing.assert_allclose(found, each, atol=5e-6)


def test_what_tokamax_is_told_of_parts_is_their_mask() -> None:
    base = pytest.importorskip("tokamax._src.ops.attention.base")
    arrays, segments = rows(length=72, heads=4, groups=2, size=8)
    operation = base.DotProductAttention(vjp=base.DotProductAttentionVjp())
    told = told_of_parts(functools.partial(attention.run_tokamax, operation=operation), 2)
    expected = results(attention.attend_blockwise, arrays, segments)
    for found, each in zip(results(told, arrays, segments), expected, strict=True):
        np.testing.assert_allclose(found, each, atol=5e-6)


def test_tokamax_serves_hopper_and_blackwell_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(attention.jax, "__version_info__", (0, 11, 1))
    (_, serves), *_ = attention.KERNELS["gpu"]
    capabilities = ("9.0", "10.0", "8.0", "12.0", "gfx942")
    hopper, blackwell, *others = (type("Device", (), {"compute_capability": name}) for name in capabilities)
    assert serves(hopper, jnp.dtype("bfloat16"))
    assert serves(blackwell, jnp.dtype("bfloat16"))
    assert not serves(hopper, jnp.dtype("float32"))
    assert not any(serves(other, jnp.dtype("bfloat16")) for other in others)
    assert not serves(blackwell, jnp.dtype("bfloat16"), ("9",))
    assert not serves(type("Device", (), {}), jnp.dtype("bfloat16"))
    monkeypatch.setattr(attention.jax, "__version_info__", (0, 10, 2))
    assert not serves(hopper, jnp.dtype("bfloat16"))


def test_a_kernel_gets_its_rows_and_heads_of_a_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted = functools.partial(attention.run_splash, interpret=True)
    monkeypatch.setitem(attention.KERNELS, "cpu", ((interpreted, lambda device, dtype: True),))
    arrays, segments = rows(length=130, heads=2, groups=1, size=16)
    mesh = make_mesh(devices=jax.devices()[:1])
    found = jax.jit(functools.partial(packed_attention, mesh=mesh))(*arrays[:3], segments)
    expected = dense(*arrays[:3], visible(segments, 130))
    np.testing.assert_allclose(found, expected, atol=5e-6)


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


def visible(segments: np.ndarray, window: int) -> np.ndarray:
    """bool[B, T, T]: what each token sees, padding too of itself."""
    distance = np.arange(segments.shape[1])[:, None] - np.arange(segments.shape[1])
    return (distance >= 0) & (distance < window) & (segments[:, :, None] == segments[:, None, :])


@jax.jit
def dense(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None])


def windowed(query: jax.Array, key: jax.Array, value: jax.Array, segments: jax.Array, window: jax.Array) -> jax.Array:
    return packed_attention(query, key, value, segments, window=window)


def results(attend: Callable, arrays: list[np.ndarray], *others: Any) -> tuple[jax.Array, ...]:
    """What comes out, and the gradients of query, key and value."""
    return _compiled(attend)(*arrays, *others)


@functools.cache
def _compiled(attend: Callable) -> Callable:
    @jax.jit
    def both(query: jax.Array, key: jax.Array, value: jax.Array, toward: jax.Array, *others: jax.Array) -> tuple:
        out, pull = jax.vjp(lambda *given: attend(*given, *others), query, key, value)
        return out, *pull(toward)

    return both

"""Run with eight virtual devices by test_mesh.py: loss, gradients, an SGD step and checkpoints on every mesh."""

from __future__ import annotations

import functools
import math
import sys
from pathlib import Path

import jax
import numpy as np

import cojax
from cojax.policy import logprobs, moe, transformer
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params, get_leaf, parameters
from cojax.policy.pretrained import write_model
from cojax.policy.sharding import batch_sharding, list_axes, make_mesh, partition, shard
from cojax.storage.checkpoint import Checkpointer

initialize = functools.cache(transformer.initialize)

# No width is that of another array, so that `check_kept` knows the logits by their shape.
DENSE = ModelConfig(80, 32, 48, 2, 4, 2, 16, tie_word_embeddings=False)
SPARSE = ModelConfig(
    80,
    32,
    48,
    2,
    4,
    2,
    16,
    model_type="qwen3_moe",
    num_experts=8,
    num_experts_per_tok=2,
    moe_intermediate_size=24,
    norm_topk_prob=True,
)
MESHES = {
    "dense": (DENSE, ({"fsdp": 8}, {"data": 4, "tensor": 2}, {"data": 2, "fsdp": 2, "tensor": 2})),
    "sparse": (SPARSE, ({"fsdp": 8}, {"expert": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "tensor": 2, "expert": 2})),
    "parts": (DENSE, ({"context": 2}, {"context": 4}, {"fsdp": 2, "context": 2, "tensor": 2})),
    "sparse parts": (SPARSE, ({"context": 4, "expert": 2}, {"fsdp": 2, "context": 2, "expert": 2})),
}


def mesh_of(sizes: dict[str, int]) -> jax.sharding.Mesh:
    return make_mesh(**sizes, devices=jax.devices()[: math.prod(sizes.values())])


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eight rows of two texts and padding."""
    tokens = np.random.default_rng(0).integers(0, 64, (8, 16)).astype(np.int32)
    segments = np.broadcast_to(np.array([1] * 7 + [2] * 6 + [0] * 3, np.int32), tokens.shape)
    positions = np.broadcast_to(np.array([*range(7), *range(6), 0, 0, 0], np.int32), tokens.shape)
    return tokens, positions, segments


def close(config: ModelConfig, found: Params, expected: Params, what: str) -> None:
    for row in parameters(config):
        a, b = (np.asarray(get_leaf(tree, row), np.float64) for tree in (found, expected))
        share = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert share <= 1e-5, f"{what}: {row.name} is off by {share:.1e} of its norm"


def step(
    config: ModelConfig, params: Params, rows: tuple, mesh: jax.sharding.Mesh | None
) -> tuple[jax.Array, Params, Params]:
    """Loss, gradient, and the parameters after SGD at learning rate 1."""

    def loss(params: Params) -> jax.Array:
        scores = logprobs.token_scores(config, params, *rows, chunk=2, remat="layers", mesh=mesh, entropy="gradient")
        return -(scores.logprobs + 0.1 * scores.entropy).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    return value, gradient, jax.tree.map(lambda p, g: p - 1.0 * g, params, gradient)


@functools.cache
def on_one_device(config: ModelConfig) -> tuple[jax.Array, Params, Params]:
    return jax.jit(functools.partial(step, config, mesh=None))(initialize(config, 0), batch())


def check_update(config: ModelConfig, sizes: dict, mesh_aware: bool) -> None:
    mesh = mesh_of(sizes)
    placed, rows = shard(config, initialize(config, 0), mesh), jax.device_put(batch(), batch_sharding(mesh))
    found = jax.jit(functools.partial(step, config, mesh=mesh if mesh_aware else None))(placed, rows)
    expected, what = on_one_device(config), f"{sizes}, {mesh_aware=}"
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, err_msg=what)
    close(config, found[1], expected[1], what + ", gradient")
    close(config, found[2], expected[2], what + ", parameters")


def check_kept(config: ModelConfig, sizes: dict) -> None:
    """The logits are kept where those of a device's own rows and vocabulary fit, and only there."""
    mesh, length = mesh_of(sizes), 16 // sizes.get("context", 1)
    rows, vocabulary = 8 // (mesh.shape["data"] * mesh.shape["fsdp"]), config.vocab_size // mesh.shape["tensor"]
    for kept, less in ((True, 0), (False, 1)):
        logprobs.MAX_KEPT_BYTES = 4 * rows * length * vocabulary - less
        placed = shard(config, initialize(config, 0), mesh)
        program = str(jax.make_jaxpr(functools.partial(step, config, mesh=mesh))(placed, batch()))
        assert (f"f32[{rows},{length},{vocabulary}]" in program) == kept, (sizes, kept)


def check_shares(config: ModelConfig, sizes: dict, row_name: str) -> None:
    """A device holds its part of a leaf, and no more."""
    mesh = make_mesh(**sizes)
    row = next(row for row in parameters(config) if row.name == row_name)
    leaf = get_leaf(shard(config, initialize(config, 0), mesh), row)
    whole = int(np.prod(leaf.shape))
    parts = int(np.prod([mesh.shape[axis] for entry in partition(row) for axis in list_axes(entry)]))
    assert leaf.addressable_shards[0].data.size * parts == whole, (row_name, leaf.sharding)


def check_checkpoint(config: ModelConfig, folder: Path) -> None:
    """Saved on 8 devices, restored on 1 and on 4."""
    params = initialize(config, 0)
    on_8 = shard(config, params, make_mesh(fsdp=4, tensor=2))
    keeper = Checkpointer(folder / "checkpoints")
    keeper.save(1, on_8, {})
    for count, sizes in ((1, {}), (4, {"fsdp": 2, "tensor": 2})):
        mesh = make_mesh(**sizes, devices=jax.devices()[:count])
        like = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
            shard(config, params, mesh),
        )
        restored = keeper.read_arrays(1, like)
        for row in parameters(config):
            leaf = get_leaf(restored, row)
            assert leaf.sharding.device_set == set(jax.devices()[:count])
            np.testing.assert_array_equal(np.asarray(leaf), np.asarray(get_leaf(params, row)))


def check_load(config: ModelConfig, sizes: dict, folder: Path) -> None:
    """A folder read straight onto a mesh, its logits, and the same bytes saved from there."""
    alone = initialize(config, 0)
    write_model(folder / "one", config, alone)
    mesh = make_mesh(**sizes)
    policy = cojax.load(folder / "one", mesh=mesh)
    for row in parameters(config):
        leaf = get_leaf(policy.params, row)
        assert leaf.sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, partition(row)), leaf.ndim), row.name
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(get_leaf(alone, row)), err_msg=row.name)
    tokens = batch()[0][:3, :15]
    np.testing.assert_allclose(policy.logits(tokens), cojax.load(folder / "one").logits(tokens), atol=2e-5)
    policy.save(folder / "two")
    for name in ("model.safetensors", "config.json"):
        assert (folder / "two" / name).read_bytes() == (folder / "one" / name).read_bytes()


def grouped(
    x: jax.Array, routing: moe.Routing, kernels: moe.Kernels, first: jax.Array | int = 0, **settings: object
) -> jax.Array:
    """What accelerators run instead of the CPU's way."""
    return moe.mix_grouped(x, routing.experts, routing.weights, kernels, jax.numpy.int32(first), **settings)


if __name__ == "__main__":
    kind, folder = sys.argv[1], Path(sys.argv[2])
    assert len(jax.devices()) == 8
    model, meshes = MESHES[kind]
    for number, sizes in enumerate(meshes):
        for bytes_kept in (0, 2**20):
            logprobs.MAX_KEPT_BYTES = bytes_kept
            check_update(model, sizes, mesh_aware=True)
        if number == len(meshes) - 1 and "context" not in sizes:
            check_update(model, sizes, mesh_aware=False)
        check_kept(model, sizes)
    check_shares(model, meshes[-1], "layers/feed_forward/gate" + ("" if model.sparse else "/kernel"))
    check_load(model, meshes[-1], folder)
    check_checkpoint(model, folder)
    if model.sparse:
        moe.mix = grouped
        jax.clear_caches()
        check_update(model, meshes[-1], mesh_aware=True)

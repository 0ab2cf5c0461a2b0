"""Log-probabilities on four devices are those on one; a mesh that does not fit says so."""

import os
import subprocess
import sys
from pathlib import Path

import compiling
import jax
import pytest
from jax.sharding import PartitionSpec
from references import initialize

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.policy.sharding import make_mesh, partition, shard

SHARDED = """
import sys
import jax, numpy as np
from references import one_segment, reference
from cojax.policy.logprobs import token_logprobs
from cojax.policy.sharding import batch_sharding, make_mesh, shard

assert len(jax.devices()) == 4
config, params, values = reference("qwen2")
config = __import__("dataclasses").replace(config, vocab_size=60)
params = {**params, "embed": {"embedding": params["embed"]["embedding"][:60]},
          "head": {"kernel": params["head"]["kernel"][:, :60]}}
tokens = np.random.default_rng(0).integers(0, 60, (4, 24)).astype(np.int32)
batch = (tokens, *one_segment(tokens))
score = jax.jit(lambda params, batch: token_logprobs(config, params, *batch, chunk=8))
alone = np.asarray(score(params, batch))
for sizes in ({"tensor": 2, "fsdp": 2}, {"data": 4}, {"fsdp": 4}, {"data": 2, "tensor": 2}):
    mesh = make_mesh(**sizes)
    placed = shard(config, params, mesh)
    kernel = placed["layers"]["feed_forward"]["gate"]["kernel"]
    share = 32 // mesh.shape["fsdp"], 40 // mesh.shape["tensor"]
    assert kernel.addressable_shards[0].data.shape == (2, *share), kernel.sharding
    spread = np.asarray(score(placed, jax.device_put(batch, batch_sharding(mesh))))
    np.testing.assert_allclose(spread, alone, atol=1e-5, rtol=0)

try:
    shard(config, params, make_mesh(tensor=4))
except ValueError as error:
    assert "layers/attention/key/kernel has kv_heads=2, which tensor=4 does not divide" in str(error), error
else:
    raise AssertionError("two key heads were spread over four devices")
"""


def test_log_probs_do_not_depend_on_the_mesh() -> None:
    """And an axis must divide: both need more devices than this process has."""
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "XLA_FLAGS": compiling.flags(4),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(root), str(Path(__file__).parent)]),
    }
    done = subprocess.run([sys.executable, "-c", SHARDED], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_partition_follows_the_rules() -> None:
    rows = {row.name: partition(row) for row in parameters(ModelConfig(61, 32, 40, 2, 4, 2, 16))}
    assert rows["layers/attention/query/kernel"] == PartitionSpec(None, "fsdp", "tensor", None)
    assert rows["layers/feed_forward/down/kernel"] == PartitionSpec(None, "tensor", "fsdp")
    assert rows["layers/attention/query_norm/scale"] == PartitionSpec(None, None)


def test_sizes_must_multiply_to_the_devices() -> None:
    with pytest.raises(ValueError, match=r"data=2 × fsdp=1 × tensor=3 × expert=1 makes 6 devices, but there are 1"):
        make_mesh(data=2, tensor=3, devices=jax.devices()[:1])


def test_one_device_is_a_mesh_too() -> None:
    config = ModelConfig(61, 32, 40, 2, 4, 2, 16)
    placed = shard(config, initialize(config, 0), make_mesh(devices=jax.devices()[:1]))
    assert placed["embed"]["embedding"].shape == (61, 32)

"""Log-probabilities on four devices are those on one; a mesh that does not fit says so."""

import os
from pathlib import Path

import compiling
import jax
import pytest
from commands import Commands
from jax.sharding import PartitionSpec
from references import initialize

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.policy.sharding import make_mesh, partition, shard


def test_log_probs_do_not_depend_on_the_mesh(commands: Commands) -> None:
    """And an axis must divide: both need more devices than this process has."""
    environment = {**os.environ, "XLA_FLAGS": compiling.flags(4)}
    done = commands.run("policy.sharding_program", environment=environment, folder=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr


def test_partition_follows_the_rules() -> None:
    rows = {row.name: partition(row) for row in parameters(ModelConfig(61, 32, 40, 2, 4, 2, 16))}
    width = ("fsdp", "context")
    assert rows["layers/attention/query/kernel"] == PartitionSpec(None, width, "tensor", None)
    assert rows["layers/feed_forward/down/kernel"] == PartitionSpec(None, "tensor", width)
    assert rows["layers/attention/query_norm/scale"] == PartitionSpec(None, None)


def test_sizes_must_multiply_to_the_devices() -> None:
    with pytest.raises(
        ValueError, match=r"data=2 × fsdp=1 × context=1 × tensor=3 × expert=1 makes 6 devices, but there are 1"
    ):
        make_mesh(data=2, tensor=3, devices=jax.devices()[:1])


def test_one_device_is_a_mesh_too() -> None:
    config = ModelConfig(61, 32, 40, 2, 4, 2, 16)
    placed = shard(config, initialize(config, 0), make_mesh(devices=jax.devices()[:1]))
    assert placed["embed"]["embedding"].shape == (61, 32)

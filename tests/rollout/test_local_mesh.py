"""The local engine on a mesh samples what it does on one device, and no two threads start programs of several."""

import os
from pathlib import Path

import compiling
import pytest
from commands import Commands

MORE = ("data", "tensor", "tensor-4", "expert", "fsdp-expert")


@pytest.mark.parametrize("kind", ["data-tensor", *(pytest.param(kind, marks=pytest.mark.real) for kind in MORE)])
def test_a_mesh_samples_as_one_device(kind: str, commands: Commands) -> None:
    """Tokens and routes are equal, log-probs to 1e-5, bits the same in any company, and memory is as counted."""
    environment = {**os.environ, "XLA_FLAGS": compiling.flags(4)}
    folder = Path(__file__).parents[1]
    command = commands.start("rollout.engine_mesh_program", kind, environment=environment, folder=folder)
    done = command.wait(timeout=900)
    assert done.returncode == 0, done.stderr

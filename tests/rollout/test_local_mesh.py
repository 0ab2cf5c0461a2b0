"""The local engine on a mesh samples what it does on one device, and no two threads start programs of several."""

import os
import subprocess
import sys
from pathlib import Path

import compiling
import pytest
from patience import patience

MORE = ("data", "tensor", "tensor-4", "expert", "fsdp-expert")


@pytest.mark.parametrize("kind", ["data-tensor", *(pytest.param(kind, marks=pytest.mark.real) for kind in MORE)])
def test_a_mesh_samples_as_one_device(kind: str) -> None:
    """Tokens and routes are equal, log-probs to 1e-5, bits the same in any company, and memory is as counted."""
    environment = {
        **os.environ,
        "XLA_FLAGS": compiling.flags(4),
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # most of it is compiling
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, str(Path(__file__).with_name("engine_mesh_program.py")), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(900))
    assert done.returncode == 0, done.stderr

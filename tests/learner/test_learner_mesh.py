"""Eight devices learn what one does: with and without adapters, against a reference, after a rehearsal."""

import os
import subprocess
import sys
from pathlib import Path

import compiling
import pytest
from patience import patience


@pytest.mark.real
@pytest.mark.parametrize("kind", ["dense", "sparse", "parts", "sparse parts"])
def test_eight_devices_learn_as_one(kind: str, tmp_path: Path) -> None:
    """To 1e-5 of each leaf's norm after two steps; what they save, one device restores."""
    root = Path(__file__).parents[2]
    environment = {
        **os.environ,
        "XLA_FLAGS": compiling.flags(8),
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # most of it is compiling
        "PYTHONPATH": str(root),
    }
    program = [sys.executable, str(Path(__file__).with_name("learner_mesh_program.py")), kind, str(tmp_path)]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=patience(1_200))
    assert done.returncode == 0, done.stderr

"""Eight devices compute what one does: loss, gradients, an update, on every kind of mesh."""

import os
import subprocess
import sys
from pathlib import Path

import compiling
import pytest
from patience import patience


@pytest.mark.real
@pytest.mark.parametrize("kind", ["dense", "sparse", "parts", "sparse parts"])
def test_eight_devices_are_as_one(kind: str, tmp_path: Path) -> None:
    """To 1e-5 of each leaf's norm; checkpoints move between meshes; in a process that has eight devices."""
    _run("mesh_program.py", kind, str(tmp_path))


@pytest.mark.real
@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_scoring_matrix_is_moved_once(kind: str) -> None:
    """By the text of the compiled program, no loop gathers the vocabulary matrix or reduces its gradient."""
    _run("collectives_program.py", kind)


@pytest.mark.real
@pytest.mark.parametrize("kind", ["dense", "sparse", "losses"])
def test_rows_split_over_devices(kind: str) -> None:
    """By the text of the compiled update only keys and values of whole rows are gathered; every loss is the same."""
    _run("context_program.py", kind)


def _run(program: str, *arguments: str) -> None:
    root = Path(__file__).parents[2]
    environment = {**os.environ, "XLA_FLAGS": compiling.flags(8), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(root)}
    command = [sys.executable, str(Path(__file__).with_name(program)), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience(1_200))
    assert done.returncode == 0, done.stderr

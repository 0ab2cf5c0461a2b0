"""Variables for equal bits: what is set where, and that JAX starts with them and computes the documented bits."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from cojax.host import same_bits
from experiments.study.launch import VARIABLES

NAMES = ("XLA_FLAGS", "NPROC", "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL")
FLAGS = "--xla_cpu_enable_platform_dependent_math=false --xla_cpu_max_isa=AVX2"
PROGRAM = """
import json, os
from cojax.host import same_bits
same_bits.set_variables()
import jax
print(json.dumps([float(jax.jit(lambda x: x @ x)(jax.numpy.eye(3)).sum()), os.environ["XLA_FLAGS"]]))
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Without the variables; what the test sets is taken back."""
    for name in NAMES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return monkeypatch


def variables() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES]


def test_the_variables_are_those_of_the_study(environment: pytest.MonkeyPatch) -> None:
    same_bits.set_variables()
    assert variables() == [FLAGS, "2", "0"]
    assert variables() == [VARIABLES[name] for name in NAMES]


def test_what_the_user_set_stays(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("XLA_FLAGS", " --xla_cpu_max_isa=AVX --xla_dump_to=/tmp/x")
    environment.setenv("NPROC", "8")
    same_bits.set_variables()
    ours = "--xla_cpu_enable_platform_dependent_math=false"
    assert variables() == [f"{ours} --xla_cpu_max_isa=AVX --xla_dump_to=/tmp/x", "8", "0"]


@pytest.mark.parametrize(("flags", "machine"), [("flags.txt", "x86_64"), ("", "aarch64"), ("", "arm64")])
def test_flags_in_a_file_and_other_processors_stay(environment: pytest.MonkeyPatch, flags: str, machine: str) -> None:
    environment.setenv("XLA_FLAGS", flags)
    environment.setattr(platform, "machine", lambda: machine)
    same_bits.set_variables()
    assert variables() == [flags, None, None]


def test_a_flag_that_the_installed_jaxlib_lacks_is_left_out(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(same_bits, "FLAGS", {**same_bits.FLAGS, "xla_cpu_no_flag_of_any_version": "true"})
    same_bits.set_variables()
    assert os.environ["XLA_FLAGS"] == FLAGS


@pytest.mark.skipif(platform.machine() != "x86_64", reason="on x86-64 alone")
def test_jax_starts_with_them() -> None:
    """A flag that XLA does not know would end the process."""
    clean = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[2], env=clean, capture_output=True, text=True,
        timeout=patience(60), check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [3.0, FLAGS]

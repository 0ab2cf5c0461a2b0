"""A gradient of the desk's policy has the same bits on this host and on emulated ones without AVX-512: docs/bits.md."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from experiments.study.launch import VARIABLES

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors that are emulated are x86-64"),
]
ROOT = Path(__file__).parents[2]
# One block of the desk's policy in the rows of a batch: random numbers, so that every product and sum is of many terms.
PROGRAM = """
import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.transformer import initialize
from cojax.run.machine import hash_arithmetic

config = ModelConfig(512, 128, 512, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
numbers = np.random.Generator(np.random.PCG64(1))
shapes = jax.eval_shape(lambda: initialize(config, 0))
params = jax.tree.map(lambda one: jnp.asarray(0.08 * numbers.standard_normal(one.shape, np.float32)), shapes)
tokens = jnp.asarray(numbers.integers(0, 512, (8, 256)), jnp.int32)
positions = jnp.tile(jnp.arange(256, dtype=jnp.int32), (8, 1))
loss = lambda params: -jnp.mean(token_logprobs(config, params, tokens, positions, jnp.ones_like(tokens)))
found = jax.jit(jax.value_and_grad(loss))(params)
assert all(np.asarray(one).any() for one in jax.tree.leaves(found))
print(hash_arithmetic(), *(hashlib.sha256(np.asarray(one).tobytes()).hexdigest()[:8] for one in jax.tree.leaves(found)))
"""


def output(program: str, emulator: list[str], variables: dict[str, str]) -> list[str]:
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    done = subprocess.run(
        [*emulator, Path(sys.executable).resolve(), "-c", program],
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": paths, **variables},
        capture_output=True, text=True, timeout=patience(900), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.fixture(scope="module")
def emulator() -> str:
    program = shutil.which("qemu-x86_64")
    assert program, "no qemu-x86_64 on PATH; on Debian and Ubuntu: apt-get install --yes qemu-user"
    return program


@pytest.mark.parametrize("processor", ["EPYC-Milan", "Haswell-v4"])
def test_a_run_of_the_study_has_the_same_bits_without_avx512(emulator, processor):
    here = output(PROGRAM, [], dict(VARIABLES))
    assert len(here) > 10
    assert output(PROGRAM, [emulator, "-cpu", processor], dict(VARIABLES)) == here


def test_the_processor_decides_the_bits_where_no_variable_fixes_the_kernels(emulator):
    program = "from cojax.run.machine import hash_arithmetic; print(hash_arithmetic())"
    free = {"NPROC": "2", "JAX_PLATFORMS": "cpu"}
    found = [output(program, [emulator, "-cpu", processor], free) for processor in ("EPYC-Milan", "Haswell-v4")]
    assert found[0] != found[1]

"""cojax/run/machine.py, on a written machine and on this one."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import jaxlib
import pytest
from patience import patience

from cojax.run import machine
from experiments.study.launch import VARIABLES

CPUINFO = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC
stepping	: 1
flags		: fpu smep sse4_2 fma avx2 avx512f

processor	: 1
vendor_id	: Other
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A machine whose files are in a folder of its own."""
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    for index, (level, kind, size) in enumerate([(1, "Data", "32K"), (2, "Unified", "1024K"), (3, "Unified", "12M")]):
        folder = tmp_path / f"cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "_CACHE_FOLDER", tmp_path / "cache")
    for name in machine._TABLES["variables"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    return tmp_path


def test_the_facts_tell_two_processors_of_one_name_apart(written):
    found = machine.read_machine()
    assert found["cpu"] == {
        "vendor": "AuthenticAMD",
        "family": "25",
        "model": "17",
        "stepping": "1",
        "instructions": ["avx2", "avx512f", "fma", "sse4_2"],
        "flags": "5b0e5ab16689",
    }
    # A size that is not understood is left out.
    assert found["caches"] == {"L1d": 32768, "L2": 1048576}
    assert found["environment"] == {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"}
    assert found["usable_cores"] == len(os.sched_getaffinity(0))
    assert machine.read_processor_name() == "AMD EPYC"


def test_what_the_system_does_not_tell_is_missing(written):
    (written / "cpuinfo").unlink()
    (written / "cache/index0/size").unlink()
    found = machine.read_machine()
    assert (found["cpu"], found["caches"], machine.read_processor_name()) == ({}, {"L2": 1048576}, "unknown")


def test_the_facts_are_json_and_name_this_machine(written):
    assert json.loads(json.dumps(machine.read_machine())) == machine.read_machine()
    assert machine.find_bit_facts() == {
        "environment": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"},
        "arithmetic": machine.hash_arithmetic(),
    }


@pytest.mark.parametrize(
    ("instructions", "jax_version", "flags", "dtype"),
    [
        ("avx512f avx512_bf16", (0, 11, 0), "", "bfloat16"),
        ("avx2 amx_bf16", (0, 12, 1), "", "bfloat16"),
        ("avx512f avx512_bf16", (0, 10, 2), "", "float32"),
        ("avx512f", (0, 12, 1), "", "float32"),
        ("avx512_bf16", (0, 12, 1), "--xla_cpu_max_isa=AVX2", "float32"),
    ],
)
def test_bfloat16_is_chosen_where_products_of_it_are_computed(
    written, monkeypatch, instructions, jax_version, flags, dtype
):
    (written / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: sse4_2 {instructions}\n")
    monkeypatch.setattr(machine.jax, "__version_info__", jax_version)
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert machine.choose_compute_dtype() == dtype
    monkeypatch.setattr(machine.jax, "default_backend", lambda: "gpu")
    assert machine.choose_compute_dtype() == "bfloat16"


def digest(variables: Mapping[str, str]) -> str:
    """`hash_arithmetic()` of a process with these variables."""
    program = "from cojax.run.machine import hash_arithmetic; print(hash_arithmetic())"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=True,
        env=environment,
    )
    return run.stdout.strip()


def test_the_digest_is_another_for_other_bits():
    own = os.environ.get("XLA_FLAGS", "")
    assert digest({"XLA_FLAGS": f"{own} --xla_cpu_max_isa=SSE4_2"}) != machine.hash_arithmetic()


@pytest.mark.nightly
def test_the_study_computes_the_same_bits_on_every_host_with_avx2_and_fma():
    """Holds for one version of jaxlib: a newer one may add in another order, and then needs a new digest here."""
    instructions = machine.read_machine()["cpu"].get("instructions", [])
    if jaxlib.__version__ != "0.10.2" or not {"avx2", "fma"} <= set(instructions):
        pytest.skip("the digest is of jaxlib 0.10.2 on an x86-64 host with AVX2 and FMA")
    assert digest(VARIABLES) == "529f2ad0b14f", (
        f"docs/bits.md promises the digest on this host: {machine.read_machine()}"
    )

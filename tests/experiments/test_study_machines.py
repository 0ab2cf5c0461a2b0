"""experiments/study/machines.py: what --again says of two machines."""

from experiments.study.launch import THREADS
from experiments.study.machines import differing_facts, other_threads, threads_of

OLD = {
    "versions": {"jax": "0.10.2", "numpy": "2.4.6"},
    "commit": "a",
    "hardware": {"processor": "AMD EPYC", "cores": 2, "devices": ["cpu"]},
}
NEW = {
    "versions": {"jax": "0.10.2", "numpy": "2.4.6"},
    "commit": "a",
    "hardware": {
        "processor": "AMD EPYC",
        "cores": 2,
        "devices": ["cpu"],
        "cpu": {"model": "17", "instructions": ["avx2", "fma"]},
        "caches": {"L1d": 32768},
        "arithmetic": "0123",
    },
}


def test_the_same_facts_give_no_line():
    assert differing_facts(NEW, NEW) == []


def test_an_old_record_says_what_it_does_not_say():
    assert differing_facts(OLD, NEW) == [
        "the record does not say: hardware.cpu.model (now 17), hardware.cpu.instructions (now avx2 fma), "
        "hardware.caches.L1d (now 32768), hardware.arithmetic (now 0123)"
    ]


def test_each_difference_has_a_line():
    now = {
        "versions": {"jax": "0.11.0", "numpy": "2.4.6"},
        "commit": "b",
        "hardware": {
            **NEW["hardware"],
            "cpu": {"model": "2", "instructions": ["avx2", "avx512f", "avx512vl"]},
            "caches": {},
        },
    }
    assert differing_facts(NEW, now) == [
        "hardware.cpu.model: 17 then, 2 now",
        "hardware.cpu.instructions: only then fma; only now avx512f avx512vl",
        "hardware.caches.L1d: 32768 then, not known now",
        "versions.jax: 0.10.2 then, 0.11.0 now",
        "commit: a then, b now",
    ]


def test_a_run_is_repeated_with_the_variables_of_its_record_and_no_others():
    before = {"threads": {**THREADS, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "LD_PRELOAD": "x"}}
    assert threads_of(before) == {**THREADS, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    assert threads_of({"threads": {}}) == THREADS


def test_stored_runs_of_another_arithmetic_are_named():
    older = {"threads": {**THREADS, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}}
    assert other_threads([{"threads": dict(THREADS)}]) == ""
    assert other_threads([older, {"threads": dict(THREADS)}, older]).startswith(
        "2 stored runs were made with XLA_FLAGS='--xla_cpu_multi_thread_eigen=false', new ones are made with "
        "'--xla_cpu_enable_platform_dependent_math=false'"
    )

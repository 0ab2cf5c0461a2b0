"""experiments/study/machines.py: what --again says of two machines."""

from experiments.study.launch import THREADS
from experiments.study.machines import differing_facts, threads_of, with_stored_threads
from experiments.study.runs import StudyRun

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
    older = {name: value for name, value in THREADS.items() if name != "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL"}
    assert threads_of({"threads": older}) == older


def test_a_new_run_has_the_variables_of_the_stored_runs_of_its_seed():
    older = {name: value for name, value in THREADS.items() if name != "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL"}
    jobs = [StudyRun(arm, seed, {}) for seed in (1, 2) for arm in ("static", "feedback")]
    found = with_stored_threads(jobs, [{"seed": 1, "threads": {**older, "LD_PRELOAD": "x"}}])
    assert [job.name for job in found] == ["static-1", "feedback-1", "static-2", "feedback-2"]
    assert [job.threads for job in found] == [older, older, THREADS, THREADS]

"""experiments/study/machines.py: what --again says of two machines, and the variables that a run has."""

import json

import pytest

from experiments.study.comparison import (
    adopt_stored_variables,
    differing_facts,
    explain_other_variables,
    read_variables,
)
from experiments.study.launch import VARIABLES
from experiments.study.tables import StudyRun

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
# The variables of records made before VARIABLES had its last one.
OLDER = {name: value for name, value in VARIABLES.items() if name != "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL"}


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
    before = {"threads": {**VARIABLES, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "LD_PRELOAD": "x"}}
    assert read_variables(before) == {**VARIABLES, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    assert read_variables({"threads": OLDER}) == OLDER


def stored(arm, seed, threads, **settings):
    return {"arm": arm, "seed": seed, "settings": settings, "threads": threads}


def test_a_new_run_has_the_variables_of_the_stored_runs_that_begin_like_it():
    jobs = [StudyRun(arm, seed, {}) for seed in (1, 2) for arm in ("static", "feedback")]
    other_ground = stored("static", 2, OLDER, **{"environment.suites": 4})
    found = adopt_stored_variables(jobs, [stored("uniform", 1, {**OLDER, "LD_PRELOAD": "x"}, steps=3), other_ground])
    assert [job.name for job in found] == ["static-1", "feedback-1", "static-2", "feedback-2"]
    assert [job.variables for job in found] == [OLDER, OLDER, VARIABLES, VARIABLES]


def test_stored_runs_that_begin_alike_with_different_variables_are_refused():
    both = [stored("static", 1, OLDER), stored("uniform", 1, dict(VARIABLES))]
    with pytest.raises(ValueError, match="feedback-1 would share the warm start of the stored static-1 and uniform-1"):
        adopt_stored_variables([StudyRun("feedback", 1, {})], both)
    assert adopt_stored_variables([StudyRun("feedback", 2, {})], both)[0].variables == VARIABLES


def test_a_run_does_not_go_on_with_other_variables(tmp_path):
    assert explain_other_variables(StudyRun("feedback", 1, {}), tmp_path) == ""
    environment = {name: VARIABLES[name] for name in ("XLA_FLAGS", "NPROC")}
    (tmp_path / "config.json").write_text(json.dumps({"hardware": {"environment": environment}}))
    assert explain_other_variables(StudyRun("feedback", 1, {}, OLDER), tmp_path) == ""
    why = explain_other_variables(StudyRun("feedback", 1, {}), tmp_path)
    name = "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL"
    assert f"was started without {name}, and would go on with {name}='0', with other bits. Delete it or choose" in why
    for damaged in ("{", "[]", '{"hardware": {"environment": [1]}}'):
        (tmp_path / "config.json").write_text(damaged)
        assert explain_other_variables(StudyRun("feedback", 1, {}), tmp_path) == ""

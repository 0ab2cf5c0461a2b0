"""The memory rehearsal: everything runs, nothing changes, nothing compiles twice, and what cannot fit is refused."""

import dataclasses
from types import SimpleNamespace

import jax
import pytest
from compiling import initialize
from tiny_learner import CONFIG, GROUPS, PARAMS, bits, make_learner

from cojax.learner import rehearsal
from cojax.learner.learner import Learner
from cojax.learner.rehearsal import (
    GIB,
    DeviceMemoryError,
    choose_fastest,
    count_needed,
    estimate_min_bytes,
    measure_available_bytes,
    rehearse,
)  # fmt: skip
from cojax.policy.adapters import Lora

SIZES = [len(group.trajectories) for group in GROUPS]
KL = {"loss_settings": {"kl_coefficient": 0.1}, "reference": initialize(CONFIG, 1)}


@pytest.fixture
def compiled():
    """How many programs the back end has compiled so far in this test."""
    names: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        listen := lambda name, seconds, **facts: names.append(name) if "backend_compile" in name else None
    )
    yield lambda: len(names)
    jax.monitoring.unregister_event_duration_listener(listen)


DPO = {"loss": "dpo", "reference": initialize(CONFIG, 1)}
PARTS = {"updates_per_batch": 2, "each_update": "part"}


@pytest.mark.parametrize(
    ("settings", "programs"),
    [
        ({**KL, "updates_per_batch": 2}, 3),  # the update, log-probs of the reference, those of the policy before
        ({**KL, "lora": Lora(2)}, 2),
        ({**DPO, **PARTS}, 3),
    ],
)
def test_a_run_that_fits_is_unchanged_bit_for_bit_and_its_first_step_compiles_nothing_more(
    settings, programs, compiled
):
    learner = make_learner(**settings)

    def learned(state):
        for batch in learner.pack(GROUPS, 0).batches:
            count = learner.count_live(batch)
            state, _ = learner.update_once(state, learner.prepare(state, batch, count), count)
        return bits(state)

    state = learner.init(PARAMS)
    before, begun = bits(state), compiled()
    state = rehearse(learner, state, SIZES)
    assert compiled() - begun == programs
    assert bits(state) == before
    found = learned(state)
    assert compiled() - begun == programs
    assert found == learned(learner.init(PARAMS)) != before


def test_what_cannot_fit_is_refused_with_advice():
    learner = make_learner(row_length=1 << 16, micro_rows=1 << 12, remat="none")
    with pytest.raises(
        DeviceMemoryError,
        match=r"the update needs \d+\.\d GiB beside what is loaded, and \d+\.\d GiB are available; lower "
        r"learner\.micro_rows \(4096\) or learner\.row_length \(65536\), set learner\.remat=layers, "
        r"set model\.dtype=bfloat16, set optimizer\.moments_dtype=bfloat16 or learner\.lora\.rank=16, or spread it",
    ):
        rehearse(learner, learner.init(PARAMS), SIZES)


def test_what_recomputes_the_least_is_chosen_of_what_fits_with_fewer_rows_at_a_time_if_need_be(monkeypatch):
    """More tokens than the model has numbers, so that what is kept of them decides."""
    learner = make_learner(row_length=512, micro_rows=16)
    state, compiled = learner.init(PARAMS), {}
    lowering = Learner.lower_programs

    def programs(candidate, *arguments):
        """Each update is compiled once."""
        if (key := (candidate.remat, candidate.micro_rows)) not in compiled:
            compiled[key] = lowering(candidate, *arguments)["update"]().compile()
        return {"update": lambda: SimpleNamespace(compile=lambda: compiled[key])}

    def chosen(there, beside=0, among=learner):
        monkeypatch.setattr(rehearsal, "measure_available_bytes", lambda: there)
        found = choose_fastest(among, state, SIZES, beside)
        return found.remat, found.micro_rows

    monkeypatch.setattr(Learner, "lower_programs", programs)
    assert chosen(0) == chosen(estimate_min_bytes(dataclasses.replace(learner, micro_rows=8)) - 1) == ("layers", 16)
    assert not compiled  # where nothing fits `rehearse` says so, and no program is compiled to see that
    fastest_first = [(remat, rows) for remat in ("none", "dots", "layers") for rows in (16, 8)]
    needs = {}
    for remat, rows in fastest_first:
        candidate = dataclasses.replace(learner, remat=remat, micro_rows=rows)
        batch, pairs = rehearsal.make_full_batches(candidate, SIZES)
        program = programs(candidate, state, batch, pairs)["update"]().compile()
        needs[remat, rows] = count_needed([program], 1, 2 * sum(array.nbytes for array in jax.tree.leaves(batch)))
    assert needs["none", 16] > needs["none", 8] > needs["dots", 8] > needs["layers", 8]
    for budget in (*needs.values(), *(need - 1 for need in needs.values())):
        fitting = [choice for choice in fastest_first if needs[choice] <= budget]
        assert chosen(budget) == (*fitting, ("layers", 16))[0], budget
    assert chosen(needs["none", 16], beside=1) == ("none", 8)
    assert chosen(None) == ("layers", 16)  # the system does not say
    compares_pairs = make_learner(**DPO, row_length=512, micro_rows=16)
    assert chosen(needs["none", 16] - 1, among=compares_pairs)[1] == 16


def test_what_a_compiler_refuses_does_not_fit(monkeypatch):
    """As the compiler for TPUs does."""
    learner = make_learner(row_length=512, micro_rows=32)
    state = learner.init(PARAMS)

    def refuse(reason):
        def compile_program():
            raise jax.errors.JaxRuntimeError(reason)

        program = SimpleNamespace(compile=compile_program)
        monkeypatch.setattr(Learner, "lower_programs", lambda *arguments: {"update": lambda: program})

    monkeypatch.setattr(rehearsal, "measure_available_bytes", lambda: 1 << 50)
    refuse("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm")
    assert choose_fastest(learner, state, SIZES).remat == "layers"
    for reason in ("INTERNAL: a fault", "RESOURCE_EXHAUSTED: Shared memory size limit exceeded"):
        refuse(reason)
        with pytest.raises(jax.errors.JaxRuntimeError, match=reason):
            choose_fastest(learner, state, SIZES)


def test_memory_that_runs_out_becomes_advice(monkeypatch):
    """Of more than a processor can address, so that it is refused on every machine, as an accelerator refuses it."""
    monkeypatch.setattr(rehearsal, "measure_available_bytes", lambda: None)
    config = dataclasses.replace(CONFIG, num_attention_heads=64, num_key_value_heads=64, head_dim=2)
    learner = dataclasses.replace(make_learner(micro_rows=1, row_length=1 << 20), config=config)
    with pytest.raises(DeviceMemoryError, match=r"the update does not fit: RESOURCE_EXHAUSTED: .*; lower learner\."):
        rehearse(learner, learner.init(initialize(config, 0)), [1])


def test_what_no_machine_has_is_refused_before_a_program_is_compiled(monkeypatch):
    """jaxlib 0.12 ends the process where it compiles this one."""
    config = dataclasses.replace(CONFIG, num_attention_heads=64, num_key_value_heads=64, head_dim=2)
    learner = dataclasses.replace(make_learner(micro_rows=1, row_length=1 << 22), config=config)
    monkeypatch.setattr(rehearsal, "measure_available_bytes", lambda: 64 * GIB)
    # 64 heads × 2¹⁹ queries of a block × 2²² keys × 4 bytes
    with pytest.raises(DeviceMemoryError, match=r"the update needs 524288\.0 GiB beside what is loaded, and 64\.0 GiB"):
        rehearse(learner, learner.init(initialize(config, 0)), [1])


# What is available ------------------------------------------------------------------------------------------------


def _machine(folder, cgroup, files):
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    8388608 kB\n")
    (folder / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        (folder / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup" / name).write_text(text)
    return measure_available_bytes(folder / "proc", folder / "cgroup")


def test_without_a_limit_it_is_what_the_machine_has(tmp_path):
    assert _machine(tmp_path, "0::/\n", {"memory.max": "max\n"}) == 8 * GIB


def test_a_limit_of_version_2_counts_what_is_used_but_cached_files(tmp_path):
    files = {
        "job/memory.max": f"{4 * GIB}\n",
        "job/memory.current": f"{3 * GIB}\n",
        "job/memory.stat": f"anon 5\nactive_file {GIB // 2}\ninactive_file {GIB // 2}\n",
        "job/inner/memory.max": "max\n",
    }
    assert _machine(tmp_path, "0::/job/inner\n", files) == 2 * GIB


def test_a_limit_of_version_1_stands_at_the_root_of_a_container(tmp_path):
    files = {"memory/memory.limit_in_bytes": f"{2 * GIB}\n", "memory/memory.usage_in_bytes": f"{GIB}\n"}
    assert _machine(tmp_path, "5:cpu:/x\n4:cpuset,memory:/docker/abc\n0::/\n", files) == GIB


def test_where_the_system_does_not_say_nothing_is_known(tmp_path):
    assert measure_available_bytes(tmp_path, tmp_path) is None


def test_this_machine_has_some():
    assert 0 < measure_available_bytes() < 1 << 50

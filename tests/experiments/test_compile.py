"""Compilation ahead of time: what the text of a program says, what a report holds, and errors of one line."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from cojax.compile import program_text, programs, targets
from cojax.compile.program_text import Collective
from cojax.compile.programs import (
    count_device_bytes,
    count_step_flops,
    find_families,
    find_logits_arrays,
    find_vocabulary_moves,
    make_outline,
    read_refusal,
    report,
    report_target,
    shape,
    suggestion,
)  # fmt: skip
from cojax.compile.targets import Chip
from cojax.learner.batch import RowShape
from cojax.learner.learner import Learner
from cojax.learner.objective import HardNegatives
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import make_full_batch
from cojax.policy import attention, logprobs
from cojax.policy.adapters import Lora
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import make_mesh
from cojax.policy.transformer import initialize
from cojax.settings import presets
from experiments import bfcl

ROOT = Path(__file__).parents[2]
# From the compiled update of a model of 4 layers for 16 TPU v5e and for 8 H100, cut to what is tested.
TPU, CUDA = ((Path(__file__).parent / f"programs/{name}.txt").read_text() for name in ("tpu", "cuda"))


def test_collectives_of_a_tpu_program_are_counted_once_with_the_rounds_of_their_loops():
    found = program_text.find_collectives(program_text.parse_program(TPU), 16, (32, 5))
    assert {(one.kind, one.bytes, one.runs, one.loops) for one in found} == {
        # bf16[1,4,32,256] of 8 devices, begun and ended apart, in each of 4 layers: 65,536 · 7 / 8
        ("all-gather", 57_344, 32 * 4, 2),
        ("reduce-scatter", 57_344, 32 * 4, 2),
        # bf16[1,128,256] between 2 devices in each of 5 chunks: 2 · 65,536 · 1 / 2
        ("all-reduce", 65_536, 32 * 5, 2),
        ("all-gather", 917_504, 32, 1),
        ("collective-permute", 512, 32, 1),
    }


def test_collectives_of_a_cuda_program_are_counted_once_with_the_rounds_of_their_loops():
    found = program_text.find_collectives(program_text.parse_program(CUDA), 8, (4,))
    assert {(one.kind, one.bytes, one.runs, one.loops) for one in found} == {
        ("all-gather", (512 + 131_072) * 7 // 8, 4 * 36, 2),
        ("reduce-scatter", 32 * 4096 * 4 * 7, 4, 1),
        ("all-to-all", 8 * 512 * 32 * 4 * 7 // 8, 4, 1),
        ("all-reduce", 2 * (8 * 3 // 4), 4, 1),
    }


def test_kernels_are_found_by_their_names():
    tpu, cuda = (program_text.count_kernels(program_text.parse_program(text)) for text in (TPU, CUDA))
    assert tpu == {"ragged-dot-none": 1, "splash_mha_fwd_segmented_residuals": 1}
    assert cuda == {"mha_forward": 1, "ragged_dot_as_dense": 1}
    mosaic = CUDA.replace("__gpu$xla.gpu.triton", "mosaic_gpu_v2")
    assert program_text.count_kernels(program_text.parse_program(mosaic)) == {"mosaic": 1, "ragged_dot_as_dense": 1}
    named = mosaic.replace(
        "backend_config={debug", 'metadata={op_name="jit(update)/shard_map/flash_attention_sm90/mpmd_map"}, x={', 1
    )
    assert find_families(program_text.count_kernels(program_text.parse_program(named))) == [
        "ragged dot as dense products over all experts", "tokamax flash attention"
    ]  # fmt: skip
    assert find_families(tpu) == ["ragged dot", "splash attention"]
    assert find_families(cuda) == ["Triton flash attention", "ragged dot as dense products over all experts"]


def test_what_the_compiler_computes_twice_is_counted():
    again = CUDA.replace("%pallas_call.32 =", "%pallas_call.remat2 =")
    counts = [program_text.count_silent_remat(program_text.parse_program(text)) for text in (CUDA, again)]
    assert counts == [0, 1]


def test_results_that_take_an_arguments_memory_are_counted():
    assert [program_text.parse_program(text).alias_count for text in (TPU, CUDA)] == [2, 2]
    assert program_text.parse_program(TPU.replace("may-alias", "")).alias_count == 0


def test_a_text_that_is_no_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        program_text.parse_program("HloModule jit_step\n")


CONFIG = ModelConfig(24, 8, 16, 2, 2, 1, tie_word_embeddings=False)
CHIP = Chip("chip", "cpu", "tpu", flops=1e9, bandwidth=1e6, memory=2**20, interconnect=1e6)


def learner(**settings) -> tuple[Learner, jax.Array]:
    """A learner with a reference on a mesh of one device, made of outlines alone, and the outline of its state."""
    params = jax.eval_shape(lambda: initialize(CONFIG, 0))
    made = Learner(
        **{
            "config": CONFIG, "optimizer": adamw(1e-3), "loss_settings": {"kl_coefficient": 0.1}, "row_length": 200,
            "micro_rows": 1, "reference": params, "mesh": make_mesh(devices=jax.devices()[:1]), **settings,
        }
    )  # fmt: skip
    return made, made.init(params)


@pytest.fixture(scope="module")
def full():
    """As for a large model, whose logits do not fit into what is kept."""
    made, outline = learner()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(logprobs, "MAX_KEPT_BYTES", 0)
        return report(made, outline, [2, 2], CHIP)


def test_a_report_of_the_devices_at_hand(full):
    assert full["fits"]
    assert full["bytes_limit"] == 2**20
    assert list(full["programs"]) == ["update", "reference"]
    update, reference = full["programs"]["update"], full["programs"]["reference"]
    # Each program leaves the other's parameters in memory: 1,592 numbers of float32; the state holds them three times,
    # and two counters beside the step.
    assert full["parameters"] == 1_592
    assert update["bytes_beside"] == 4 * 1_592
    assert reference["bytes_beside"] == 3 * 4 * 1_592 + 3 * 4
    assert full["bytes_argument"] == update["bytes_argument"] + 4 * 1_592
    assert full["bytes_peak"] == max(one["bytes_peak"] + one["bytes_beside"] for one in full["programs"].values())
    assert full["collectives"] == {}


def test_the_update_reuses_what_it_is_given_and_makes_no_logits_of_whole_rows(full):
    update = full["programs"]["update"]
    assert update["donated"] == update["reused"] == 3 * 14 + 3
    assert update["logits_arrays"] == full["programs"]["reference"]["logits_arrays"] == 0


def test_an_update_that_keeps_its_logits_is_found_and_its_memory_is_counted(full):
    made, outline = learner()
    kept = report(made, outline, [2, 2], CHIP)
    assert kept["programs"]["update"]["logits_arrays"] > 0
    assert kept["programs"]["reference"]["logits_arrays"] == 0
    # One row of 199 tokens in two chunks of 128, 24 numbers of float32 each; less the chunk that backward makes again.
    assert kept["bytes_peak"] - full["bytes_peak"] >= 4 * 128 * 24


def test_what_a_step_takes_at_least(full):
    # Four rows of 200 tokens: 2·N·n + 2·D·V·(n − 1) + 4·L·H·S·n(n + 1)/2 operations each, and four forwards of each.
    forward = 2 * 2 * (8 * 4 * (2 * 2 + 2) + 3 * 8 * 16) * 200 + 2 * 8 * 24 * 199 + 4 * 2 * 2 * 4 * 20_100
    assert full["flops"] == 4 * 4 * forward
    assert full["bounds"]["compute"] == pytest.approx(16 * forward / 1e9)
    assert full["bounds"]["interconnect"] == 0.0
    assert full["bound_seconds"] == max(full["bounds"].values())


def test_several_updates_have_a_program_for_the_policy_before_them():
    made, outline = learner(updates_per_batch=2, lora=Lora(2))
    batch = make_full_batch(4, RowShape(200))
    assert list(made.lower_programs(outline, batch)) == ["update", "reference", "old"]
    once, _ = learner()
    assert count_step_flops(made, batch) == 8 * count_step_flops(once, batch) // 4


def test_hard_negatives_have_a_program_and_a_second_agent_stays_in_memory():
    made, outline = learner(micro_rows=2, hard=HardNegatives(0.5))
    found = report(made, outline, [2, 2], CHIP, agents=2)
    assert list(found["programs"]) == ["update", "reference", "pairs"]
    state = 3 * 4 * 1_592 + 3 * 4
    # Beside the update: the reference, and the state of the other agent; beside the reference's forward, two states.
    assert [found["programs"][name]["bytes_beside"] for name in ("update", "reference")] == [
        state + 4 * 1_592, 2 * state,
    ]  # fmt: skip
    assert found["bytes_argument"] == found["programs"]["update"]["bytes_argument"] + state + 4 * 1_592
    assert found["bytes_peak"] == max(one["bytes_peak"] + one["bytes_beside"] for one in found["programs"].values())
    # Four rows of groups in four forwards each, and eight rows of pairs: as many again, twice.
    assert found["flops"] == 3 * count_step_flops(learner()[0], make_full_batch(4, RowShape(200)))


def test_a_round_has_a_program_for_the_policy_at_its_beginning():
    made, outline = learner(micro_rows=2, loss="dpo", loss_settings={}, round_reference="round", reference=None)
    assert list(made.lower_programs(outline, make_full_batch(4, RowShape(200)))) == ["update", "old"]


def test_the_scoring_matrix_in_an_inner_loop_and_logits_of_whole_rows_are_found():
    made, _ = learner()
    once = Collective("all-gather", 1, 32, 1, ((8, 24),))
    again, other = dataclasses.replace(once, loops=2), dataclasses.replace(once, loops=2, shapes=((8, 16),))
    assert find_vocabulary_moves([once, again, other], made) == [again]
    text = TPU.replace("bf16[512,256]{1,0:T(8,128)(2,1)S(1)}", "bf16[1,199,24]{1,0}")
    assert find_logits_arrays(program_text.parse_program(text), made, 200) == [(1, 199, 24)]
    assert find_logits_arrays(program_text.parse_program(TPU), made, 200) == []


def test_the_tpu_compilers_refusal_is_read():
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (18.50G) exceeds "
        "available HBM (15.75G)."
    )
    sizes = {"bytes_argument": 2**30, "bytes_result": 0, "bytes_code": 0}
    assert read_refusal(said, 2**30) == {**sizes, "bytes_temporary": 35 * 2**29, "bytes_peak": 37 * 2**29}
    assert read_refusal("RESOURCE_EXHAUSTED", 2**30) == {**sizes, "bytes_temporary": 0, "bytes_peak": 2**30}


def test_a_card_gives_the_share_that_jax_takes(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    assert targets.CHIPS["h100"].limit == 63_707_234_304
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    assert targets.CHIPS["h100"].limit == 42_471_489_536
    assert targets.CHIPS["v5e"].limit == 16_911_433_728


def test_an_unknown_target_is_refused_with_the_others():
    with pytest.raises(ValueError, match="target 'v9-16' not found; available: v5e-4, v5e-8, v5e-16"):
        targets.find_target("v9-16")


@pytest.fixture
def config(tmp_path):
    """The settings of BFCL for a model folder that holds only its shape."""
    (tmp_path / "config.json").write_text(json.dumps(dataclasses.replace(CONFIG, param_dtype="bfloat16").to_hf()))
    made = presets.apply_preset(bfcl.get_config(), ["model.path"])
    made.model.path = str(tmp_path)
    return made


def test_a_mesh_that_does_not_divide_target_or_model_is_refused(config, monkeypatch):
    monkeypatch.setattr(targets, "make_devices", lambda target: [jax.devices()[0]] * target.count)
    with pytest.raises(ValueError, match="fsdp=1 × context=1 × tensor=1 × expert=1 makes 1 devices, but there are 4"):
        report_target(config, targets.find_target("v5e-4"))
    config.mesh.tensor = 4
    with pytest.raises(ValueError, match="layers/attention/query/kernel has heads=2, which tensor=4 does not divide"):
        report_target(config, targets.find_target("v5e-4"))


def test_a_method_is_settled_before_it_is_checked(config, monkeypatch):
    """With rows one by one, a method that learns from pairs takes two at a time, here as in a run."""
    monkeypatch.setattr(targets, "make_devices", lambda target: [jax.devices()[0]] * target.count)
    config.method, config.learner.micro_rows = "eto", 1
    with pytest.raises(ValueError, match="makes 1 devices, but there are 4"):
        report_target(config, targets.find_target("v5e-4"))


def test_what_would_make_it_fit_is_estimated_from_exact_sizes(config):
    mesh = make_mesh(devices=jax.devices()[:1])

    def made(changed):
        return make_outline(changed, shape(changed), mesh)

    learner, state = made(config)
    # 1,592 numbers of float32 with two moments and three counters; a reference whose 56 numbers of norms are float32.
    held = count_device_bytes((state, learner.reference))
    gradients = 6 * 1_592  # their sum in float32, and the parameters cast to bfloat16
    update = {"bytes_argument": 30_000, "bytes_peak": 30_000 + gradients + 16_000}
    found = {"programs": {"update": update}}
    assert held == 3 * 4 * 1_592 + 12 + 2 * 1_592 + 2 * 56

    def advised(limit):
        return suggestion(config, found, dataclasses.replace(CHIP, memory=limit), made)

    everything = held + gradients + 16_000
    assert advised(everything - 2 * 2 * 1_592)["settings"] == {"optimizer.moments_dtype": "bfloat16"}
    assert advised(everything - 9_000)["settings"] == {"model.param_dtype": "bfloat16"}
    assert advised(everything - 11_000)["settings"] == {"learner.row_length": 4_096, "engine.max_length": 4_096}
    assert advised(1_000)["settings"] == {}
    found |= {"bytes_engine_weights": 6_000, "bytes_cache": 3_000}
    assert advised(everything)["settings"] == {"model.param_dtype": "bfloat16"}  # as with 9,000 bytes less


def test_rows_are_split_over_devices_before_anything_gets_less_precise(monkeypatch):
    made, _ = learner()
    monkeypatch.setattr(programs, "count_devices", lambda mesh, *axes: {"context": 2, "data": 2}.get(*axes, 1))
    monkeypatch.setattr(type(made.placement), "row_shards", 8)
    # Rows of 200 tokens have 8 equal blocks, and no 16.
    change = {"mesh.fsdp": 4, "mesh.context": 4, "learner.micro_rows": 4, "mesh.data": 1}
    assert list(programs._split_rows_further(made)) == [change]


def test_without_the_results_of_kernels_it_fits(config, monkeypatch):
    """Of as many numbers of bfloat16 as heads have together, for each layer and token."""
    monkeypatch.setitem(attention.KERNELS, "cpu", ())
    mesh = make_mesh(devices=jax.devices()[:1])
    learner, state = make_outline(config, shape(config), mesh)
    model, tokens = learner.config, learner.micro_rows * learner.row_length
    kept = 2 * model.num_hidden_layers * tokens * model.num_attention_heads * model.head_dim
    held, gradients = count_device_bytes((state, learner.reference)), 6 * 1_592
    found = {"programs": {"update": {"bytes_argument": 30_000, "bytes_peak": 30_000 + gradients + kept + 16_000}}}
    chip = dataclasses.replace(CHIP, memory=held + gradients + 16_000)
    said = suggestion(config, found, chip, lambda changed: make_outline(changed, shape(changed), mesh))
    assert said["settings"] == {"learner.remat": "inputs"}
    assert said["bytes_peak_estimated"] == chip.memory


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "error: no experiment: name one, --config=experiments/desk.py"),
        (
            ["--config=experiments/appworld.py", "--config.policy=tiny"],
            "error: environment 'appworld' is not installed in ",
        ),
    ],
)
def test_what_cannot_be_compiled_is_said_without_a_traceback(given, said, commands, tmp_path):
    environment = {**os.environ, "COJAX_CACHE": str(tmp_path)}
    done = commands.run("experiments.compile", "--target=v5e-16", *given, environment=environment)
    assert done.returncode == 1
    assert done.stdout.startswith(said)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("target", "said"),
    [([], "error: no target; name one: --target="), (["--target=v9"], "error: target 'v9' not found;")],
)
def test_a_wrong_target_is_told_before_jax_is_loaded(target, said):
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('experiments.compile', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as ended: sys.exit(3 if 'jax' in sys.modules else ended.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "--config=experiments/desk.py", *target],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(said)


FAILING = """
import jax
from cojax.compile import command, programs

def fails(config, target):
    raise {error}

programs.report_target = fails
command.run_command()
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ('jax.errors.JaxRuntimeError("INTERNAL: Check failed\\nstack trace")', "INTERNAL: Check failed"),
        ("MemoryError()", "MemoryError()"),
    ],
)
def test_a_compiler_that_fails_is_said_in_one_line(error, said, commands, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING.format(error=error))
    done = commands.run("failing", "--target=v5e-16", f"--config={ROOT / 'experiments/desk.py'}", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == f"error: the compiler for v5e-16 failed: {said}\n"


@pytest.mark.parametrize("share", ["most", "inf", "nan", "0", "-1"])
def test_what_is_no_share_of_memory_is_named(share, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", share)
    with pytest.raises(ValueError, match=f"XLA_PYTHON_CLIENT_MEM_FRACTION is '{share}'; expected the share"):
        targets.make_devices(targets.TARGETS["h100x8"])


HIDING = """
import sys
sys.modules["libtpu"] = None
from cojax.compile import command
command.run_command()
"""


def test_a_missing_compiler_is_said_in_one_line(config, commands, tmp_path):
    (tmp_path / "hiding.py").write_text(HIDING)
    flags = ["--target=v5e-16", f"--config={ROOT / 'experiments/bfcl.py'}", f"--config.model.path={config.model.path}"]
    done = commands.run("hiding", *flags, folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(
        "error: target v5e-16 needs libtpu, the compiler for TPUs, which is not installed here"
    )
    assert done.stdout.count("\n") == 1

"""Compilers of accelerators that are not here, as `make compilers` installs them: one CUDA target, and TPU targets."""

import dataclasses
import functools
import json
import math
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from patience import patience

from benchmarks.shapes import SHAPES
from cojax import warm_start
from cojax.compile import program_text
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import choose_dtype, parameters

ROOT = Path(__file__).parents[2]
PYTHON = warm_start.find_cache() / "compilers/bin/python"
# More than the tokens that a GPU scores at a time; one row's logits exceed what an update keeps of them.
LENGTH = 2048
VOCABULARY = 2**17
DENSE = ModelConfig(VOCABULARY, 256, 768, 4, 8, 4, 32, tie_word_embeddings=False, param_dtype="bfloat16")
SPARSE = ModelConfig(
    VOCABULARY, 256, 768, 2, 8, 4, 32, tie_word_embeddings=False, param_dtype="bfloat16", num_experts=8,
    model_type="qwen3_moe", num_experts_per_tok=2, moe_intermediate_size=256, norm_topk_prob=True,
)  # fmt: skip


def compiled(
    folder: Path, model: ModelConfig, target: str, *, length: int = LENGTH, settings: dict | None = None, **mesh: int
) -> dict:
    """The report of a model in rows of that length, one a device; its update's program is in the folder as text."""
    (folder / "config.json").write_text(json.dumps(model.to_hf()))
    settings = {
        "model.path": folder, "learner.row_length": length, "engine.max_length": length,
        "learner.micro_rows": mesh["fsdp"],
        **{f"mesh.{name}": size for name, size in mesh.items()}, **(settings or {}),
    }  # fmt: skip
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    command = [str(PYTHON), "-m", "experiments.compile", f"--target={target}", "--config=experiments/bfcl.py", "--json"]
    texts = f"--xla_dump_to={folder}/programs --xla_dump_hlo_module_re=jit_update --xla_dump_hlo_as_text"
    environment = {**os.environ, "XLA_FLAGS": texts, "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
    done = subprocess.run(
        [*command, *flags], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patience(3_000)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


ATTENTION = ("mha_forward", "flash_attention_sm90")
DENSE_EXPERTS = "ragged dot as dense products over all experts"


def check_facts(found: dict) -> None:
    """What holds on every target: the head is not moved in chunks, no row of logits is made, buffers are reused."""
    assert found["fits"]
    assert 0 < found["bytes_argument"] < found["bytes_peak"] < found["bytes_limit"]
    for program in found["programs"].values():
        assert (program["vocabulary_in_chunks"], program["logits_arrays"]) == (0, 0)
    assert found["programs"]["update"]["reused"] == found["programs"]["update"]["donated"] > 0
    assert found["collectives"]["all-gather"]["bytes"] > 0
    # The compiler for TPUs makes a scattered sum a ring of permutations.
    scattering = "reduce-scatter" if found["target"].startswith("h100") else "collective-permute"
    assert found["collectives"][scattering]["bytes"] > 0


def check_speed(found: dict) -> None:
    """The update computes no attention's forward pass twice, and XLA nothing to save memory."""
    assert found["silent_remat"] == 0
    kernels = found["programs"]["update"]["kernels"]
    assert [count for name, count in kernels.items() if name.startswith(ATTENTION)] == [1]


def cast_matrices(folder: Path, model: ModelConfig, fsdp: int) -> Counter:
    """(a device's part of a matrix, enclosing loops) → how often the update rounds such a part to bfloat16."""
    model, width = dataclasses.replace(model, dtype="bfloat16", param_dtype="float32"), model.hidden_size
    parts = {
        tuple(size // fsdp if size == width else size for size in row.shape(model))
        for row in parameters(model) if choose_dtype(model, row) == "bfloat16"
    }  # fmt: skip
    (path,) = (folder / "programs").glob("*jit_update*gpu_after_optimizations.txt")
    program = program_text.parse_program(path.read_text())
    rounded = (
        (tuple(map(int, re.findall(r"\d+", text.partition("{")[0][len("bf16[") :]))), loops)
        for _, instruction, _, loops in program_text._walk_program(program, ())
        if instruction.opcode == "convert" and (text := instruction.shape_text).startswith("bf16[")
    )
    return Counter(cast for cast in rounded if cast[0] in parts)


@functools.cache
def has_tokamax() -> bool:
    """Whether the compilers have tokamax, whose kernels for Hopper need Python 3.12 or newer."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tokamax') is None)"
    return subprocess.run([PYTHON, "-c", look], cwd=ROOT).returncode == 0


@pytest.mark.real
def test_eight_h100(tmp_path: Path) -> None:
    """Matrices, the embedding among them, are cast once an update, before the loop over micro-batches."""
    found = compiled(tmp_path, DENSE, "h100x8", fsdp=8)
    check_facts(found)
    check_speed(found)
    assert (found["devices"], found["mesh"]) == (8, {"fsdp": 8})
    assert found["kernels"] == ["tokamax flash attention" if has_tokamax() else "Triton flash attention"]
    assert cast_matrices(tmp_path, DENSE, 8) == {
        ((VOCABULARY, 32), 0): 1, ((32, VOCABULARY), 0): 1,  # embedding, head
        ((4, 32, 8, 32), 0): 1, ((4, 32, 4, 32), 0): 2, ((4, 8, 32, 32), 0): 1,  # query, key and value, output
        ((4, 32, 768), 0): 2, ((4, 768, 32), 0): 1,  # gate and up, down
    }  # fmt: skip


@pytest.mark.nightly
def test_experts_over_eight_h100(tmp_path: Path) -> None:
    """Without tokamax XLA multiplies every token by all experts, and the report says so."""
    found = compiled(tmp_path, SPARSE, "h100x8", fsdp=4, expert=2)
    check_facts(found)
    check_speed(found)
    assert (DENSE_EXPERTS in found["kernels"]) == (not has_tokamax())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("shape", "target", "length", "mesh"),
    [("4b", "h100x1", 8_192, {"fsdp": 1}), ("30b-a3b", "h100x16", 16_384, {"fsdp": 8, "expert": 2})],
)
def test_what_fits_h100_with_all_its_weights(
    shape: str, target: str, length: int, mesh: dict[str, int], tmp_path: Path
) -> None:
    """Parameters and moments in bfloat16."""
    model = dataclasses.replace(SHAPES[shape], dtype="bfloat16", param_dtype="bfloat16")
    settings = {"model.param_dtype": "bfloat16", "optimizer.moments_dtype": "bfloat16"}
    if model.sparse and not has_tokamax():
        pytest.skip("tokamax is missing: it needs Python 3.12 or newer")
    found = compiled(tmp_path, model, target, length=length, settings=settings, **mesh)
    assert found["fits"]
    check_speed(found)
    assert DENSE_EXPERTS not in found["kernels"]


def gathered_states(folder: Path, model: ModelConfig, length: int, mesh: dict[str, int]) -> list[tuple[int, ...]]:
    """The shapes of all-gathers of hidden states or logits in the update: tokens of a row or of a part, and a width."""
    (path,) = (folder / "programs").glob("*jit_update*after_optimizations.txt")
    found = program_text.find_collectives(program_text.parse_program(path.read_text()), math.prod(mesh.values()), ())
    widths = {model.hidden_size, model.vocab_size, model.vocab_size // mesh.get("tensor", 1)}
    gathered = [axes for one in found if one.kind == "all-gather" for axes in one.shapes]
    assert any({length, length // mesh["context"]} & set(axes) for axes in gathered)  # keys and values
    return [axes for axes in gathered if {length, length // mesh["context"]} & set(axes) and widths & set(axes)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("shape", "target", "mesh"),
    [
        ("4b", "v5e-16", {"fsdp": 4, "context": 2, "tensor": 2}),
        ("30b-a3b", "v5p-64", {"fsdp": 8, "context": 4}),
        ("30b-a3b", "h100x16", {"fsdp": 4, "context": 4}),
    ],
)
def test_rows_of_32768_tokens_fit_devices_that_split_them(
    shape: str, target: str, mesh: dict[str, int], tmp_path: Path
) -> None:
    """All weights learn, with parameters and moments in float32; states and logits stay where they are."""
    model = dataclasses.replace(SHAPES[shape], dtype="bfloat16", param_dtype="bfloat16")
    if target == "h100x16" and not has_tokamax():
        pytest.skip("tokamax is missing: it needs Python 3.12 or newer")
    found = compiled(tmp_path, model, target, length=32_768, settings={"learner.remat": "inputs"}, **mesh)
    assert found["fits"]
    assert DENSE_EXPERTS not in found["kernels"]
    assert gathered_states(tmp_path, model, 32_768, mesh) == []
    assert all(program["logits_arrays"] == 0 for program in found["programs"].values())


@pytest.mark.nightly
def test_sixteen_tpus(tmp_path: Path) -> None:
    found = compiled(tmp_path, DENSE, "v5e-16", fsdp=8, tensor=2)
    check_facts(found)
    assert found["kernels"] == ["splash attention"]
    assert found["programs"]["update"]["kernels"] == {
        "splash_mha_dkv_segmented_no_residuals": 1,
        "splash_mha_dq_segmented_no_residuals": 1,
        "splash_mha_fwd_segmented_residuals": 1,  # the backward pass computes no attention again
    }


@pytest.mark.nightly
def test_experts_over_thirty_two_tpus(tmp_path: Path) -> None:
    found = compiled(tmp_path, SPARSE, "v5p-64", fsdp=8, expert=4)
    check_facts(found)
    assert found["kernels"] == ["ragged dot", "splash attention"]


@pytest.mark.nightly
def test_what_does_not_fit_is_refused_with_a_setting_that_would(tmp_path: Path) -> None:
    """The compiler for TPUs itself refuses it."""
    model = ModelConfig(32_000, 8192, 28_672, 24, 64, 8, 128, tie_word_embeddings=False, param_dtype="bfloat16")
    (tmp_path / "config.json").write_text(json.dumps(model.to_hf()))
    command = [
        str(PYTHON), "-m", "experiments.compile", "--target=v5e-4", "--config=experiments/bfcl.py", "--json",
        f"--config.model.path={tmp_path}", "--config.mesh.fsdp=4", "--config.learner.micro_rows=4",
        "--config.learner.row_length=512", "--config.engine.max_length=512",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(3_000))
    found = json.loads(done.stdout)
    assert (done.returncode, found["fits"]) == (3, False)
    assert found["programs"]["update"]["refused"]
    assert found["bytes_peak"] > found["bytes_limit"]

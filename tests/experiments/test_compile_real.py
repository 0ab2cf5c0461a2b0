"""Compilers of accelerators that are not here, as `make compilers` installs them: one CUDA target, and TPU targets."""

import json
import subprocess
from pathlib import Path

import pytest
from patience import patience

from cojax import warm_start
from cojax.policy.config import ModelConfig

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


def compiled(folder: Path, model: ModelConfig, target: str, **mesh: int) -> dict:
    """The report of a small model in rows of LENGTH tokens."""
    (folder / "config.json").write_text(json.dumps(model.to_hf()))
    settings = {
        "model.path": folder, "learner.row_length": LENGTH, "engine.max_length": LENGTH,
        "learner.micro_rows": mesh["fsdp"],
        **{f"mesh.{name}": size for name, size in mesh.items()},
    }  # fmt: skip
    flags = [f"--config.{name}={value}" for name, value in settings.items()]
    command = [str(PYTHON), "-m", "experiments.compile", f"--target={target}", "--config=experiments/bfcl.py", "--json"]
    done = subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, text=True, timeout=patience(3_000))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def check_facts(found: dict) -> None:
    """What holds on every target: the head is not moved in chunks, no row of logits is made, buffers are reused."""
    assert found["fits"]
    assert 0 < found["bytes_argument"] < found["bytes_peak"] < found["bytes_limit"]
    for program in found["programs"].values():
        assert (program["vocabulary_in_chunks"], program["logits_arrays"]) == (0, 0)
    assert found["programs"]["update"]["reused"] == found["programs"]["update"]["donated"] > 0
    assert found["collectives"]["all-gather"]["bytes"] > 0
    # The compiler for TPUs may make a scattered sum a ring of permutations.
    assert found["collectives"].keys() & {"reduce-scatter", "collective-permute"}


@pytest.mark.real
def test_eight_h100(tmp_path: Path) -> None:
    found = compiled(tmp_path, DENSE, "h100x8", fsdp=8)
    check_facts(found)
    assert (found["devices"], found["mesh"]) == (8, {"fsdp": 8})
    assert found["kernels"] == ["Triton flash attention"]


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

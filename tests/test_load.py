"""cojax.load: a policy from a folder, its few methods, its memory, and what it says when there is none."""

import json
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cojax
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import write_model
from cojax.policy.transformer import initialize

ROOT = Path(__file__).parents[1]
CONFIG = ModelConfig(61, 32, 40, 2, 4, 2, 16)
TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_model(tmp_path / "model", CONFIG, initialize(CONFIG, 0))
    return tmp_path / "model"


def test_a_policy_scores_and_saves(folder: Path, tmp_path: Path) -> None:
    policy = cojax.load(folder)
    assert policy.config == CONFIG
    jax.tree.map(np.testing.assert_array_equal, policy.params, initialize(CONFIG, 0))
    logits, logprobs = policy.logits(TOKENS), policy.logprobs(jnp.asarray(TOKENS))
    assert (logits.shape, logits.dtype, logprobs.shape, logprobs.dtype) == ((2, 12, 61), "float32", (2, 12), "float32")
    expected = np.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), TOKENS[:, 1:, None], -1)[..., 0]
    np.testing.assert_allclose(logprobs[:, 1:], expected, atol=1e-5)
    assert not logprobs[:, 0].any()
    policy.save(tmp_path / "copy")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()


def test_dtype_is_stored_and_computed_in(folder: Path) -> None:
    policy = cojax.load(str(folder), dtype="bfloat16")
    assert (policy.config.dtype, policy.config.param_dtype) == ("bfloat16", "bfloat16")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(policy.params)} == {"bfloat16"}
    near = policy.logits(TOKENS)
    assert near.dtype == jnp.float32
    np.testing.assert_allclose(near, cojax.load(folder).logits(TOKENS), atol=0.1)
    with pytest.raises(ValueError, match="dtype 'float64' is not supported; available: float32, bfloat16, float16"):
        cojax.load(folder, dtype="float64")


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros(3, np.int32), r"tokens are int32\[3\]; expected int32\[B, T\]"),
        (np.zeros((1, 3)), r"tokens are float64\[1, 3\]"),
        (np.array([[0, 61]]), "tokens span 0–61; the vocabulary has 0–60"),
        (np.array([[-1, 3]]), "tokens span -1–3"),
    ],
)
def test_tokens_that_are_none(folder: Path, tokens: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cojax.load(folder).logits(tokens)


def test_a_hub_id_is_downloaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert cojax.load("Qwen/Qwen3-0.6B").config == CONFIG
    assert asked == [("Qwen/Qwen3-0.6B", ["config.json", "model*.safetensors", "model.safetensors.index.json"])]


def test_a_hub_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, *, allow_patterns: list[str]) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(FileNotFoundError, match=r"'Qwen/None' is not a folder, and the hub did not give it.*no route"):
        cojax.load("Qwen/None")


@pytest.mark.parametrize("name", ["/no/such/folder", "./model", "model"])
def test_a_path_that_is_not_there_is_no_hub_id(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="is not a folder; expected one in HF format, or a hub id"):
        cojax.load(name)


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
        cojax.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read.*expected a JSON object"):
        cojax.load(tmp_path)


def test_the_package_has_no_other_names() -> None:
    assert "load" in dir(cojax)
    with pytest.raises(AttributeError, match="module 'cojax' has no attribute 'laod'"):
        cojax.laod  # noqa: B018


@pytest.mark.parametrize("code", ["import cojax.types", "import cojax", "import cojax; dir(cojax)"])
def test_importing_loads_no_jax(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"{code}; import sys; sys.exit('jax' in sys.modules)"], cwd=ROOT)
    assert done.returncode == 0


@pytest.mark.real
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_loading_takes_little_more_than_the_parameters(kind: str, tmp_path: Path) -> None:
    """Peak memory ≤ parameters + 2 × the largest tensor + 300 MB, at a size where a second copy would break it."""
    program = [sys.executable, str(ROOT / "tests/policy/load_memory.py")]
    width = {"dense": 768, "moe": 512}[kind]
    subprocess.run([*program, "write", kind, str(tmp_path), str(width)], cwd=ROOT, check=True, capture_output=True)
    done = subprocess.run([*program, "load", str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["resident"] > 400
    assert found["peak"] <= found["resident"] + 2 * found["largest"] + 300

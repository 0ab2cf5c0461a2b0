"""Model folders: the round trip is bit-identical, and what does not fit is named before anything is loaded."""

import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from references import initialize
from safetensors.numpy import load_file, save_file

from cojax.policy import pretrained
from cojax.policy.config import DamagedFile, ModelConfig
from cojax.policy.parameters import get_leaf, parameters
from cojax.policy.pretrained import load, read_params, write_model

DENSE = ModelConfig(61, 32, 40, 2, 4, 2, 16)
MOE = ModelConfig(
    61, 32, 40, 2, 4, 2, 16, model_type="qwen3_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
    tie_word_embeddings=False, dtype="bfloat16", param_dtype="bfloat16",
)  # fmt: skip
QWEN2 = ModelConfig(61, 32, 40, 3, 4, 1, model_type="qwen2", dtype="float16", param_dtype="float16")
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("config", [DENSE, MOE, QWEN2], ids=["dense", "moe", "qwen2"])
@pytest.mark.parametrize("largest", [10_000_000, 10_000])
def test_round_trip_is_bit_identical(tmp_path: Path, config: ModelConfig, largest: int) -> None:
    params = initialize(config, 0)
    write_model(tmp_path / "a", config, params, largest)
    assert ModelConfig.from_hf(tmp_path / "a") == config
    back = read_params(tmp_path / "a", config)
    for row in parameters(config):
        before, after = np.asarray(get_leaf(params, row)), np.asarray(get_leaf(back, row))
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert before.tobytes() == after.tobytes(), row.name
    write_model(tmp_path / "b", config, back, largest)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    assert ("model.safetensors.index.json" in names) == (largest == 10_000)
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_dtypes_are_cast_where_the_config_asks(tmp_path: Path) -> None:
    write_model(tmp_path / "m", MOE, initialize(MOE, 0))
    wide = read_params(tmp_path / "m", dataclasses.replace(MOE, param_dtype="float32"))
    assert wide["embed"]["embedding"].dtype == np.float32
    np.testing.assert_array_equal(wide["embed"]["embedding"], initialize(MOE, 0)["embed"]["embedding"])


def test_a_tied_head_in_the_file_is_no_fault(tmp_path: Path) -> None:
    folder = written(tmp_path)
    change(folder, lambda arrays: {**arrays, "lm_head.weight": arrays["model.embed_tokens.weight"].copy()})
    read_params(folder, DENSE)


def written(tmp_path: Path, largest: int = 10_000_000) -> Path:
    write_model(tmp_path / "model", DENSE, initialize(DENSE, 0), largest)
    return tmp_path / "model"


def change(folder: Path, by: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    path = folder / "model.safetensors"
    save_file(by(load_file(path)), path, metadata={"format": "pt"})


def without(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (lambda a: without(a, UP), f"{UP} is missing"),
        (lambda a: {**a, UP: a[UP].T.copy()}, rf"{UP} has shape \(32, 40\), expected \(40, 32\)"),
        (lambda a: {**a, UP: a[UP].astype(np.int32)}, f"{UP} has dtype I32, expected F32 as config.json declares"),
        (lambda a: {**a, UP: a[UP].astype(ml_dtypes.bfloat16)}, f"{UP} has dtype BF16, expected F32"),
        (lambda a: {**a, "extra": a[UP]}, "extra is not part of this model"),
        (lambda a: {**a, "model.layers.2.mlp.up_proj.weight": a[UP]}, r"layers\.2.* is not part of this model"),
    ],
    ids=["missing", "shape", "integers", "bfloat16", "unexpected", "a layer too many"],
)
def test_what_does_not_fit_is_named_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: Callable, message: str
) -> None:
    folder = written(tmp_path)
    change(folder, by)
    monkeypatch.setattr(pretrained, "_read_leaf", lambda *_: pytest.fail("a tensor was loaded"))
    with pytest.raises(ValueError, match=message):
        read_params(folder, DENSE)


def test_integers_are_refused_where_no_dtype_is_declared(tmp_path: Path) -> None:
    folder = written(tmp_path)
    change(folder, lambda arrays: {**arrays, UP: arrays[UP].astype(np.int8)})
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=f"{UP} has dtype I8, expected one of F32, BF16, F16"):
        read_params(folder, DENSE)


@pytest.mark.parametrize("bytes_left", [0, 5, 300, -1])
def test_a_truncated_file(tmp_path: Path, bytes_left: int) -> None:
    path = written(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:bytes_left])
    cut = r"layers\.1\.self_attn\.k_norm\.weight in .* ends at byte \d+, but the file has \d+: it is truncated"
    match = cut if bytes_left == -1 else "cannot be read"
    with pytest.raises(DamagedFile, match=match):
        read_params(path.parent, DENSE)


def index(folder: Path, by: Callable[[dict], dict]) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(by(json.loads(path.read_text()))))


def test_an_index_that_lies(tmp_path: Path) -> None:
    folder = written(tmp_path, largest=20_000)
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    here, other = places[UP], next(name for name in places.values() if name != places[UP])

    def lie(by: Callable[[dict[str, str]], dict[str, str]], message: str) -> None:
        copy = tmp_path / "lie"
        shutil.copytree(folder, copy)
        index(copy, lambda old: {**old, "weight_map": by(old["weight_map"])})
        with pytest.raises(ValueError, match=message):
            read_params(copy, DENSE)
        shutil.rmtree(copy)

    lie(lambda m: {**m, UP: other}, f"{UP} is in {here}, expected in {other}, where model.safetensors.index.json")
    lie(lambda m: {**m, "ghost": here}, f"ghost is in no file, expected in {here}")
    lie(lambda m: {k: v for k, v in m.items() if k != UP}, f"{UP} is in {here}, but .* does not list it")
    lie(lambda m: {**m, UP: "model-9.safetensors"}, r"names model-9\.safetensors, which is not in the folder")
    lie(lambda m: {**m, UP: "../model.safetensors"}, "expected files of its own folder")
    (folder / here).unlink()
    with pytest.raises(DamagedFile, match=f"names {here}, which is not in the folder"):
        read_params(folder, DENSE)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(DamagedFile, match="expected a weight_map"):
        read_params(folder, DENSE)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors in .*expected a model folder in HF format"):
        read_params(tmp_path, DENSE)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path, largest=20_000 if "index" in name else 10_000_000)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    # A reader that waits for a writer finds one, and then the end.
    writer = threading.Thread(target=lambda: open(folder / name, "wb").close(), daemon=True)
    writer.start()
    with pytest.raises(OSError, match=f"{name} is not a regular file"):
        load(folder)
    reader = os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK)
    writer.join()
    os.close(reader)


def test_weights_of_a_former_model_go(tmp_path: Path) -> None:
    """Several files, then one, then several again in the same folder: a reader sees the last alone."""
    folder = written(tmp_path, largest=20_000)
    (folder / "tokenizer.json").write_text("{}")
    for seed, largest in ((1, 10_000_000), (2, 40_000)):
        write_model(folder, DENSE, initialize(DENSE, seed), largest)
        found = read_params(folder, DENSE)
        np.testing.assert_array_equal(found["embed"]["embedding"], initialize(DENSE, seed)["embed"]["embedding"])
    assert (folder / "tokenizer.json").exists()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_a_write_that_fails_leaves_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    for target in (folder, tmp_path / "new"):
        with pytest.raises(OSError, match=r"cannot write .* No space left on device\. Free"):
            write_model(target, DENSE, initialize(DENSE, 1), 20_000)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_parameters_of_another_config_are_refused(tmp_path: Path) -> None:
    wide = dataclasses.replace(DENSE, param_dtype="bfloat16")
    with pytest.raises(ValueError, match=r"embed/embedding is float32\[61, 32\], expected bfloat16\[61, 32\]"):
        write_model(tmp_path / "m", wide, initialize(DENSE, 0))
    assert not (tmp_path / "m").exists()

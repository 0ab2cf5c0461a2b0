"""Weights for a server: streamed to a model folder, there whole or not at all."""

import dataclasses
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from compiling import drawn
from safetensors.numpy import load_file

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.rollout.export import check_weights, load_params, prune_weights, write_weights

CONFIG = ModelConfig(96, 32, 40, 2, 4, 2, 16)
PARAMS = drawn(CONFIG, 0)


def arrays(seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    return to_hf(CONFIG, drawn(CONFIG, seed))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("largest", [5_000_000_000, 20_000])
def test_what_is_written_is_read_back(tmp_path: Path, largest: int) -> None:
    write_weights(tmp_path / "weights" / "7", CONFIG, arrays(), max_file_bytes=largest)
    check_weights(tmp_path / "weights" / "7")
    assert names(tmp_path / "weights") == ["7"]
    assert ModelConfig.from_hf(tmp_path / "weights" / "7") == CONFIG
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "weights" / "7", CONFIG), PARAMS)
    assert (len(names(tmp_path / "weights" / "7")) > 3) == (largest == 20_000)


def test_another_dtype_is_that_of_tensors_and_config(tmp_path: Path) -> None:
    write_weights(tmp_path / "7", CONFIG, arrays(), "bfloat16")
    assert json.loads((tmp_path / "7" / "config.json").read_text())["dtype"] == "bfloat16"
    found = load_file(tmp_path / "7" / "model.safetensors")
    for name, array in arrays():
        np.testing.assert_array_equal(found[name], array.astype(ml_dtypes.bfloat16))


def test_a_version_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write_weights(tmp_path / "7", CONFIG, arrays(0), max_file_bytes=20_000)
    write_weights(tmp_path / "7", CONFIG, arrays(1))
    assert names(tmp_path / "7") == ["config.json", "model.safetensors"]
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "7", CONFIG), drawn(CONFIG, 1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_not_written(tmp_path: Path, value: float, dtype: str) -> None:
    def diverged() -> Iterator[tuple[str, np.ndarray]]:
        for name, array in arrays():
            if name == "model.norm.weight":
                array[3] = value
            yield name, array

    write_weights(tmp_path / "7", CONFIG, arrays())
    with pytest.raises(ValueError, match=r"model\.norm\.weight is not finite"):
        write_weights(tmp_path / "7", CONFIG, diverged(), dtype)
    assert names(tmp_path) == ["7"]
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "7", CONFIG), PARAMS)


def test_the_largest_finite_number_passes(tmp_path: Path) -> None:
    def large() -> Iterator[tuple[str, np.ndarray]]:
        for name, array in arrays():
            yield name, np.full_like(array, np.finfo(np.float32).max)

    write_weights(tmp_path / "7", CONFIG, large())


def test_a_full_disk_leaves_the_version_before_and_no_rest(tmp_path: Path) -> None:
    write_weights(tmp_path / "7", CONFIG, arrays(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        for version in ("7", "8"):
            with pytest.raises(OSError, match=rf"cannot write .*/{version}: .*then run the same command again"):
                write_weights(tmp_path / version, CONFIG, arrays(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["7"]
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "7", CONFIG), PARAMS)


def test_what_a_killed_writer_left_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".6.123.new.tmp").mkdir()
    (tmp_path / ".6.123.new.tmp" / "model.safetensors").write_bytes(b"x")
    write_weights(tmp_path / "7", CONFIG, arrays())
    assert names(tmp_path) == ["7"]


def test_arrays_of_another_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_weights(tmp_path / "7", dataclasses.replace(CONFIG, hidden_size=48), arrays())
    assert names(tmp_path) == []


def test_a_folder_a_server_could_not_load_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        check_weights(tmp_path / "7")
    write_weights(tmp_path / "7", CONFIG, arrays(), max_file_bytes=20_000)
    part = sorted((tmp_path / "7").glob("model-00002-of-*.safetensors"))[0]
    whole = part.read_bytes()
    part.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match="truncated"):
        check_weights(tmp_path / "7")
    part.unlink()
    with pytest.raises(FileNotFoundError, match=part.name):
        check_weights(tmp_path / "7")


def test_pruning_keeps_what_it_is_told_and_what_is_no_version(tmp_path: Path) -> None:
    for name in ("3", "4", "5", "notes"):
        (tmp_path / name).mkdir()
    prune_weights(tmp_path, [tmp_path / "5", tmp_path / "4"])
    assert names(tmp_path) == ["4", "5", "notes"]
    prune_weights(tmp_path / "nowhere", [])

"""Versions that processes save together: restored to the bits that a trainer writes itself, whole or not at all."""

from __future__ import annotations

import functools
import resource
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from compiling import drawn
from small_runs import tree

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.policy.saved_params import save_params
from cojax.rollout.export import (
    check_item,
    is_item,
    load_params,
    other_model,
    read_label,
    restore_item,
    write_item,
    write_weights,
)
from cojax.rollout.sglang.engine import find_newest_version

CONFIGS = {
    "dense": ModelConfig(96, 32, 40, 2, 4, 2, 16, tie_word_embeddings=False),
    "sparse": ModelConfig(
        96,
        32,
        40,
        2,
        4,
        2,
        16,
        model_type="qwen3_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        norm_topk_prob=True,
    ),
}
DENSE = CONFIGS["dense"]
save = functools.partial(save_params, drawn(DENSE, 0))


def write(folder: Path, label: str = "x") -> Path:
    write_item(folder, DENSE, save, "", label)
    return folder


@pytest.mark.parametrize("dtype", ["", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_restored_to_the_files_that_a_trainer_writes(tmp_path, name, dtype):
    config, params = CONFIGS[name], drawn(CONFIGS[name], 0)
    write_weights(tmp_path / "folder", config, to_hf(config, params), dtype, label="run-1")
    write_item(tmp_path / "item", config, functools.partial(save_params, params), dtype, "run-1")
    restore_item(tmp_path / "item", tmp_path / "restored", "run-1")
    assert tree(tmp_path / "restored") == tree(tmp_path / "folder")
    assert (is_item(tmp_path / "item"), is_item(tmp_path / "restored")) == (True, False)
    assert read_label(tmp_path / "item") == "run-1"
    assert other_model(tmp_path / "item", config) == ""


def test_a_version_is_found_only_once_it_is_whole(tmp_path):
    write(tmp_path / "weights/1", "first")

    def fails(folder: str, dtype: str) -> None:
        save(folder, dtype)
        assert find_newest_version(tmp_path).label == "first", "what is being written is found"
        raise ValueError("interrupted")

    with pytest.raises(ValueError, match="interrupted"):
        write_item(tmp_path / "weights/2", DENSE, fails, "", "second")
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["1"]
    write(tmp_path / "weights/2", "second")
    assert find_newest_version(tmp_path).label == "second"


def test_a_disk_that_refuses_is_named_with_the_fix(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match=rf"cannot write {tmp_path}/weights/1: .*The file size limit is reached"):
            write(tmp_path / "weights/1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((tmp_path / "weights").iterdir()) == []


def test_missing_and_cut_files_are_named(tmp_path):
    item = write(tmp_path / "1")
    check_item(item)
    path = max(item.rglob("d/*"), key=lambda path: path.stat().st_size)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(
        ValueError, match=rf"{path} has 100 bytes, expected {size}; let the trainer write another version"
    ):
        check_item(item)
    path.unlink()
    with pytest.raises(ValueError, match=rf"{path} has no bytes, expected {size}"):
        check_item(item)


def test_arrays_that_are_not_those_of_its_config_are_refused(tmp_path):
    item, other = write(tmp_path / "1"), tmp_path / "2"
    write_item(other, CONFIGS["sparse"], functools.partial(save_params, drawn(CONFIGS["sparse"], 0)), "", "x")
    assert "tie_word_embeddings True, expected False" in other_model(other, DENSE)
    shutil.rmtree(item / "params")
    shutil.copytree(other / "params", item / "params")
    with pytest.raises(ValueError, match=r"head/kernel in .*params is missing, expected"):
        restore_item(item, tmp_path / "restored", "")
    assert not (tmp_path / "restored").exists()


def test_what_is_restored_is_loaded_as_the_same_parameters(tmp_path):
    restore_item(write(tmp_path / "1"), tmp_path / "restored", "")
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path / "restored", DENSE), drawn(DENSE, 0))

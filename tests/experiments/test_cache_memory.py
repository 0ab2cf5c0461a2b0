"""The KV cache of the documented commands against free memory: what is chosen, what is refused, and which flags fit."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.evaluation import evaluate
from cojax.policy.cached import make_cache
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import MESH_AXES
from cojax.run import assemble, engines, processes, states
from cojax.settings.ranges import check_ranges
from cojax.settings.tree import FREE_SETTINGS
from cojax.storage.checksums import add_checksum
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import write_json
from experiments import appworld, bfcl, desk

GIB = 2**30
# Qwen3-4B: 4,022,468,096 parameters, 7.5 GiB in bfloat16.
QWEN = ModelConfig(151_936, 2_560, 9_728, 36, 32, 8, 128, dtype="bfloat16", param_dtype="bfloat16")
TINY = ModelConfig(101, 64, 128, 2, 4, 2, 16)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch):
    """Sets the memory that is free, in GiB."""

    def set_free(gib: float | None) -> None:
        monkeypatch.setattr(engines, "measure_free_bytes", lambda devices: None if gib is None else int(gib * GIB))

    return set_free


def given(experiment, **engine: int) -> ConfigDict:
    config = experiment.get_config()
    config.engine.update({"name": "local", **engine})
    check_ranges(config)
    return config


def test_bytes_are_those_of_the_cache() -> None:
    arrays = [array for layer in make_cache(TINY, 3, 40) for array in layer]
    assert engines.count_cache_bytes(TINY, 3, 40) == sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(("experiment", "gib"), [(bfcl, 288), (appworld, 576)])
def test_what_the_documented_commands_once_allocated_is_refused_in_one_line(experiment, gib, free) -> None:
    free(60)
    config = given(experiment, slots=128)
    with pytest.raises(ValueError, match=rf"engine.slots=128 .* takes {gib}.0 GiB, 45.0 GiB are free beside") as caught:
        engines.build_local(config, QWEN)
    assert "\n" not in str(caught.value)
    fits = re.search(r"set --config.engine.slots=(\d+), or sample on servers by --config.engine=sgl", str(caught.value))
    config.engine.slots = int(fits[1])
    assert engines.choose_slot_count(config, QWEN) == int(fits[1])


def test_slots_follow_free_memory(free, capsys) -> None:
    config = given(bfcl)
    # 15 GiB of weights and 22.5 for training; of the rest half, in slots of 2.25.
    for gib, expected in ((600, 64), (80, 8), (43, 1)):
        free(gib)
        assert engines.choose_slot_count(config, QWEN) == expected
    said = capsys.readouterr().out
    assert "engine: 64 slots of 16384 tokens, a KV cache of 144.00 GiB; 600.0 GiB are free" in said
    config.method = "coevolving"  # 22.5 more for the second agent
    free(80)
    assert engines.choose_slot_count(config, QWEN) == 4
    config.method = "coevolve"
    config.learner.lora.rank = 16  # the matrices are frozen: nothing is added to them
    free(43)
    assert engines.choose_slot_count(config, QWEN) == 4


def test_shorter_conversations_are_named_where_no_slot_fits(free) -> None:
    free(38.5)
    with pytest.raises(ValueError, match=r"set --config.engine.slots=1 --config.engine.lanes=1 --config.engine.max_l"):
        engines.choose_slot_count(given(bfcl), QWEN)
    free(9)
    refused = r"0.0 GiB are free beside the weights and 22.5 GiB for training; choose a smaller model, or sample on"
    with pytest.raises(ValueError, match=refused):
        engines.choose_slot_count(given(bfcl), QWEN)


def test_what_does_not_train_keeps_nothing_free_for_training(free) -> None:
    free(38.5)
    assert engines.choose_slot_count(given(bfcl), QWEN, trains=False) == 4


def test_on_a_mesh_every_replica_holds_a_copy_and_equally_many_slots(free, monkeypatch) -> None:
    """Bytes are those of all devices together: 7.5 GiB of weights, 22.5 for training, 2.25 for a slot."""
    devices = np.arange(8)
    monkeypatch.setattr(
        processes, "make_mesh", lambda **sizes: Mesh(devices.reshape([sizes[a] for a in MESH_AXES]), MESH_AXES)
    )
    config = given(bfcl)

    def chosen(gib: float, **sizes: int) -> int:
        config.mesh.update({axis: sizes.get(axis, 1) for axis in MESH_AXES})
        free(gib)
        return engines.choose_slot_count(config, QWEN)

    # 67.5 of weights and 22.5 for training; of the rest half, by eights.
    assert chosen(90 + 2 * 8 * 2.3, fsdp=8) == 8
    assert chosen(90 + 2 * 16 * 2.3, fsdp=8) == 16
    # The learner's copies as well: 120 of weights, 180 for training.
    assert chosen(300 + 2 * 8 * 2.3, data=8) == 8
    # 15 of weights: only norms are on every device.
    assert chosen(37.6 + 2 * 4 * 2.3, tensor=8) == 4
    # No expert to split: every device holds all, also of a slot.
    assert chosen(300 + 2 * 8 * 2.3, expert=8) == 1
    with pytest.raises(ValueError, match=r"set --config.engine.slots=8 --config.engine.lanes=1 --config.engine.max_l"):
        chosen(90 + 8 * 2, fsdp=8)
    with pytest.raises(ValueError, match=r"give mesh.tensor devices of mesh.data or mesh.fsdp, choose a smaller model"):
        chosen(90, fsdp=8)


def test_no_more_slots_than_episodes_need_and_as_many_in_each_lane(free) -> None:
    free(40)
    config = given(desk)
    assert engines.choose_slot_count(config, TINY) == config.engine.slots == 128  # what is set stays
    config = given(desk, lanes=3)
    config.engine.slots = None
    assert engines.choose_slot_count(config, TINY) == 96
    config.limits.concurrency = 5
    assert engines.choose_slot_count(config, TINY) == 6
    free(None)  # the system does not say
    assert engines.choose_slot_count(config, TINY) == 6


def test_a_run_keeps_the_number_that_it_began_with(free, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        assemble, "build_parts", lambda config, together: SimpleNamespace(engine=engines.build_local(config, TINY))
    )
    config = given(bfcl, max_length=64)

    def begun(found: object = True) -> int:
        engine = states.build_parts(config, SimpleNamespace(folder=tmp_path), found).engine
        engine.close()
        return engine.slots

    free(0.004)
    first = begun(None)
    assert first < 128
    free(600)
    assert begun() == first
    assert config.engine.slots is None
    path = tmp_path / "engine.json"
    path.write_text(path.read_text().replace(f'"slots": {first}', '"slots": 128'))
    with pytest.raises(ValueError, match=r"engine.json cannot be read .* Delete it: slots are then chosen again"):
        begun()
    # A run without a checkpoint begins anew.
    assert begun(None) == 128


def test_a_run_whose_slots_no_longer_fit_names_a_flag_that_may_change(free, monkeypatch, tmp_path: Path) -> None:
    """engine.name, engine.lanes and engine.max_length may not, and are not named."""
    monkeypatch.setattr(
        assemble, "build_parts", lambda config, together: SimpleNamespace(engine=engines.build_local(config, TINY))
    )
    config, directory = given(bfcl, max_length=64), SimpleNamespace(folder=tmp_path)
    write_json(tmp_path / "engine.json", add_checksum({"slots": 128}))
    free(0.004)
    with pytest.raises(ValueError, match=r"engine.slots=128 .* are free beside the weights; add --config") as caught:
        states.build_parts(config, directory, True)
    flag = re.search(r"add --config\.(engine\.slots)=(\d+) to go on, which changes the bits", str(caught.value))
    assert "engine=sglang" not in str(caught.value)
    assert flag[1] in FREE_SETTINGS
    config.engine.slots = int(flag[2])
    engine = states.build_parts(config, directory, True).engine
    engine.close()
    assert engine.slots == int(flag[2])
    free(0.0001)
    with pytest.raises(ValueError, match=r"it can only be continued on a machine with more free memory$"):
        states.build_parts(config, directory, True)
    config.engine.slots = None
    with pytest.raises(ValueError, match=r"choose a smaller model, or sample on servers"):
        states.build_parts(config, directory, None)


def test_an_evaluation_keeps_the_number_that_it_began_with(free, tmp_path: Path) -> None:
    config, path = given(bfcl, max_length=64), tmp_path / "engine.json"
    free(0.004)
    first = evaluate.choose_slots(config, TINY, path)
    assert first < 128
    free(600)
    assert evaluate.choose_slots(config, TINY, path) == first
    free(0.00115)
    with pytest.raises(ValueError, match=rf"engine.slots={first} .*; add --config.engine.slots=\d+ to go on, which"):
        evaluate.choose_slots(config, TINY, path)
    config.engine.slots = 1  # what is set is neither kept nor replaced
    assert evaluate.choose_slots(config, TINY, path) == 1
    config.engine.slots = None
    with EvaluationDirectory(tmp_path) as directory:
        directory.claim({}, {})  # without an episode it begins anew
    free(600)
    assert evaluate.choose_slots(config, TINY, path) == 128

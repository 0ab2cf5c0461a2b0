"""Where a rollout host finds weights: saved versions restored here, checkpoints of a run, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import Commands
from compiling import drawn
from fake_sglang import CONFIG, PARAMS, until, weights
from patience import patience
from small_runs import tree
from test_serve import TRAINER, config, host, label, launched
from trained_runs import config as run_settings
from trained_runs import damage, make_run

from cojax.policy.config import ModelConfig
from cojax.policy.saved_params import save_params
from cojax.rollout.engine import Weights
from cojax.rollout.export import read_label, write_weights
from cojax.rollout.sglang.engine import SGLangEngine, WeightsFolder
from cojax.rollout.sglang.server import LabelledWeights
from cojax.serving import serve as sources
from cojax.serving.serve import Checkpoints, LocalFolders, Versions, Watch
from cojax.settings.tree import SGLangSettings
from cojax.storage.checkpoint import CheckpointError

__all__ = ["config", "host", "launched"]  # fixtures
OTHER = ModelConfig(112, 32, 64, 1, 2, 1, 16, max_position_embeddings=512)


def saved(version: int) -> Weights:
    """The same weights as of `weights`, from a trainer whose processes can save them together."""
    return Weights(version, weights(version).arrays, save=functools.partial(save_params, PARAMS))


@pytest.fixture
def local(tmp_path: Path):
    folders = LocalFolders(str(tmp_path / "local"))
    yield folders
    folders.close()


class Counting(Versions):
    """Counts how often it was asked."""

    looks = 0

    def load_newest(self) -> LabelledWeights | None:
        self.looks += 1
        return super().load_newest()

    def wait_for_further_looks(self) -> None:
        seen = self.looks
        until(lambda: self.looks > seen + 2)


def save(folder: Path, version: int, label: str, config: ModelConfig = CONFIG) -> None:
    store = WeightsFolder(folder)
    saved = Weights(version, weights(version).arrays, save=functools.partial(save_params, drawn(config, 0)))
    store.write(saved, config, "", label, is_joint=True)
    store.close()


def test_servers_get_the_same_files_whichever_way_weights_reach_them(config, host, tmp_path: Path) -> None:
    config.sglang.follow, config.sglang.local = True, str(tmp_path / "local")
    host(config)
    urls = [f"http://127.0.0.1:{config.sglang.port + index}" for index in range(2)]
    served_files = {}
    for sync in ("orbax", "folder"):
        engine = SGLangEngine(
            CONFIG,
            folder=Path(config.workdir),
            max_length=64,
            urls=urls,
            settings=dataclasses.replace(TRAINER, follow=True, sync=sync),
        )
        try:
            for version in range(2):
                engine.load(saved(version))
                current = engine.fleet.target.label
                assert [label(config.sglang.port), label(config.sglang.port + 1)] == [current] * 2
            items = [(path / "params").is_dir() for path in (Path(config.workdir) / "weights").iterdir()]
            assert items == [sync == "orbax"] * 2
            restored = next((tmp_path / "local").iterdir())
            files = tree(newest_in(restored if sync == "orbax" else Path(config.workdir) / "weights"))
            assert files.pop("served.json") == f'{{\n "label": "{current}"\n}}\n'.encode()
            served_files[sync] = files
        finally:
            engine.close()
    assert served_files["orbax"] == served_files["folder"]
    assert set(served_files["orbax"]) == {"config.json", "model.safetensors"}


def newest_in(folder: Path) -> Path:
    return max((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))


def test_what_can_only_be_written_by_one_process_is_still_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"set sglang\.follow=True here and there, or sglang\.sync=folder"):
        SGLangEngine(
            CONFIG, folder=tmp_path, max_length=64, urls=["http://127.0.0.1:1"], settings=SGLangSettings(sync="orbax")
        )


def test_a_version_is_restored_once_and_older_ones_are_removed(tmp_path: Path, local) -> None:
    versions = Versions(tmp_path, local)
    assert versions.load_newest() is None
    save(tmp_path, 1, "one")
    first = versions.load_newest()
    assert (first.label, read_label(first.folder)) == ("one", "one")
    assert versions.load_newest() == first
    save(tmp_path, 2, "two")
    second = versions.load_newest()
    save(tmp_path, 1, "one again")  # a run that was resumed from an older step
    third = versions.load_newest()
    assert [(made.label, int(made.folder.name)) for made in (first, second, third)] == [
        ("one", 1), ("two", 2), ("one again", 3),
    ]  # fmt: skip
    local.prune([second.folder])
    assert sorted(path.name for path in second.folder.parent.iterdir() if path.name.isdigit()) == ["2", "3"]
    local.close()
    assert list((tmp_path / "local").iterdir()) == []


def test_a_version_of_another_model_is_refused_by_name_and_the_one_before_stays(tmp_path: Path, local, caplog) -> None:
    save(tmp_path, 1, "one")
    versions, changed = Counting(tmp_path, local, CONFIG), threading.Event()
    watch = Watch(versions, 0.01, 10.0, changed.set)
    assert changed.wait(patience(20))
    save(tmp_path, 2, "other", OTHER)
    until(lambda: "weights/2 is of another model: intermediate_size 64, expected 48" in caplog.text)
    assert watch.newest.label == "one"
    versions.wait_for_further_looks()
    assert caplog.text.count("of another model") == 1
    store = WeightsFolder(tmp_path)
    store.write(Weights(3, functools.partial(iter, list(weights(0).arrays()))), CONFIG, "", "three")
    store.close()
    until(lambda: watch.newest.label == "three")
    watch.stop()


def test_a_half_written_version_is_not_served(tmp_path: Path, local) -> None:
    save(tmp_path, 1, "one")
    shutil.copytree(tmp_path / "weights/1", tmp_path / "weights/.2.77.new.tmp")
    shutil.copytree(tmp_path / "weights/1", tmp_path / "weights/2")
    largest = max((tmp_path / "weights/2").rglob("d/*"), key=lambda path: path.stat().st_size)
    with open(largest, "r+b") as file:
        file.truncate(50)
    os.utime(tmp_path / "weights/2")
    with pytest.raises(ValueError, match=r"has 50 bytes, expected \d+; let the trainer write another version"):
        Versions(tmp_path, local).load_newest()


def junk(path: Path) -> None:
    """Damages a file and keeps its size."""
    path.write_bytes(bytes(byte ^ 0x5A for byte in path.read_bytes()))


# Of what Orbax leaves running when it cannot read.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("params/manifest.ocdbt", junk, "the arrays in .*/weights/2/params cannot be read"),
        ("params/_METADATA", junk, "the arrays in .*/weights/2/params cannot be read"),
        ("files.json", lambda path: path.write_text("[]"), "it holds list instead of an object"),
        ("files.json", Path.unlink, "weights/2 is not whole: no model.safetensors"),
        (
            "config.json",
            lambda path: path.write_text("null"),
            "weights/2/config.json holds NoneType, expected an object",
        ),
        ("config.json", Path.unlink, "No such file or directory: .*weights/2/config.json"),
        ("served.json", lambda path: path.write_text('{"la'), "weights/2/served.json holds no label"),
    ],
)
def test_a_damaged_version_is_told_of_once_and_the_next_one_is_served(
    tmp_path, local, caplog, monkeypatch, name, damage, said
) -> None:
    monkeypatch.setattr("cojax.rollout.sglang.engine._SETTLE_S", 0.1)
    save(tmp_path, 1, "one")
    versions, changed = Counting(tmp_path, local, CONFIG), threading.Event()
    watch = Watch(versions, 0.01, 10.0, changed.set)
    assert changed.wait(patience(20))
    shutil.copytree(tmp_path / "weights/1", tmp_path / "made/2")
    damage(tmp_path / "made/2" / name)
    os.utime(tmp_path / "made/2")
    (tmp_path / "made/2").rename(tmp_path / "weights/2")
    until(lambda: re.search(said, caplog.text))
    versions.wait_for_further_looks()
    assert caplog.text.count("the newest version cannot be served, the previous one stays in use") == 1
    assert watch.newest.label == "one"
    save(tmp_path, 3, "three")
    until(lambda: watch.newest.label == "three")
    watch.stop()


def test_whatever_a_source_raises_the_next_look_comes(caplog) -> None:
    looks: list[int] = []

    class Odd:
        expected = None

        def load_newest(self) -> None:
            looks.append(1)
            raise KeyError("odd")

    watch = Watch(Odd(), 0.01, 10.0, lambda: None)
    until(lambda: len(looks) > 3)
    watch.stop()
    assert str(watch.fault) == "KeyError: 'odd'"
    assert caplog.text.count("KeyError: 'odd'") == 1


def test_a_look_that_hangs_is_told_of(caplog) -> None:
    over = threading.Event()

    class Hanging:
        expected = None

        def load_newest(self) -> None:
            over.wait(patience(20))

    watch = Watch(Hanging(), 0.05, 0.1, lambda: None)
    time.sleep(0.2)
    with pytest.raises(TimeoutError, match=r"takes longer than sglang\.sync_deadline=0\.1 s"):
        watch.raise_if_late()
    watch.tell_if_late()
    watch.tell_if_late()
    assert caplog.text.count("the previous one stays in use") == 1
    over.set()
    watch.stop()


@pytest.mark.parametrize("rank", [0, 2])
def test_checkpoints_are_served_as_the_trainer_would_write_them(tmp_path: Path, local, rank: int) -> None:
    learner, states = make_run(tmp_path / "run", run_settings(learner__lora__rank=rank))
    found = Checkpoints(tmp_path / "run", local).load_newest()
    write_weights(tmp_path / "trainer", learner.config, learner.weights(states[-1], 2).arrays(), label=found.label)
    assert tree(found.folder) == tree(tmp_path / "trainer")
    assert found.label.startswith("step-2-")


def test_the_newest_sound_checkpoint_is_served_again_only_where_it_changed(tmp_path: Path, local) -> None:
    run = tmp_path / "run"
    make_run(run, run_settings(), (1, 2))
    checkpoints = Checkpoints(run, local, "bfloat16")
    first = checkpoints.load_newest()
    assert checkpoints.load_newest() == first
    assert ModelConfig.from_hf(first.folder).param_dtype == "bfloat16"
    make_run(run, run_settings(), (3, 4))
    assert checkpoints.load_newest().label.startswith("step-4-")
    damage(run / "checkpoints/4")
    os.utime(run / "checkpoints/4")
    assert checkpoints.load_newest().label.startswith("step-3-")


def test_what_is_no_run_is_named(tmp_path: Path, local) -> None:
    with pytest.raises(CheckpointError, match="is not a run directory"):
        Checkpoints(tmp_path, local).load_newest()
    make_run(tmp_path / "run", run_settings(), ())
    assert Checkpoints(tmp_path / "run", local).load_newest() is None
    make_run(tmp_path / "run", run_settings())
    with pytest.raises(ValueError, match=r"is a run of another model: .*correct --config\.model\.path"):
        Checkpoints(tmp_path / "run", local, model=OTHER).load_newest()


def test_a_host_serves_a_run_that_nobody_trains(config, launched, tmp_path: Path) -> None:
    from cojax.serving import serve

    config.model.path, stop = "", threading.Event()
    config.model.shape.num_hidden_layers = 1
    make_run(tmp_path / "other", run_settings(), (1,))
    serving = threading.Thread(target=serve.serve, args=(config, "127.0.0.1", stop, str(tmp_path / "other")))
    serving.start()
    try:
        until(lambda: label(config.sglang.port).startswith("step-1-"))
        make_run(tmp_path / "other", run_settings(), (2,))
        until(lambda: label(config.sglang.port).startswith("step-2-"))
        until(lambda: label(config.sglang.port + 1).startswith("step-2-"))
    finally:
        stop.set()
        serving.join(patience(20))
    assert not serving.is_alive()
    [folder] = {Path(start[2]).parent for start in launched.started()}
    assert not folder.exists(), "what was restored is left behind"


KILLED = """
import os, signal, sys
from cojax.serving.serve import LocalFolders
print(LocalFolders(sys.argv[1]).make(1, lambda folder: folder.mkdir()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_has_is_not(
    tmp_path: Path, local, commands: Commands
) -> None:
    mine = local.make(1, Path.mkdir)
    (tmp_path / "killed.py").write_text(KILLED)
    theirs = Path(commands.run("killed", str(tmp_path / "local"), folder=tmp_path).stdout.strip())
    assert theirs.is_dir()
    other = LocalFolders(str(tmp_path / "local"))
    other.make(1, Path.mkdir)
    assert (theirs.exists(), mine.exists()) == (False, True)
    other.close()


def test_folders_are_in_memory_where_they_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sources.tempfile, "gettempdir", lambda: str(tmp_path))
    folders = LocalFolders()
    try:
        small, large = (folders.make(size, Path.mkdir) for size in (1, 2**50))
        assert small.is_relative_to("/dev/shm")
        assert large.is_relative_to(tmp_path)
    finally:
        folders.close()
    assert not small.exists()
    assert not large.exists()


def test_arrays_are_those_of_the_trainer(tmp_path: Path, local) -> None:
    from cojax.rollout.export import load_params

    save(tmp_path, 1, "one")
    found = Versions(tmp_path, local).load_newest()
    jax.tree.map(np.testing.assert_array_equal, load_params(found.folder, CONFIG), PARAMS)

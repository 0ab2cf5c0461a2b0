"""A warm start on pretrained weights: what learns, what is cached and recorded, and what a run that goes on needs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from compiling import initialize
from ml_collections import ConfigDict
from patience import patience
from test_fitting import run
from trained_runs import config

import environments
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import write_model
from cojax.policy.transformer import Params
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.export import load_params, save_model
from cojax.run import assemble, initial_policy, policies, states, trained
from cojax.run.entries import objective_of
from cojax.run.initial_policy import find_demonstrations, hash_weights
from cojax.run.initial_policy import initial_policy as begin
from cojax.run.processes import ALONE
from cojax.storage.checkpoint import CheckpointError
from cojax.storage.run_files import RunFiles

ROOT = Path(__file__).parents[2]
DESK = environments.load("desk")
FEW = {
    "steps": 2, "batch_size": 2, "demonstrations": 4, "epochs": True, "lengthen": 0, "check_every": 2, "noise_low": 0.0,
    "noise_high": 0.0, "pretrained_learning_rate": 0.05,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> ModelConfig:
    _, model = policies.read_model(config(), DESK)
    return dataclasses.replace(model, num_hidden_layers=1)


@pytest.fixture(scope="module")
def folder(model: ModelConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder in HF format with random weights."""
    tokenizer, _ = policies.read_model(config(), DESK)
    made = tmp_path_factory.mktemp("pretrained") / "model"
    made.mkdir()
    save_model(made, model, initialize(model, 0), tokenizer)
    return made


def taught(folder: Path, **settings: object) -> ConfigDict:
    made = config(model__path=str(folder), learner__micro_rows=1, learner__row_length=192, engine__max_length=192)
    made.learner.remat = "none"
    made.warm_start.update({**FEW, **settings})
    return made


class Held:
    """An engine that counts what it was given."""

    versions: tuple[int, ...] = ()

    def rest(self) -> None:
        """Nothing runs."""

    def load(self, weights) -> None:
        self.versions = (*self.versions, weights.version)


class Begun(NamedTuple):
    params: Params
    origin: Mapping[str, Any]


def start(settings: ConfigDict, engine: Held | None = None) -> tuple[Begun, ModelConfig]:
    tokenizer, shape = policies.read_model(settings, DESK)
    chat = Chat(tokenizer, no_document)
    made = SimpleNamespace(environment=DESK, chat=chat, model=shape, engine=engine or Held(), mesh=None, together=ALONE)
    return Begun(*begin(settings, made, lambda step: 0.25, lambda: DESK.tasks("dev", 2))), shape


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def changed(folder: Path, shape: ModelConfig, after: Begun) -> dict[str, bool]:
    """Of each parameter, whether it differs from the folder's."""
    before = jax.tree_util.tree_leaves_with_path(load_params(folder, shape))
    leaves = jax.tree.leaves(after.params)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): bool((np.asarray(old) != np.asarray(new)).any())
        for (path, old), new in zip(before, leaves, strict=True)
    }


def test_all_weights_learn_once_and_the_result_says_what_they_were_shown(folder, tmp_path, capsys, monkeypatch):
    engine = Held()
    first, shape = start(taught(folder), engine)
    assert engine.versions == (2,)
    assert all(changed(folder, shape, first).values())
    assert first.origin == {
        "folder": str(folder), "weights": hash_weights(folder), "demonstrations": 4, "dropped": 0, "shown": 4,
        "batches": 2, "epochs": 1.0, "lora_rank": 0,
        "checks": [{"step": 2, "loss": pytest.approx(6.1, abs=1.0), "success": 0.25}],
    }  # fmt: skip
    said = capsys.readouterr().out
    assert f"policy: pretrained from {folder}, to be shown at most 2 batches of 2 of 4 demonstrations" in said
    assert "policy: pretrained from model, shown 4 demonstrations once each, learned by all weights" in said

    def never(*given, **settings):
        raise AssertionError("learned twice")

    monkeypatch.setattr(initial_policy, "_train", never)
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    again, _ = start(taught(moved))
    assert again.origin == {**first.origin, "folder": str(moved)}
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), first.params, again.params))
    cut = json.loads((moved / "tokenizer.json").read_text())
    cut["pre_tokenizer"] = None
    (moved / "tokenizer.json").write_text(json.dumps(cut))
    with pytest.raises(AssertionError, match="learned twice"):
        start(taught(moved))
    write_model(moved, shape, initialize(shape, 1))
    for other in (taught(moved), taught(folder, pretrained_learning_rate=0.01), taught(folder, steps=1)):
        with pytest.raises(AssertionError, match="learned twice"):
            start(other)


def test_adapters_learn_and_are_summed_into_the_weights(folder):
    lora = {"rank": 2, "targets": ("query", "down"), "learning_rate": 0.05}
    after, shape = start(taught(folder, lora=lora))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(after.params)} == {"float32"}
    different = [name for name, differs in changed(folder, shape, after).items() if differs]
    assert different == ["layers/attention/query/kernel", "layers/feed_forward/down/kernel"]
    assert (after.origin["shown"], after.origin["lora_rank"]) == (4, 2)


@pytest.mark.parametrize(("split", "decides"), [("initial", True), ("", False)])
def test_the_number_of_initial_tasks_counts_where_they_are_learned(folder, monkeypatch, split, decides):
    class Asked(Exception):
        pass

    keys = []

    def asked(key, *given):
        keys.append(key)
        raise Asked

    monkeypatch.setattr(initial_policy.warm_start, "obtain", asked)
    for count in (8, 8, 12):
        settings = taught(folder, split=split)
        settings.initial_tasks = count
        with pytest.raises(Asked):
            start(settings)
    assert keys[0] == keys[1]
    assert (keys[0] != keys[2]) is decides


def test_without_steps_a_model_folder_begins_as_it_is(folder, cache, capsys):
    after, shape = start(taught(folder, steps=0))
    assert not any(changed(folder, shape, after).values())
    assert after.origin == {"folder": str(folder), "shown": 0}
    assert "policy: pretrained from model, shown no demonstrations (warm_start.steps=0)" in capsys.readouterr().out
    assert not cache.exists()


def test_a_world_without_demonstrations_has_a_fix_for_a_model_folder(folder):
    with pytest.raises(ValueError, match=r"name a split with solutions.*start from the model folder as it is"):
        find_demonstrations(taught(folder), SimpleNamespace(name="atlantis"), (0.0, 0.0))
    with pytest.raises(FileNotFoundError, match=r"no \*\.safetensors in"):
        hash_weights(folder.parent)


def kept_run(settings: ConfigDict, model: ModelConfig, workdir: Path) -> SimpleNamespace:
    """The folder of a run of these settings after its first checkpoint, of a policy that was shown 4 demonstrations."""
    plain = json.loads(json.dumps(settings.to_dict()))
    workdir.mkdir()
    (workdir / "config.json").write_text(json.dumps({"config": plain}))
    reference = "reference_logprobs" in objective_of(settings).loss.uses
    origin = {"folder": settings.model.path, "shown": 4}
    trained.keep(workdir, model, initialize(model, 5), plain, False, origin, reference)
    (workdir / "zero_shot.json").write_text("{}")
    return SimpleNamespace(folder=workdir, files=RunFiles(workdir))


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, False),
        ({"learner__lora__rank": 2}, True),
        ({"learner__loss_settings__kl_coefficient": 0.1}, True),
        ({"model__path": ""}, False),
    ],
)
def test_a_run_that_goes_on_needs_no_cache(folder, model, tmp_path, monkeypatch, settings, own):
    """With adapters, or a reference, the policy before the first step is in the run's own folder."""
    given = taught(folder)
    for name, value in settings.items():
        *sections, leaf = name.split("__")
        place = given
        for section in sections:
            place = place[section]
        place[leaf] = value
    directory = kept_run(given, model, tmp_path / "run")
    assert (directory.folder / "base").is_dir() == own
    monkeypatch.setattr(assemble, "initial_policy", lambda *given: pytest.fail("made again"))
    made = SimpleNamespace(model=model, mesh=None, together=ALONE)
    found = Begun(*states.initial_policy(given, made, tuple, directory, checkpoint=object()))
    assert found.origin == {"folder": given.model.path, "shown": 4}
    # Of a policy from scratch, the shapes alone are needed.
    without_base = load_params(folder, model) if given.model.path else initialize(model, given.seed)
    expected = initialize(model, 5) if own else without_base
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), found.params, expected))
    if own:
        write_model(directory.folder / "base", model, initialize(model, 6))
        with pytest.raises(CheckpointError, match="its weights were changed since"):
            states.initial_policy(given, made, tuple, directory, checkpoint=object())


def test_a_run_from_scratch_whose_loss_reads_the_initial_policy_warm_starts_again(model, tmp_path, monkeypatch):
    given = taught(tmp_path)
    given.model.path, given.learner.loss_settings.kl_coefficient = "", 0.1
    directory = kept_run(given, model, tmp_path / "run")
    monkeypatch.setattr(assemble, "initial_policy", lambda *given: ("made", "again"))
    made = SimpleNamespace(model=model, mesh=None, together=ALONE)
    assert states.initial_policy(given, made, tuple, directory, checkpoint=object()) == ("made", "again")


@pytest.mark.nightly
@pytest.mark.parametrize("rank", [0, 2])
def test_the_command_goes_on_after_the_cache_is_gone(commands, folder, tmp_path, rank):
    few = [f"warm_start.{name}={value}" for name, value in FEW.items()]
    settings = ("warm_start.check_tasks=2", f"learner.lora.rank={rank}", *few)
    first = run(commands, tmp_path, "steps=1", f"model.path={os.path.relpath(folder, ROOT)}", *settings)
    assert first.returncode == 0, first.stdout + first.stderr
    line = "policy: pretrained from model, shown 4 demonstrations once each, learned by all weights"
    assert line in first.stdout
    shutil.rmtree(tmp_path / "cache" / "warm-start")
    done = run(commands, tmp_path, "steps=2", f"model.path={folder}", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index(line) < done.stdout.index("resumed at step 1")
    assert not (tmp_path / "cache" / "warm-start").exists()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["origin"]["shown"], summary["origin"]["steps"]) == (2, 4, 2)
    # From another folder, with the settings of the run.
    command = [sys.executable, "-m", "experiments.run", "--workdir=run", "--config.steps=3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patience(900), check=False
    )
    assert "resumed at step 2" in done.stdout, done.stdout + done.stderr
    policy = trained.of_run(tmp_path / "run")
    assert (policy.step, policy.model.num_hidden_layers) == (3, 1)

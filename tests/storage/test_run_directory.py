"""A run directory: waiting groups, the lock, lost permissions, changed code and changed settings."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import jax.numpy as jnp
import pytest
import small_runs
from chat_server import soon
from patience import patience

from cojax.metrics import Metrics
from cojax.storage.evaluation_directory import EvaluationDirectory
from cojax.storage.files import RunDirectoryError, StorageError
from cojax.storage.run_directory import RunDirectory
from cojax.storage.run_files import verify_run
from cojax.types import Action, Group, Task, Trajectory, Turn

HOST = {"evolved": 0, "fresh": 0}
LIKE = {"w": jnp.float32(0)}


def group(name: str, step: int) -> Group:
    task = Task("counter", name, {"target": 1})
    turn = Turn(Action("go"), action_tokens=(5, 6), action_logprobs=(-0.1, -1e-9), weights_version=step, spans=())
    return Group(task, tuple(Trajectory(task, f"{step}-{task.id}-{sample}", turns=(turn,)) for sample in range(2)))


def saved(folder: Path) -> RunDirectory:
    directory = RunDirectory(folder, checkpoints_kept=2)
    for step in (1, 2, 3):
        # The last task of one step is the first of the next.
        waiting = [[group("a", step + 1), group("b", step + 1)], [group("b", step + 2)]] if step < 3 else []
        directory.save(step, {"w": jnp.float32(step)}, HOST, waiting)
    return directory


def test_each_checkpoint_gives_back_its_own_waiting_groups(tmp_path):
    directory = saved(tmp_path)
    assert directory.resume(LIKE, {}).waiting == ()
    (tmp_path / "checkpoints/3/host.json").unlink()
    resumed = directory.resume(LIKE, {})
    assert (resumed.step, resumed.waiting) == (2, ((group("a", 3), group("b", 3)), (group("b", 4),)))
    # What belongs to no checkpoint any more is dropped.
    assert [path.name for path in (tmp_path / "waiting").iterdir()] == ["000002.jsonl.gz"]


@pytest.mark.parametrize("groups", [[], [group("a", 2)]])
def test_a_step_whose_groups_are_all_gone_is_still_one_that_was_sampled(groups, tmp_path):
    """A fork may have none of a step. Sampled again, it would have other weights than in a run that was not stopped."""
    directory = RunDirectory(tmp_path)
    directory.save(1, {"w": jnp.float32(1)}, HOST, [groups, [], []])
    assert directory.resume(LIKE, {}).waiting == (tuple(groups), (), ())


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_missing_or_damaged_waiting_groups_are_named(tmp_path, damage):
    """They cannot be sampled again: the policy has learned since."""
    directory = saved(tmp_path)
    (tmp_path / "checkpoints/3/host.json").unlink()
    damage(tmp_path / "waiting/000002.jsonl.gz")
    with pytest.raises(StorageError, match=r"waiting/000002.jsonl.gz is .*Restore it from a copy"):
        directory.resume(LIKE, {})


def test_a_second_process_is_refused_until_the_first_is_gone_though_its_child_lives(tmp_path, commands):
    (tmp_path / "holder.py").write_text(
        "import pathlib, subprocess, time; from cojax.storage.run_directory import RunDirectory\n"
        "directory = RunDirectory(pathlib.Path('run'))\n"
        "print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)\n"
    )
    folder = tmp_path / "run"
    first = commands.start("holder", folder=tmp_path)
    soon(lambda: first.printed().endswith("\n"))
    child = int(first.printed())
    try:
        for take in (lambda: RunDirectory(folder), lambda: EvaluationDirectory(folder)):
            began = time.monotonic()
            with pytest.raises(
                RunDirectoryError, match=r"another process is running in .*Wait for it, stop it, or choose"
            ):
                take()
            assert time.monotonic() - began < patience(1)
        first.send_signal(signal.SIGKILL)
        first.wait(10)
        os.kill(child, 0)
        RunDirectory(folder).close()
        with EvaluationDirectory(folder):
            pass
    finally:
        first.send_signal(signal.SIGKILL)
        os.kill(child, signal.SIGKILL)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The files of a run to its end, and how many of its tasks are new."""
    folder = small_runs.finished(tmp_path_factory.mktemp("straight") / "run")
    return small_runs.tree(folder), verify_run(folder).pool.fresh


@pytest.fixture
def ordinary(straight):
    """A folder of an ordinary user, as whom the test goes on: root ignores permissions. All that would be imported
    later, from where such a user may not read, is imported by now."""
    folder, user = Path(tempfile.mkdtemp()), os.geteuid()
    if user == 0:
        os.chown(folder, 65_534, 65_534)
        os.seteuid(65_534)
    yield folder
    os.seteuid(user)
    shutil.rmtree(folder)


def on(directory: RunDirectory, steps: Iterable[int], metrics: Metrics) -> None:
    for step in steps:
        small_runs.play(directory, step, metrics)


@pytest.mark.parametrize("place", ["", "tasks.jsonl", "episodes", "checkpoints", "memory.jsonl", "checksums.jsonl"])
def test_permissions_taken_in_mid_run_cost_nothing(ordinary, straight, place):
    """The error is one line that names the path; with permissions given back, the run reaches the same result."""
    folder = ordinary / "run"
    directory = small_runs.begun(folder)
    metrics = Metrics(folder, log=directory.metrics)
    on(directory, range(1, 3), metrics)
    taken = folder / place
    mode = taken.stat().st_mode
    taken.chmod(0o500 if taken.is_dir() else 0o400)
    with pytest.raises(StorageError, match=r"cannot write .*: Permission denied\. Make the folder writable") as caught:
        on(directory, range(3, 6), metrics)
    assert "\n" not in str(caught.value)
    metrics.close()
    directory.close()
    taken.chmod(mode)
    directory = RunDirectory(folder)
    step = directory.claim(small_runs.CONFIG, {"versions": {"python": "3"}}).step
    directory.resume(small_runs.LIKE, {})
    metrics = Metrics(folder, step=step, log=directory.metrics)
    on(directory, range(step + 1, 7), metrics)
    metrics.close()
    small_runs.end(directory, 6)
    found, (expected, fresh) = small_runs.tree(folder), straight
    # Paid for twice, as its step was played twice; and what holds times, or names of Orbax's own.
    apart = ("journal.jsonl", "embeddings.jsonl", "checkpoints", "tensorboard", "checksums.jsonl")
    for name in expected:
        if not name.startswith(apart):
            assert found[name] == expected[name], name
    assert verify_run(folder).pool.fresh == fresh


def test_what_may_not_be_read_is_named_with_the_fix(ordinary):
    folder = small_runs.finished(ordinary / "run")
    for name in ("tasks.jsonl", "checkpoints/6/host.json", "episodes/000002.jsonl.gz"):
        (folder / name).chmod(0)
        with pytest.raises(
            StorageError, match=rf"cannot read .*{Path(name).name}: Permission denied\. Make it readable"
        ):
            verify_run(folder)
        (folder / name).chmod(0o600)
    assert verify_run(folder).step == 6


def test_code_from_outside_that_has_changed_is_refused_unless_it_is_accepted(tmp_path):
    def code(name: str, hash: str) -> dict:
        return {"code": {"learner.loss": {"name": name, "path": "mine:loss", "version": "", "hash": hash}}}

    def claimed(facts: dict, **accepted: bool) -> None:
        again = RunDirectory(tmp_path)
        try:
            again.claim(small_runs.CONFIG, facts, **accepted)
        finally:
            again.close()

    directory = small_runs.begun(tmp_path)
    directory.close()
    claimed(code("mine:loss", "a"))  # an older start knew of no code
    claimed(code("mine:loss", "a"))
    with pytest.raises(
        RunDirectoryError, match=r"other code: learner.loss \(mine:loss\) has changed since.*accept_chan"
    ):
        claimed(code("mine:loss", "b"))
    claimed(code("mine:loss", "b"), accept_changed_code=True)
    claimed(code("mine:loss", "b"))
    # What ships with the package has its commit.
    claimed(code("grpo", "c"))
    claimed(code("grpo", "d"))


@pytest.mark.parametrize(
    "damage",
    [{"code": 3}, {"code": {"a": 3}}, {"code": {"a": {"name": 3}}}, {"code": None}, {"history": 3}, {"history": "abc"}],
)
def test_damaged_facts_beside_the_settings_are_one_line(tmp_path, damage):
    small_runs.begun(tmp_path).close()
    path = tmp_path / "config.json"
    record = {**json.loads(path.read_text()), **damage}
    del record["checksum"]
    path.write_text(json.dumps(record))
    again = RunDirectory(tmp_path)
    try:
        with pytest.raises(RunDirectoryError, match=r"config.json cannot be read \(its `.*Restore it from a copy"):
            again.claim(small_runs.CONFIG, {})
    finally:
        again.close()
    assert json.loads(path.read_text()) == record


def test_changed_free_settings_are_stored_with_the_step(tmp_path):
    def history(**settings: object) -> list:
        again = RunDirectory(tmp_path)
        again.claim({**small_runs.CONFIG, **settings}, {})
        again.close()
        return json.loads((tmp_path / "config.json").read_text()).get("history", [])

    directory = small_runs.begun(tmp_path)
    metrics = Metrics(tmp_path, log=directory.metrics)
    for step in (1, 2):
        small_runs.play(directory, step, metrics)
    metrics.close()
    directory.close()
    assert history(workdir="elsewhere") == []
    first = {"step": 2, "settings": {"mismatch_alarm": [None, 0.5], "steps": [6, 9]}}
    assert history(steps=9, mismatch_alarm=0.5) == [first]
    assert history(steps=9, mismatch_alarm=0.5) == [first]
    second = {"step": 2, "settings": {"mismatch_alarm": [0.5, 0.25]}}
    assert history(steps=9, mismatch_alarm=0.25) == [first, second]
    with pytest.raises(RunDirectoryError, match="other settings: seed"):
        history(seed=1)


def test_changed_settings_of_the_learner_are_recorded(tmp_path, monkeypatch):
    """A lower rate, or skipping the step, gets past a step that fails; config.json records which settings held when."""
    learner = {"skip_steps": [], "loss_settings": {}}
    monkeypatch.setattr(small_runs, "CONFIG", {**small_runs.CONFIG, "learner": learner, "optimizer": {}})

    def claimed(**learning: object) -> dict:
        config = dict(small_runs.CONFIG)
        for name, value in learning.items():
            section, leaf = name.split("__")
            config[section] = {**config[section], leaf: value}
        again = RunDirectory(tmp_path)
        try:
            again.claim(config, {})
        finally:
            again.close()
        return json.loads((tmp_path / "config.json").read_text())

    small_runs.begun(tmp_path).close()
    assert "history" not in claimed()
    claimed(learner__skip_steps=[3])
    told = claimed(learner__skip_steps=[3], optimizer__learning_rate=1e-7)
    assert [entry["settings"] for entry in told["history"]] == [
        {"learner.skip_steps": [[], [3]]},
        {"optimizer.learning_rate": [None, 1e-7]},
    ]
    assert told["config"]["learner"]["skip_steps"] == [3]
    with pytest.raises(RunDirectoryError, match=r"other settings: learner.micro"):
        claimed(learner__skip_steps=[3], optimizer__learning_rate=1e-7, learner__micros=4)

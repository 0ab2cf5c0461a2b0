"""Checkpoints: the same bits back, or the one before, or a clear error."""

import json
import logging
import os
import resource
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from chat_server import soon
from restored import restored

from cojax.storage.checkpoint import Checkpointer, CheckpointError
from cojax.storage.files import StorageError


def _arrays(seed=0):
    """Parameters, AdamW's moments and a counter, in three dtypes."""
    rng = np.random.default_rng(seed)
    params = {"layers": {"w": np.zeros((2, 8, 8), np.float32)}, "e": np.zeros(6, jnp.bfloat16)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    like = {"step": np.int32(0), "params": params, "opt_state": jax.eval_shape(optimizer.init, params)}
    return jax.tree.map(lambda one: jnp.asarray((8 * rng.random(one.shape)).astype(one.dtype)), like)


def _same(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_nothing_saved_is_none(tmp_path):
    assert restored(Checkpointer(tmp_path / "checkpoints"), _arrays()) is None


def test_round_trip_is_bit_identical_and_takes_shapes_alone(tmp_path):
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    checkpointer.save(12, _arrays(3), {"pool": 812, "pending": ["12-ab-0"], "memory": {"a": None}})
    step, arrays, host = restored(checkpointer, jax.eval_shape(lambda: _arrays()))
    assert step == 12
    assert host == {"pool": 812, "pending": ["12-ab-0"], "memory": {"a": None}}
    _same(arrays, _arrays(3))
    assert sorted(os.listdir(tmp_path / "checkpoints" / "12")) == ["arrays", "host.json"]


def test_another_process_restores_what_this_one_saved(tmp_path, commands):
    Checkpointer(tmp_path).save(1, {"w": jnp.arange(3.0)}, {})
    (tmp_path / "restorer.py").write_text(
        "import pathlib, numpy, cojax.storage.checkpoint as c\n"
        "saver = c.Checkpointer(pathlib.Path())\n"
        "print(saver.read_arrays(1, {'w': numpy.zeros(3, numpy.float32)})['w'].tolist())\n"
    )
    run = commands.run("restorer", folder=tmp_path)
    assert run.stdout == "[0.0, 1.0, 2.0]\n", run.stderr


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    arrays = {"w": jnp.arange(100_000.0)}
    checkpointer.save(1, arrays, {})
    double(arrays["w"]).block_until_ready()
    _, found, _ = restored(checkpointer, {"w": jax.ShapeDtypeStruct((100_000,), jnp.float32)})
    assert np.array_equal(found["w"], np.arange(100_000, dtype=np.float32))


def test_the_newest_are_kept_in_numeric_order_and_leftovers_go(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep=2)
    (tmp_path / ".8.123.tmp" / "arrays").mkdir(parents=True)
    for step in (8, 9, 10):
        checkpointer.save(step, {"w": jnp.float32(step)}, {})
    assert sorted(os.listdir(tmp_path)) == ["10", "9"]
    assert restored(checkpointer, {"w": jnp.float32(0)})[:2] == (10, {"w": 10.0})


def test_saving_a_step_again_replaces_it(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(5, {"w": jnp.float32(1)}, {"a": 1})
    checkpointer.save(5, {"w": jnp.float32(2)}, {"a": 2})
    assert restored(checkpointer, {"w": jnp.float32(0)}) == (5, {"w": 2.0}, {"a": 2})
    assert os.listdir(tmp_path) == ["5"]


def _largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def _cut(folder):
    path = _largest(folder / "arrays")
    path.write_bytes(path.read_bytes()[:-7])


def _flip(folder):
    path = _largest(folder / "arrays")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _lose(folder):
    _largest(folder / "arrays").unlink()


def _no_host(folder):
    (folder / "host.json").unlink()


def _torn_host(folder):
    (folder / "host.json").write_text((folder / "host.json").read_text()[:40])


def _foreign_host(folder):
    (folder / "host.json").write_text("[]")


def _endless(folder):
    os.truncate(_largest(folder / "arrays"), 2**40)


def _endless_host(folder):
    os.truncate(folder / "host.json", 2**40)


def _pipe(folder):
    os.mkfifo(folder / "arrays/pipe")


DAMAGE = (_endless, _endless_host, _pipe, _cut, _flip, _lose, _no_host, _torn_host, _foreign_host)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_step_is_named_and_the_one_before_is_used(tmp_path, caplog, damage):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, _arrays(1), {"a": 1})
    checkpointer.save(2, _arrays(2), {"a": 2})
    damage(tmp_path / "2")
    with caplog.at_level(logging.WARNING, "cojax.storage.checkpoint"):
        step, arrays, host = restored(checkpointer, _arrays())
    assert (step, host) == (1, {"a": 1})
    _same(arrays, _arrays(1))
    assert [record.getMessage().split(" is damaged")[0] for record in caplog.records] == [
        f"checkpoint {tmp_path / '2'}"
    ]


def test_an_empty_step_folder_is_skipped_and_a_file_of_that_name_too(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"w": jnp.float32(1)}, {})
    (tmp_path / "2").mkdir()
    (tmp_path / "3").write_text("")
    assert restored(checkpointer, {"w": jnp.float32(0)})[0] == 1


def test_no_good_step_is_an_error_not_a_fresh_start(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    for step in (1, 2):
        checkpointer.save(step, {"w": jnp.float32(1)}, {})
        _no_host(tmp_path / str(step))
    with pytest.raises(CheckpointError, match=r"no usable checkpoint in .*: all of \[1, 2\] are damaged"):
        restored(checkpointer, {"w": jnp.float32(0)})


def test_a_checkpoint_of_another_model_says_what_differs(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"a": {"w": jnp.zeros((2, 3))}}, {})
    with pytest.raises(
        CheckpointError, match=r"1 arrays differ, first a/w: found float32\[2, 3\], expected float32\[3, 3\]"
    ):
        restored(checkpointer, {"a": {"w": jnp.zeros((3, 3))}})
    with pytest.raises(CheckpointError, match=r"first a/b: found none, expected float32\[\]"):
        restored(checkpointer, {"a": {"w": jnp.zeros((2, 3)), "b": jnp.float32(0)}})


def test_a_disk_that_refuses_leaves_the_older_checkpoint(tmp_path):
    checkpointer = Checkpointer(tmp_path, keep=1)
    checkpointer.save(1, {"w": jnp.float32(1)}, {})
    large = {"w": jax.random.normal(jax.random.key(0), (300_000,))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageError) as caught:
            checkpointer.save(2, large, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert f"cannot write {tmp_path / '2'}: File too large." in str(caught.value)
    assert os.listdir(tmp_path) == ["1"]
    assert restored(checkpointer, {"w": jnp.float32(0)})[0] == 1


def test_killed_at_any_moment_of_a_save_the_last_whole_step_restores(tmp_path, commands):
    """SIGKILL at three moments of a loop of saves; whatever is left restores to arrays that match their step."""
    (tmp_path / "saver.py").write_text(
        "import itertools, pathlib, numpy, cojax.storage.checkpoint as c\n"
        "saver = c.Checkpointer(pathlib.Path('run'), keep=2)\n"
        "first = max(saver.steps(), default=0) + 1\n"
        "for step in itertools.count(first):\n"
        "    saver.save(step, {'w': numpy.full(50_000, step, numpy.int32)}, {'step': step})\n"
        "    print(step, flush=True)\n"
    )
    checkpointer, last = Checkpointer(tmp_path / "run", keep=2), 0
    for delay in (0.005, 0.021, 0.034):
        run = commands.start("saver", folder=tmp_path)
        soon(lambda run=run: "\n" in run.printed(), 60)
        time.sleep(delay)
        run.send_signal(signal.SIGKILL)
        printed = max(map(int, run.wait(10).stdout.split()))
        step, arrays, host = restored(checkpointer, {"w": np.zeros(50_000, np.int32)})
        assert step >= printed > last
        assert host == {"step": step}
        assert json.loads((tmp_path / "run" / str(step) / "host.json").read_text())["step"] == step
        assert np.array_equal(arrays["w"], np.full(50_000, step, np.int32))
        last = printed


def test_one_branch_is_read_alone_from_a_chosen_or_the_newest_sound_step(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    for step in (1, 2):
        checkpointer.save(step, _arrays(step), {})
    newest, first = checkpointer.part("params"), checkpointer.part("params", 1)
    assert (newest[0], first[0]) == (2, 1)
    assert newest[2] != first[2]
    _same(newest[1], jax.tree.map(np.asarray, _arrays(2)["params"]))
    _same(first[1], jax.tree.map(np.asarray, _arrays(1)["params"]))
    damaged = next(path for path in (tmp_path / "2/arrays").rglob("*") if path.is_file() and path.stat().st_size > 200)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert checkpointer.part("params")[0] == 1
    with pytest.raises(CheckpointError, match=r"2 is damaged: .*\. Choose another step \(1\)\."):
        checkpointer.part("params", 2)
    with pytest.raises(CheckpointError, match=r"no step 7 in .*; it has 1, 2$"):
        checkpointer.part("params", 7)
    with pytest.raises(CheckpointError, match="holds no adapters"):
        checkpointer.part("adapters", 1)
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        Checkpointer(tmp_path / "none").part("params")

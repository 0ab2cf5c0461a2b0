"""A run directory: the groups that wait for an update are part of the checkpoint."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from cojax.run_directory import RunDirectory
from cojax.store import StorageError
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
        waiting = [group("a", step), group("b", step)] if step < 3 else []
        directory.save(step, {"w": jnp.float32(step)}, HOST, waiting)
    return directory


def test_each_checkpoint_gives_back_its_own_waiting_groups(tmp_path):
    directory = saved(tmp_path)
    assert directory.resume(LIKE, {}).waiting == ()
    (tmp_path / "checkpoints/3/host.json").unlink()
    resumed = directory.resume(LIKE, {})
    assert (resumed.step, resumed.waiting) == (2, (group("a", 2), group("b", 2)))
    # What belongs to no checkpoint any more is dropped.
    assert [path.name for path in (tmp_path / "waiting").iterdir()] == ["000002.jsonl.gz"]


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-9])])
def test_waiting_groups_that_are_gone_or_damaged_are_named(tmp_path, damage):
    """Sampled anew they would be others: the policy has learned since."""
    directory = saved(tmp_path)
    (tmp_path / "checkpoints/3/host.json").unlink()
    damage(tmp_path / "waiting/000002.jsonl.gz")
    with pytest.raises(StorageError, match=r"waiting/000002.jsonl.gz is .*Restore it from a copy"):
        directory.resume(LIKE, {})

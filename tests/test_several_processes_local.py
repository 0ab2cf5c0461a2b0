"""A run that samples on the devices of all its processes: equal to one process, and to itself after kills."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from same_runs import assert_same_run, episodes, untimed
from several_processes import Processes
from test_several_processes import LEARNED, assert_equals, assert_same_record, count, has, saves

from cojax.run.processes import check_processes
from experiments import desk

pytestmark = pytest.mark.real
NIGHTLY = pytest.mark.nightly

LOCAL = ("engine=local", "engine.lanes=1", "engine.slots=16", "evaluation.tasks=2", "steps=3")
SCHEDULED = ("engine=steady_engine:scheduled", "engine.lanes=1", "engine.slots=16")
TENSOR = ("mesh.fsdp=2", "mesh.tensor=2")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(workdir: Path, cache: Path, processes: int, devices: int, *settings: str) -> Path:
    started = Processes(workdir, cache, processes, *settings, devices=devices)
    assert started.wait() == [0] * processes, started.printed()
    return workdir


def tokens(episode: dict) -> list[list[int]]:
    return [turn["action_tokens"] for turn in episode["turns"]]


def assert_equals_while_tokens_agree(workdir: Path, alone: Path) -> None:
    """Step 1 is equal; a later step is while the sampled tokens of it and those before agree; losses within 1e-5."""
    here, there = episodes(workdir), episodes(alone)
    assert here["000001.jsonl.gz"] == there["000001.jsonl.gz"]
    assert untimed(workdir / "tasks.jsonl") == untimed(alone / "tasks.jsonl")
    records = list(zip(untimed(workdir / "metrics.jsonl"), untimed(alone / "metrics.jsonl"), strict=True))
    assert all(LEARNED & record.keys() for record, _ in records)
    for number, (one, other) in enumerate(records, 1):
        name = f"{number:06}.jsonl.gz"
        if list(map(tokens, here[name])) != list(map(tokens, there[name])):
            assert number > 1
            break
        assert_same_record(one, other)


@pytest.mark.parametrize(
    ("processes", "devices", "settings"),
    [
        (2, 2, ()),
        # Each replica spans two of the processes.
        pytest.param(4, 1, TENSOR, marks=NIGHTLY),
        pytest.param(4, 2, ("learner.micro_rows=8",), marks=NIGHTLY),
        pytest.param(
            2, 2, ("warm_start.steps=4", "warm_start.check_every=2", "warm_start.batch_size=4"), marks=NIGHTLY
        ),
    ],
)
def test_processes_sample_as_one_process_with_as_many_devices(processes, devices, settings, cache, tmp_path):
    alone = run(tmp_path / "alone", cache, 1, processes * devices, *LOCAL, *settings)
    assert_equals_while_tokens_agree(run(tmp_path / "run", cache, processes, devices, *LOCAL, *settings), alone)


@NIGHTLY
@pytest.mark.parametrize(("processes", "settings"), [(2, ()), (4, ("learner.micro_rows=8",))])
def test_completions_of_seed_and_prompt_give_all_steps_the_same_tasks(processes, settings, cache, tmp_path):
    alone = run(tmp_path / "alone", cache, 1, 2 * processes, *SCHEDULED, *settings)
    assert_equals(run(tmp_path / "run", cache, processes, 2, *SCHEDULED, *settings), alone)


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "build": has("config.json"),
    "rollout": has("checkpoints/0"),
    "update": has("episodes/000001.jsonl.gz"),
    "record": lambda workdir: count(workdir / "metrics.jsonl") > 1,
    "save": saves(2),
}


@NIGHTLY
@pytest.mark.parametrize("killed", [0, 1])
def test_the_same_layout_repeats_to_the_bit_also_after_kills_at_five_moments(killed, cache, tmp_path):
    unbroken, workdir = run(tmp_path / "unbroken", cache, 2, 2, *LOCAL), tmp_path / "run"
    for name, moment in MOMENTS.items():
        broken = Processes(workdir, cache, 2, *LOCAL)
        broken.until(lambda moment=moment: moment(workdir))
        assert broken.kill(killed)[killed] == -signal.SIGKILL, name
    assert_same_run(run(workdir, cache, 2, 2, *LOCAL), unbroken)


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("staleness", 1, "staleness is 1, but several processes sample by engine.name=local: they sample"),
        ("engine.lanes", 2, "engine.lanes is 2, but several processes sample by engine.name=local: each replica"),
        ("learner.routes", "replayed", "set --config.learner.routes=own, or sample on servers"),
    ],
)
def test_settings_with_which_processes_cannot_sample_are_refused_in_one_line(setting, value, said):
    config = desk.get_config()
    config.update_from_flattened_dict(
        {"engine.lanes": 1, "mesh.fsdp": -1, "distributed.coordinator": "host:1", "distributed.processes": 2}
    )
    check_processes(config)
    config.update_from_flattened_dict({setting: value})
    with pytest.raises(ValueError, match=re.escape(said)):
        check_processes(config)

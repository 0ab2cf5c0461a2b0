"""A run in several processes, by the command itself, equals the run in one: through kills, stops and other counts."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from same_runs import arrays, episodes, lines, untimed
from several_processes import Processes
from steady_engine import ADVANTAGES, LOADS, sums

pytestmark = pytest.mark.real
NIGHTLY = pytest.mark.nightly

# Metrics that the learner computes: over several processes its sums have another order.
LEARNED = {
    "loss", "grad_norm", "entropy", "kl", "ratio", "ratio_max", "importance",
    "logprob_mismatch", "logprob_mismatch_max", "distance",
}  # fmt: skip


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def alone(cache, tmp_path_factory) -> Path:
    """The run in one process of four devices."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    run = Processes(workdir, cache, 1, devices=4)
    assert run.wait() == [0], run.printed()
    return workdir


def assert_same_record(one: object, other: object, name: str = "") -> None:
    """The host's metrics to the bit, the learner's within 1e-5."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        assert one.keys() == other.keys(), name
        for key in one:
            assert_same_record(one[key], other[key], key)
    elif name in LEARNED:
        assert one == pytest.approx(other, abs=1e-5, rel=1e-5), name
    else:
        assert one == other, name


def assert_equals(workdir: Path, alone: Path) -> None:
    """Tasks, episodes and the host's metrics to the bit; losses, weights and checkpoint within 1e-5."""
    for name in ("tasks.jsonl", "signals.jsonl", "drafts.jsonl", "memory.jsonl"):
        assert untimed(workdir / name) == untimed(alone / name), name
    assert episodes(workdir) == episodes(alone)
    for one, other in zip(untimed(workdir / "metrics.jsonl"), untimed(alone / "metrics.jsonl"), strict=True):
        assert_same_record(one, other)
    assert any(record.get("updates") for record in lines(workdir / "metrics.jsonl"))
    assert any("evolution" in record for record in lines(workdir / "metrics.jsonl"))
    pairs = list(zip(arrays(workdir), arrays(alone), strict=True))
    assert len(pairs) > 10
    for one, other in pairs:
        np.testing.assert_allclose(one, other, atol=1e-5)
    known = {record["version"]: record["sums"] for record in sums(Path(f"{alone}.sums"))}
    for record in sums(Path(f"{workdir}.sums")):
        assert record["sums"] == pytest.approx(known[record["version"]], abs=1e-3)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=NIGHTLY)])
def test_the_run_in_several_processes_equals_the_run_in_one(count, alone, cache, tmp_path):
    # Rows are split over eight devices.
    run = Processes(tmp_path / "run", cache, count, *(() if count == 2 else ("learner.micro_rows=8",)))
    assert run.wait() == [0] * count, run.printed()
    assert_equals(tmp_path / "run", alone)
    written = json.loads((tmp_path / "run/config.json").read_text())["config"]["distributed"]
    assert (written["coordinator"], written["process"]) == ("", None)


def count(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def saves(step: int) -> Callable[[Path], bool]:
    """Whether the checkpoint of that step is being written."""

    def begun(workdir: Path) -> bool:
        folder = workdir / "checkpoints"
        return folder.is_dir() and any(path.name.startswith(f".{step}.") for path in folder.iterdir())

    return begun


def resumed(workdir: Path) -> bool:
    return "resumed at step 4" in Path(f"{workdir}.0.txt").read_text()


def has(name: str) -> Callable[[Path], bool]:
    return lambda workdir: (workdir / name).exists()


# In the order of a run: the third step ends with an evolution, and every second one with a checkpoint.
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "build": has("config.json"),
    "first save": saves(0),
    "first step": has("checkpoints/0"),
    "update": lambda workdir: count(Path(f"{workdir}.sums{ADVANTAGES}")) > 8,
    # The rehearsal, D_0 and the loop read the first weights, and each of three steps reads its own.
    "weights": lambda workdir: count(Path(f"{workdir}.sums{LOADS}")) > 5,
    "evolution": has("episodes/000003.jsonl.gz"),
    "record": lambda workdir: count(workdir / "metrics.jsonl") > 2,
    "save": saves(4),
    "saved": has("checkpoints/4"),
    "restored": resumed,
}


@pytest.mark.parametrize(
    ("killed", "moment"),
    [
        pytest.param(killed, moment, marks=() if (killed, moment) == (1, "update") else NIGHTLY)
        for moment in MOMENTS
        for killed in (0, 1)
    ],
)
def test_after_a_kill_the_others_end_and_the_same_command_goes_on(killed, moment, alone, cache, tmp_path):
    workdir = tmp_path / "run"
    for each in ("saved", "restored") if moment == "restored" else (moment,):
        run = Processes(workdir, cache, 2)
        run.until(lambda each=each: MOMENTS[each](workdir))
        statuses = run.kill(killed)
        assert statuses[killed] == -signal.SIGKILL
        assert statuses[1 - killed] not in (0, None)
        if killed == 1:
            assert "error: process 1 is gone" in run.printed()[0]
    again = Processes(workdir, cache, 2)
    assert again.wait() == [0, 0], again.printed()
    assert_equals(workdir, alone)


@pytest.mark.nightly
@pytest.mark.parametrize("signalled", [0, 1])
def test_sigterm_to_one_process_ends_all_with_a_checkpoint(signalled, alone, cache, tmp_path):
    workdir = tmp_path / "run"
    run = Processes(workdir, cache, 2, "checkpoint_every=100")
    run.until((workdir / "episodes/000002.jsonl.gz").exists)
    run.signal(signalled, signal.SIGTERM)
    assert run.wait() == [128 + signal.SIGTERM] * 2, run.printed()
    steps = sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())
    assert 2 <= steps[-1] < 6
    again = Processes(workdir, cache, 2)
    assert again.wait() == [0, 0], again.printed()
    assert_equals(workdir, alone)


@pytest.mark.nightly
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (1, 4), (4, 1), (2, 4), (4, 2)])
def test_a_checkpoint_goes_on_with_another_number_of_processes(before, after, alone, cache, tmp_path):
    workdir = tmp_path / "run"
    first = Processes(workdir, cache, before, "steps=4", devices=4 // before)
    assert first.wait() == [0] * before, first.printed()
    then = Processes(workdir, cache, after, devices=4 // after)
    assert then.wait() == [0] * after, then.printed()
    assert_equals(workdir, alone)


def test_a_process_with_other_settings_is_refused_by_name(cache, tmp_path):
    run = Processes(tmp_path / "run", cache, 2, own=((), ("seed=1",)))
    assert run.wait(timeout=200) == [1, 1]
    for printed in run.printed():
        assert "process 1 has other settings, versions or code than process 0: settings.seed" in printed
    assert not (tmp_path / "run").exists()


@NIGHTLY
def test_a_check_in_several_processes_leaves_nothing(cache, tmp_path):
    run = Processes(tmp_path / "out", cache, 2, f"workdir={tmp_path / 'some/where/run'}", check=True)
    assert run.wait() == [0, 0], run.printed()
    assert "ok      memory" in run.printed()[0]
    assert "process 1: ended with process 0" in run.printed()[1]
    assert not (tmp_path / "some").exists()


def test_a_check_beside_a_finished_run_leaves_its_folder_as_it_was(alone, cache):
    before = sorted(alone.rglob("*"))
    run = Processes(alone, cache, 2, check=True)
    assert run.wait() == [0, 0], run.printed()
    assert sorted(alone.rglob("*")) == before


# What a run may hold beside one policy and its reference.
CASES = {
    "adapters": ("learner.lora.rank=4",),
    "coevolving": (
        "method=coevolving", "preference.tasks=growing", "preference.epochs=1", "preference.learning_rate=0.001",
        "learner.advantage=group_relative",
    ),
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("killed", [None, 1])
@pytest.mark.parametrize("case", CASES)
def test_what_a_run_holds_beside_the_policy_is_the_same_in_two_processes(case, killed, cache, tmp_path):
    alone, workdir = tmp_path / "alone", tmp_path / "run"
    one = Processes(alone, cache, 1, *CASES[case], devices=4)
    assert one.wait() == [0], one.printed()
    run = Processes(workdir, cache, 2, *CASES[case])
    if killed is not None:
        run.until(lambda: MOMENTS["save"](workdir))
        assert run.kill(killed)[killed] == -signal.SIGKILL
        run = Processes(workdir, cache, 2, *CASES[case])
    assert run.wait() == [0, 0], run.printed()
    assert_equals(workdir, alone)


@pytest.mark.nightly
def test_a_second_start_in_the_same_folder_is_refused_and_the_first_goes_on(alone, cache, tmp_path):
    workdir = tmp_path / "run"
    first = Processes(workdir, cache, 2)
    first.until((workdir / "episodes/000001.jsonl.gz").exists)
    second = Processes(workdir, cache, 2, "distributed.startup=60")
    assert second.wait() == [1, 1]
    assert "another process is running in" in second.printed()[1]
    assert first.wait() == [0, 0], first.printed()
    assert_equals(workdir, alone)

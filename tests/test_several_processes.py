"""A run in several processes, by the command itself, equals the run in one: through kills, stops and other counts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from same_runs import arrays, episodes, lines, untimed
from several_processes import Processes
from steady_engine import sums

pytestmark = pytest.mark.real
NIGHTLY = pytest.mark.nightly

# Metrics that the learner computes: over several processes its sums have another order.
LEARNED = {
    "loss", "grad_norm", "entropy", "kl", "ratio", "ratio_max", "importance",
    "logprob_mismatch", "logprob_mismatch_max",
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


def assert_equals(workdir: Path, alone: Path) -> None:
    """Tasks, episodes and the host's metrics to the bit; losses, weights and checkpoint within 1e-5."""
    for name in ("tasks.jsonl", "signals.jsonl", "drafts.jsonl", "memory.jsonl"):
        assert untimed(workdir / name) == untimed(alone / name), name
    assert episodes(workdir) == episodes(alone)
    for one, other in zip(untimed(workdir / "metrics.jsonl"), untimed(alone / "metrics.jsonl"), strict=True):
        learned = LEARNED & one.keys()
        assert {**one, **dict.fromkeys(learned)} == {**other, **dict.fromkeys(learned)}
        for name in learned:
            assert one[name] == pytest.approx(other[name], abs=1e-5, rel=1e-5), name
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
    run = Processes(tmp_path / "run", cache, count, *(() if count == 2 else ("learner.micro_rows=8",)))
    assert run.wait() == [0] * count, run.printed()
    assert_equals(tmp_path / "run", alone)
    written = json.loads((tmp_path / "run/config.json").read_text())["config"]["distributed"]
    assert (written["coordinator"], written["process"]) == ("", None)


@pytest.mark.parametrize(
    ("killed", "moment"),
    [(1, "update"), *(pytest.param(*one, marks=NIGHTLY) for one in ((0, "update"), (0, "save"), (1, "save")))],
)
def test_after_a_kill_the_others_end_and_the_same_command_goes_on(killed, moment, alone, cache, tmp_path):
    workdir = tmp_path / "run"
    run = Processes(workdir, cache, 2)
    saved = workdir / "checkpoints"
    if moment == "update":
        run.until((workdir / "episodes/000003.jsonl.gz").exists)
    else:
        run.until(lambda: saved.is_dir() and any(path.name.startswith(".4.") for path in saved.iterdir()))
    statuses = run.kill(killed)
    assert statuses[killed] == -signal.SIGKILL
    assert statuses[1 - killed] not in (0, None)
    if killed == 1:
        assert "error: process 1 is gone" in run.printed()[0]
    again = Processes(workdir, cache, 2)
    assert again.wait() == [0, 0], again.printed()
    assert_equals(workdir, alone)


@pytest.mark.parametrize("signalled", [pytest.param(0, marks=NIGHTLY), 1])
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
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
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
    assert not (tmp_path / "run" / "config.json").exists()


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

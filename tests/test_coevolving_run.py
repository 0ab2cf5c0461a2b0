"""Runs that learn in rounds, by the command itself: what they record, and that they resume after a kill."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from desk_runs import Runs, before_its_last_checkpoint
from same_runs import assert_same_run, episodes, lines

from cojax.storage.checkpoint import Checkpointer

# A policy that solves some tasks and parts of others, so that failures differ in partial reward.
SETTINGS = (
    "steps=4", "checkpoint_every=1", "initial_tasks=12", "batch_size=6", "evaluation.every=0", "evaluation.tasks=8",
    "preference.epochs=1", "preference.learning_rate=0.001",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(commands, shared_cache) -> Runs:
    return Runs(commands, shared_cache)


@pytest.fixture(scope="module")
def reference(runs, tmp_path_factory) -> Path:
    workdir = tmp_path_factory.mktemp("reference") / "run"
    done = runs(workdir, *SETTINGS, "method=coevolving", "environment_steps=100000")
    assert done.returncode == 0, done.stdout + done.stderr
    return workdir


def summary(workdir: Path) -> dict:
    return json.loads((workdir / "summary.json").read_text())


def test_both_agents_play_half_of_each_group_and_learn(reference):
    records = lines(reference / "metrics.jsonl")
    for record, played in zip(records, episodes(reference).values(), strict=True):
        found = record["preference"]
        assert [sum(episode.get("agent") == agent for episode in played) for agent in (None, "second")] == [12, 12]
        assert sum(record["outcomes"].values()) == 24
        for agent in ("target", "second"):
            mine = [episode for episode in played if (episode.get("agent") == "second") == (agent == "second")]
            failed = [episode for episode in mine if episode["reward"] < 1]
            assert found[agent]["failures"] == len(failed)
            assert found[agent]["hard"] == sum(episode["partial"] >= 0.6 for episode in failed)
        assert found["examples"]["own"] == found["target"]["failures"]
        assert found["examples"]["other"] == found["second"]["failures"]
    assert any(record["updates"] for record in records)
    second = [record["preference"]["second"] for record in records]
    assert [one["pairs"] for one in second] == [record["preference"]["examples"]["failures"] for record in records]
    assert any(one["updates"] for one in second[:-1])
    # Before it has learned, the second agent is the target.
    assert second[0]["distance"] == pytest.approx(0.0, abs=1e-5)


def test_the_environment_steps_of_both_agents_are_one_budget(reference):
    acted = [sum(len(episode["turns"]) for episode in played) for played in episodes(reference).values()]
    counted = [line["changes"]["played"]["environment_steps"] for line in lines(reference / "memory.jsonl")]
    assert counted == list(itertools.accumulate(acted))


def test_the_agents_are_told_apart_by_the_weights_that_sampled(reference):
    for step, played in enumerate(episodes(reference).values(), 1):
        versions = {(episode.get("agent"), turn["weights_version"]) for episode in played for turn in episode["turns"]}
        assert versions == {(None, 2 * (step - 1)), ("second", 2 * step + 1)}


def test_the_summary_has_the_share_of_hard_negatives_and_the_report_shows_the_agents(reference):
    played = [
        record["preference"][agent] for record in lines(reference / "metrics.jsonl") for agent in ("target", "second")
    ]
    share = sum(one["hard"] for one in played) / sum(one["failures"] for one in played)
    assert summary(reference)["hard_negatives"] == share
    assert summary(reference)["tasks_final"] == summary(reference)["tasks_initial"] == 12
    assert '"agents":{"step":[1,2,3,4],"target":{' in (reference / "report.html").read_text()


def test_a_killed_run_goes_on_with_both_agents_to_the_identical_result(reference, runs, tmp_path):
    workdir = before_its_last_checkpoint(reference, tmp_path / "run")
    done = runs.continued(workdir)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resumed at step 3" in done.stdout
    assert_same_run(workdir, reference)


def test_a_checkpoint_holds_both_agents(reference):
    saved = Checkpointer(reference / "checkpoints")
    target, second = saved.part("params")[1], saved.part("second")[1]["params"]
    assert jax.tree.structure(target) == jax.tree.structure(second)
    assert not np.array_equal(jax.tree.leaves(target)[0], jax.tree.leaves(second)[0])


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["eto", "rft", "sft"])
def test_every_baseline_runs_and_resumes_to_the_identical_result(method, runs, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    done = runs(straight, *SETTINGS, f"method={method}")
    assert done.returncode == 0, done.stdout + done.stderr
    moment = killed / "episodes/000002.jsonl.gz"
    runs.signalled(killed, moment.exists, signal.SIGKILL, *SETTINGS, f"method={method}")
    assert runs.continued(killed).returncode == 0
    assert_same_run(killed, straight)
    examples = [record["preference"]["examples"] for record in lines(straight / "metrics.jsonl")]
    kinds = {"own", "other", "failures"} if method == "eto" else {"experts", "successes"}
    assert {kind for found in examples for kind in found} == kinds
    assert (summary(straight)["hard_negatives"] is None) is (method != "eto")
    assert all("second" not in record["preference"] for record in lines(straight / "metrics.jsonl"))


@pytest.mark.nightly
def test_hard_negatives_beside_the_groups_resume_to_the_identical_result(runs, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    settings = (*SETTINGS, "preference.hard_negatives=0.5", "preference.hard=0.0")
    done = runs(straight, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    moment = killed / "episodes/000002.jsonl.gz"
    runs.signalled(killed, moment.exists, signal.SIGKILL, *settings)
    assert runs.continued(killed).returncode == 0
    assert_same_run(killed, straight)
    records = lines(straight / "metrics.jsonl")
    assert sum(record["hard_pairs"] for record in records) > 0
    share = sum(record["hard_negatives"] for record in records) / sum(record["failures"] for record in records)
    assert summary(straight)["hard_negatives"] == share


@pytest.mark.nightly
def test_best_of_n_trains_nothing_and_reports_its_trials(runs, tmp_path):
    done = runs(tmp_path / "run", *SETTINGS, "method=best_of_n", "evaluation.trials=3")
    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(tmp_path / "run")
    assert (found["steps"], len(found["trials"])) == (0, 3)
    assert found["final"] == found["zero_shot"] == found["trials"][0] <= found["trials"][-1]
    assert found["hard_negatives"] is None


@pytest.mark.nightly
def test_the_task_set_grows_where_it_may(runs, tmp_path):
    done = runs(tmp_path / "run", *SETTINGS, "method=coevolving", "preference.tasks=growing", "evolve=trajectory")
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(tmp_path / "run")["tasks_final"] > 12

"""A run on the grown desk with the arms of the study of signals, by the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from desk_runs import Runs
from same_runs import lines

from cojax.synthesis.beliefs import Posterior

ARM = (
    "environment.suites=2", "evolve=posteriors", "evolve_settings.floor=0.3", "synthesis.admit=probe",
    "admission_settings.candidates=3", "admission_settings.attempts=4", "synthesis.contexts=4", "synthesis.budget=4",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(commands, shared_cache) -> Runs:
    return Runs(commands, shared_cache)


@pytest.mark.nightly
def test_posteriors_with_a_probe_add_tasks_and_go_on_where_they_were_stopped(runs: Runs, tmp_path: Path) -> None:
    done = runs(tmp_path / "whole", *ARM, "steps=4")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [record["evolution"] for record in lines(tmp_path / "whole" / "metrics.jsonl") if "evolution" in record]
    assert [one["step"] for one in found] == [2, 4]
    for one in found:
        probe = one["probe"]
        assert 4 < probe["candidates"] <= 12
        assert probe["episodes"] == 4 * probe["candidates"]
        assert probe["turns"] >= probe["episodes"]
        assert probe["tokens"] > probe["turns"]
        assert one["accepted"] == sum(one["added"].values()) == 4
        assert one["added"].keys() <= {"posterior", "uniform"}
    tasks = lines(tmp_path / "whole" / "tasks.jsonl")
    assert len(tasks) == 12 + 8
    for task in tasks[12:]:
        assert task["lineage"]["evidence"][-1].startswith("probed: ")
        assert task["lineage"]["evidence"][-1].endswith(" of 4 episodes of the present policy solved it")
    drafts = [draft for draft in lines(tmp_path / "whole" / "drafts.jsonl") if draft["step"]]
    refused = [draft for draft in drafts if draft["verdict"]["evidence"][-1].startswith("not admitted")]
    assert len(refused) == sum(one["probe"]["candidates"] for one in found) - 8
    assert not any(draft["task"] for draft in refused)
    memory = {}
    for line in lines(tmp_path / "whole" / "memory.jsonl"):
        memory |= line["changes"].get("beliefs", {})
    assert memory["steps"] == 4
    assert 0.0 < Posterior({"discount": 0.98, **memory}).tool_mean("finish") < 1.0
    # A run that ended earlier and is extended finds the same tasks.
    assert runs(tmp_path / "parts", *ARM, "steps=2").returncode == 0
    done = runs(tmp_path / "parts", *ARM, "steps=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines(tmp_path / "parts" / "tasks.jsonl") == tasks
    assert lines(tmp_path / "parts" / "memory.jsonl") == lines(tmp_path / "whole" / "memory.jsonl")
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["code"]["evolve"]["settings"] == {"contenders": 8, "floor": 0.3, "strength": 2.0}
    assert config["code"]["synthesis.admit"]["settings"] == {
        "candidates": 3, "attempts": 4, "unselected": 0.5, "prefer": "learnable",
    }  # fmt: skip

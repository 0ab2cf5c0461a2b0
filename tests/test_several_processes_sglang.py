"""A run in two processes that samples on a real SGLang server: weights reach it by Orbax, from both processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience
from same_runs import lines
from several_processes import ROOT, SETTINGS, Processes, free_port

pytestmark = [pytest.mark.real, pytest.mark.nightly]


def test_six_steps_with_an_evolution_lose_no_episode_and_agree_with_the_sampler(tmp_path: Path) -> None:
    shared, port = tmp_path / "shared", free_port()
    settings = (f"sglang.folder={shared}", "sglang.follow=True", "sglang.dtype=float32", "engine.name=sglang")
    given = [*SETTINGS, f"workdir={tmp_path / 'host'}", *settings, f"sglang.port={port}"]
    command = [
        sys.executable, "-m", "experiments.serve", "--config=experiments/desk.py", "--host=127.0.0.1",
        *(f"--config.{one}" for one in given if not one.startswith("engine=")),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    with open(tmp_path / "serve.log", "wb") as log:
        host = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        run = Processes(
            tmp_path / "run", tmp_path / "cache", 2, *settings, "engine=sglang", f"sglang.urls=http://127.0.0.1:{port}",
            "mismatch_alarm=0.001",
        )  # fmt: skip
        assert run.wait(1_500) == [0, 0], [*run.printed(), (tmp_path / "serve.log").read_text()]
        saved = [path for path in (shared / "weights").iterdir() if path.name.isdigit()]
        assert sorted(path.name for path in saved) == ["5", "6"]
        for version in saved:
            parts = {path.name for path in (version / "params").glob("ocdbt.process_*")}
            assert parts == {"ocdbt.process_0", "ocdbt.process_1"}
    finally:
        host.terminate()
        assert host.wait(patience(90)) == 0
    records = lines(tmp_path / "run/metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert any("evolution" in record for record in records)
    mismatch = [record["logprob_mismatch"] for record in records if "logprob_mismatch" in record]
    print(f"\nlogprob mismatch of each step: {mismatch}")
    assert 0 < max(mismatch) < 1e-3
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    print(f"outcomes: {summary['outcomes']}; seconds: {summary['seconds']}")
    assert set(summary["outcomes"]) <= {"finished", "truncated"}

"""The whole loop through a real SGLang server, and the same weights evaluated by both engines."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from patience import patience

from cojax.policy.parameters import to_hf
from cojax.rollout.chat import PolicyActors
from cojax.rollout.collect import EpisodeCollector
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.export import load_params
from cojax.run import assemble
from cojax.scoring import compute_score
from cojax.types import Group
from experiments import desk

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]
SMALL = {
    "steps": 4, "evolve_every": 2, "checkpoint_every": 2, "batch_size": 4, "group_size": 4, "initial_tasks": 12,
    "model.shape.hidden_size": 64, "model.shape.intermediate_size": 128, "model.shape.num_hidden_layers": 2,
    "warm_start.steps": 200, "warm_start.check_every": 200, "warm_start.demonstrations": 2000,
    "warm_start.lengthen": 1000, "warm_start.noise_low": 0.1, "warm_start.noise_high": 0.3,
    "warm_start.check_tasks": 40, "warm_start.learning_rate": 0.005,
    "evaluation.tasks": 24, "evaluation.dev_tasks": 200, "evaluation.every": 2, "synthesis.contexts": 6,
    "synthesis.budget": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("sglang") / "run"
    flags = [f"--config.{name}={value}" for name, value in {**SMALL, "workdir": workdir, "engine": "sglang"}.items()]
    command = [sys.executable, "-m", "experiments.run", "--config=experiments/desk.py", *flags]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=patience(1_200), env=dict(os.environ)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return workdir


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_loop_runs_to_its_end_on_policy(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["steps"], set(summary["outcomes"]) <= {"finished", "truncated"}) == (4, True)
    assert 0 < summary["logprob_mismatch"] < 1e-4
    assert summary["seconds"]["sync"] > 0 < summary["seconds"]["generation"]
    records = lines(run / "metrics.jsonl")
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    assert max(record.get("logprob_mismatch_max", 0.0) for record in records) < 1e-3
    assert sum("evolution" in record for record in records) == 2
    assert sorted(path.name for path in (run / "weights").iterdir()) == ["3", "4"]
    assert "ready to roll" in (run / "sglang" / "server-0.log").read_text()


@pytest.mark.nightly
def test_greedy_success_on_200_tasks_is_that_of_the_local_engine(run: Path, tmp_path: Path) -> None:
    scores, answers = zip(*(greedy(name, run, tmp_path) for name in ("local", "sglang")), strict=True)
    assert abs(scores[0] - scores[1]) <= 1
    same = sum(one == other for one, other in zip(*answers, strict=True))
    assert same >= 195, f"{same} of 200 episodes have the same tokens"


def greedy(engine: str, run: Path, scratch: Path) -> tuple[int, list[tuple]]:
    """Tasks of the development split solved by the run's last weights, and the tokens of each episode."""
    config = desk.get_config()
    with config.unlocked():
        config.update_from_flattened_dict({**SMALL, "workdir": str(scratch), "engine.name": engine})
    made = assemble.build_parts(ConfigDict(config))
    params = load_params(run / "weights" / "4", made.model)
    made.engine.load(Weights(4, lambda: to_hf(made.model, params)))
    sampling = Sampling(temperature=0.0, max_tokens=24, stop_tokens=(made.chat.end,))
    collector = EpisodeCollector(PolicyActors(made.engine, made.chat, sampling), made.environment, made.limits)
    groups = collector.collect(made.development, seed=(0,), label="both")
    made.engine.close()
    found = compute_score(groups)
    assert found.tasks == 200
    return round(found.success * 200), [tokens(group) for group in groups]


def tokens(group: Group) -> tuple:
    return tuple(turn.action_tokens for trajectory in group.trajectories for turn in trajectory.turns)

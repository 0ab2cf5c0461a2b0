"""`cojax audit --trainer`: what faults become, here and in trainers that count them wrongly."""

from __future__ import annotations

import json

import jax
import pytest

from cojax.run import faults
from cojax.run.faults import Fault, Trainer
from cojax.types import Group, Trajectory
from environments.audit.__main__ import main

LOST = Fault("reset", "raises", lasts=True)


@pytest.fixture(scope="module")
def trainer():
    made = Trainer()
    yield made
    made.engine.close()


def test_it_strikes_an_episode_whose_reward_is_1(trainer):
    assert len(trainer.undisturbed) == 8
    assert (trainer.struck.reward, trainer.struck.valid) == (1.0, True)


@pytest.mark.parametrize(
    ("fault", "verdict", "word"),
    [
        (LOST, "infrastructure loss", "environment_error"),
        (Fault("reset", "finds its worker dead", lasts=False), "unchanged", "reward 1"),
        (Fault("step", "finds its worker dead", lasts=True), "infrastructure loss", "environment_error"),
        (Fault("step", "replies nothing", lasts=False), "unchanged", "reward 1"),
        (Fault("step", "replies nothing", lasts=True), "the action's doing", "timeout, reward 0"),
        (Fault("evaluate", "hangs", lasts=False), "unchanged", "reward 1"),
        (Fault("evaluate", "rewards by NaN", lasts=True), "infrastructure loss", "reward nan"),
        (Fault("evaluate", "raises if there was an action", lasts=False), "unchanged", "reward 1"),
        (Fault("evaluate", "raises if there was an action", lasts=True), "the action's doing", "timeout, reward 0"),
        (Fault("close", "raises", lasts=True), "unchanged", "reward 1"),
        (Fault("generate", "finds its server dead", lasts=True), "infrastructure loss", "engine_error"),
        (Fault("generate", "drifts from the tokens sampled", lasts=False), "error", "does not extend"),
        (Fault("generate", "returns a log-prob too few", lasts=False), "error", "log-probs"),
        (Fault("generate", "returns a log-prob of NaN", lasts=False), "error", "NonFiniteUpdate"),
    ],
    ids=str,
)
def test_a_fault_becomes_no_reward(trainer, fault, verdict, word):
    found, why = trainer.try_fault(fault)
    assert found == verdict
    assert word in why


def test_a_trainer_that_takes_losses_for_zeros_is_found(trainer, monkeypatch):
    monkeypatch.setattr(Trajectory, "valid", property(lambda self: True))
    assert trainer.try_fault(LOST)[0] == "reward"


def test_a_learner_that_learns_from_losses_is_found(trainer, monkeypatch):
    monkeypatch.setattr(Group, "valid", property(lambda self: self.trajectories))
    assert trainer.try_fault(LOST)[0] == "reward"


def test_a_dead_worker_that_is_charged_is_found(trainer, monkeypatch):
    monkeypatch.setattr("cojax.environment._decide_outcome", lambda error, progress: "timeout")
    assert trainer.try_fault(Fault("step", "finds its worker dead", lasts=True))[0] == "reward"


@pytest.mark.parametrize("verdict", ["reward", "error"])
def test_the_exit_status_is_1_for_a_reward(trainer, monkeypatch, capsys, verdict):
    monkeypatch.setattr(faults, "FAULTS", [LOST])
    monkeypatch.setattr(faults, "Trainer", lambda: trainer)
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setattr(trainer, "try_fault", lambda fault: (verdict, "why"))
    monkeypatch.setattr(trainer, "engine", type("Closed", (), {"close": lambda self: None})())
    assert main(["--trainer", "--json"]) == int(verdict == "reward")
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"fault": "reset raises, always", "became": verdict, "why": "why"}
    assert last["faults"] == last["became"][verdict] == 1


def test_every_deed_is_tried_once_and_lasting():
    assert len([fault for fault in faults.FAULTS if not fault.lasts]) == 27
    assert len(faults.FAULTS) == 54


def test_a_trainer_has_no_world(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["desk", "--trainer"])
    assert ended.value.code == 2
    assert "--trainer takes no world" in capsys.readouterr().err

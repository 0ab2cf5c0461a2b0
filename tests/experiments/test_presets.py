"""Presets: what they write into a configuration, what wins over them, what they refuse."""

import pytest
from ml_collections import ConfigDict

from cojax.run.checks import check_settings
from cojax.settings import base, presets
from cojax.settings.presets import PRESETS, apply_preset
from experiments import alfworld, appworld, bfcl, desk, paper, scienceworld, tau2


def test_a_preset_is_written_into_the_configuration():
    config = bfcl.get_config()
    config.policy = "tiny"
    resolved = apply_preset(config)
    assert (resolved.policy, resolved.model.path, resolved.model.tools) == ("tiny", "", "brief")
    assert (resolved.batch_size, resolved.group_size, resolved.evolve_every) == (8, 4, 1)
    assert resolved.model.shape.num_hidden_layers == 2
    assert resolved.optimizer.clip_norm == 1.0  # the default, which no preset names
    assert config.batch_size == 32  # the argument stays as it was


def test_explicit_flags_win():
    config = bfcl.get_config()
    config.policy = "tiny"
    config.model.tools = "full"
    config.batch_size = 7
    config.model.shape = ConfigDict({"hidden_size": 64})
    resolved = apply_preset(config, ["policy", "model.tools", "batch_size", "model.shape"])
    assert (resolved.model.tools, resolved.batch_size, resolved.group_size) == ("full", 7, 4)
    assert resolved.model.shape.to_dict() == {"hidden_size": 64}


def test_a_policy_of_a_short_context_gets_no_policy_text_unless_a_flag_asks_for_it():
    config = tau2.get_config()
    assert apply_preset(config).environment.instructions == "official"
    config.policy = "tiny"
    assert apply_preset(config).environment.instructions == "brief"
    assert apply_preset(config, ["environment.instructions"]).environment.instructions == "official"


def test_a_small_policy_is_evaluated_on_one_variation_of_each_task_of_scienceworld():
    config = scienceworld.get_config()
    config.policy = "tiny"
    evaluation = apply_preset(config).evaluation
    assert (evaluation.tasks, evaluation.dev_tasks) == (30, 30)
    assert apply_preset(config, ["evaluation.tasks"]).evaluation.tasks == 90


def test_smollm2_learns_its_own_initial_tasks_but_on_bfcl_the_solutions_of_dev():
    for experiment, learned, evaluated in (
        (bfcl, "dev", "held_out"),
        (tau2, "initial", "eval"),
        (desk, "initial", "eval"),
    ):
        config = experiment.get_config()
        config.policy = "smollm2"
        resolved = apply_preset(config)
        assert (resolved.warm_start.split, resolved.evaluation.split) == (learned, evaluated)


def test_no_preset_changes_nothing():
    assert apply_preset(desk.get_config()).to_dict() == desk.get_config().to_dict()


@pytest.mark.parametrize("experiment", [alfworld, appworld, base, bfcl, desk, paper, scienceworld, tau2])
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_every_experiment(name, experiment):
    config = experiment.get_config()
    config.policy = name
    resolved = apply_preset(config)
    check_settings(resolved)
    leaves = {path for path, _ in _leaves(resolved)}
    assert set(PRESETS[name]) <= leaves
    assert not any(isinstance(value, tuple) for value in PRESETS[name].values())


def _leaves(config, prefix=""):
    for name, value in config.items():
        if isinstance(value, ConfigDict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def test_an_unknown_preset_lists_the_others():
    config = desk.get_config()
    config.policy = "huge"
    with pytest.raises(ValueError, match=r"policy 'huge' not found; available: qwen3-4b, .*, smollm2, tiny, tiny-warm"):
        apply_preset(config)


@pytest.mark.parametrize("wrong", [{"model.colour": "red"}, {"paint.colour": "red"}, {"batch_size": "many"}])
def test_a_preset_that_does_not_fit_is_named(wrong, monkeypatch):
    monkeypatch.setitem(presets.PRESETS, "tiny", wrong)
    config = desk.get_config()
    config.policy = "tiny"
    with pytest.raises(ValueError, match=f"preset 'tiny' sets {next(iter(wrong))} to .*presets.toml"):
        apply_preset(config)


def test_an_experiment_without_a_policy_says_what_to_give():
    with pytest.raises(ValueError, match=r"no policy: set --config\.model\.path .*--config\.policy=tiny"):
        check_settings(base.get_config())

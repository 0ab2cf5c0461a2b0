"""What a configuration chooses, from here and from outside, and what it may set of it."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from commands import Commands
from ml_collections import ConfigDict

import environments
from cojax.registry import RegistryError
from cojax.run import entries, preflight
from cojax.run import train as run
from cojax.run.checks import check_settings
from cojax.run.entries import apply_flags, describe, entry, find_signals
from cojax.settings import base, flags
from experiments import bfcl, desk

ROOT = Path(__file__).parents[2]
MINE = """
from typing import Annotated

from cojax.registry.annotations import Range
from cojax.signals import Boundary
from environments.desk import Desk

RESERVED = ("eval",)


def steep(scores, *, power: Annotated[float, Range(0.0)] = 2.0, floor: float):
    return sum(scores) ** power + floor


def plain(logprobs, *, kl_coefficient: float = 0.25):
    return -logprobs, {}


def old(logprobs, batch):
    return -logprobs, {}


def rooms(*, doors: int = 1):
    return Desk()


def endless(scores, *, most: float = float("inf")):
    return 1.0


def ranked(logprobs, groups):
    return -logprobs * groups, {}


def last(scores):
    return scores[-1]


def paired(lengths, others):
    return lengths


def heavy(lengths):
    return 1.0


def unlike(*, threshold: Annotated[float, Range(0.0, 1.0)] = 0.5):
    return Boundary(threshold=threshold)


class Remembered(Boundary):
    name = "beliefs"
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `mine_of_entries` in the current folder."""
    (tmp_path / "mine_of_entries.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine_of_entries", None)


def refusal(config: ConfigDict) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        check_settings(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_flags_choose_another_loss_which_starts_from_its_own_signature() -> None:
    config = desk.get_config()
    assert entry(config, "learner.loss").overrides == {"kl_coefficient": 0.0}
    assert entry(base.get_config(), "learner.loss").overrides == {"kl_coefficient": 1e-3}  # the paper's
    other = apply_flags(config, {"learner.loss": "sft"})
    assert entry(other, "learner.loss").overrides == {}
    check_settings(other)
    same = apply_flags(config, {"learner.loss": "grpo", "learner.loss_settings.clip_high": "0.4"})
    assert entry(same, "learner.loss").overrides == {"kl_coefficient": 0.0, "clip_high": 0.4}
    assert config.learner.loss_settings.to_dict() == {"kl_coefficient": 0.0}  # the argument stays as it was


def test_a_loss_of_ones_own_with_its_own_settings(mine: None) -> None:
    given = {"learner.loss": "mine_of_entries:plain", "learner.loss_settings.kl_coefficient": "1"}
    chosen = entry(apply_flags(base.get_config(), given), "learner.loss")
    assert chosen.overrides == {"kl_coefficient": 1.0}
    assert chosen.function(3.0)[0] == -3.0
    del given["learner.loss_settings.kl_coefficient"]
    assert entry(apply_flags(base.get_config(), given), "learner.loss").overrides == {}  # not the paper's 1e-3


def test_the_settings_of_entries_of_ones_own(mine: None) -> None:
    given = {
        "curriculum": "mine_of_entries:steep",
        "curriculum_settings.floor": "0.5",
        "signals": "mine_of_entries:unlike,rare",
        "signal_settings.unlike.threshold": "0.25",
        "environment.name": "mine_of_entries:rooms",
        "environment.doors": "3",
    }
    config = desk.get_config()
    config.signals = given.pop("signals")
    config = apply_flags(config, given)
    check_settings(config)
    assert entry(config, "curriculum").bind()([1.0, 1.0]) == 4.5
    assert list(find_signals(config)) == ["rare", "unlike"]
    assert find_signals(config)["unlike"].bind()().threshold == 0.25
    assert entry(config, "environment.name").overrides == {"doors": 3}
    told = describe(config)
    assert told["curriculum"]["path"] == "mine_of_entries:steep"
    assert told["curriculum"]["settings"] == {"power": 2.0, "floor": 0.5}
    assert len(told["signals.unlike"]["hash"]) == 64
    assert told["signals.rare"]["settings"] == {"percent": 2.0, "minimum": 256, "pattern": 1, "failed": False}
    assert json.loads(json.dumps(told)) == told


def test_no_signal_has_the_name_of_a_statistic(mine) -> None:
    config = desk.get_config()
    config.signals = "mine_of_entries:Remembered"
    said = "its name is 'beliefs'; expected a lower-case word other than beliefs, credits, frontier, played"
    with pytest.raises(RegistryError, match=said):
        entries.build_signals(config)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"learner.loss": "sftt"}, "loss 'sftt' not found; available: grpo, gspo, cispo, dual_clip, sft, dpo"),
        ({"learner.loss": "sft", "learner.loss_settings.clip": "1"},
         "loss 'sft' has no setting learner.loss_settings.clip; it has none"),
        ({"curriculum": "mine_of_entries:steep"},
         "curriculum 'mine_of_entries:steep' needs its setting curriculum_settings.floor: a number"),
        ({"curriculum": "mine_of_entries:steep", "curriculum_settings.floor": "low"},
         "curriculum_settings.floor is 'low'; expected a number"),
        ({"curriculum": "mine_of_entries:steep", "curriculum_settings.floor": "1", "curriculum_settings.power": "-1"},
         "curriculum_settings.power is -1; expected a number at least 0"),
        ({"signal_settings.rare.minimum": "-1"}, "signal_settings.rare.minimum is -1; expected a whole number"),
        ({"signal_settings.rare.pattern": "some"},
         "signal_settings.rare.pattern is 'some'; expected 'sequence' or a whole number at least 1"),
        ({"signal_settings.rare.pattern": "0"},
         "signal_settings.rare.pattern is 0; expected 'sequence' or a whole number at least 1"),
        ({"signal_settings.forgetting.window": "0"},
         "signal_settings.forgetting.window is 0; expected a whole number at least 1"),
        ({"environment.isolated": "maybe"}, "environment.isolated is 'maybe'; expected True or False"),
        ({"environment.walls": "4"}, "environment 'desk' has no setting environment.walls; it has isolated"),
        ({"environment.name": "mine_of_entries:cellar"}, "defines no 'cellar'"),
        ({"learner.loss_settings.clip_low": "-3"}, "loss_settings.clip_low is -3; expected a number from 0 to 1"),
        ({"learner.loss": "mine_of_entries:old"}, "loss 'mine_of_entries:old' reads 'batch', which is not an input"),
        ({"learner.weighting": "constant_length"},
         "weighting 'constant_length' needs its setting learner.weighting_settings.length: a whole number at least 1"),
        ({"learner.loss": "dpo", "learner.weighting": "sequence_mean"}, "loss 'dpo' gives every pair the same weight"),
        ({"learner.advantage": "success", "learner.advantage_settings.epsilon": "1"},
         "advantage 'success' has no setting learner.advantage_settings.epsilon; it has none"),
        ({"learner.loss_settings.deep.er": "1"}, "learner.loss_settings.deep.er is not a setting"),
        ({"signal_settings.rare": "1"}, "signal_settings.rare is not a setting"),
        ({"learner.loss": "mine_of_entries:ranked"},
         "compares 8 episodes, which must share a micro-batch, and learner.micro_rows is 4; set --config.learn"),
        ({"learner.weighting": "mine_of_entries:paired"}, "is called with lengths and its settings"),
        ({"learner.weighting": "mine_of_entries:heavy"}, "was tried and failed: TypeError: 'float' object is not iter"),
        ({"curriculum": "mine_of_entries:last"}, "'mine_of_entries:last' was tried and failed: IndexError"),
        ({"learner.loss_settings.token_low": "2", "learner.loss_settings.token_high": "0.5"},
         "the mask's lower bound 2.0 is above its upper bound 0.5"),
    ],
)  # fmt: skip
def test_what_an_entry_may_not_be_set_to_is_told_in_one_line(mine: None, given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        check_settings(apply_flags(desk.get_config(), given))


def test_settings_of_no_signal_and_two_signals_of_one_name(mine: None) -> None:
    config = desk.get_config()
    config.signal_settings.rair = ConfigDict({"percent": 1.0})
    assert refusal(config) == (
        "signal_settings.rair belongs to no signal; did you mean signal_settings.rare? there are forgetting, boundary, "
        "rare"
    )
    config = desk.get_config()
    config.signals = "mine_of_entries:unlike,other_of_entries:unlike"
    assert "'other_of_entries:unlike' have one name" in refusal(config)


@pytest.mark.parametrize("leaf", ["evolve", "curriculum", "engine.name", "explorer.name"])
def test_an_empty_name_is_refused(leaf: str) -> None:
    """All of these were found wanting after the warm start."""
    config = desk.get_config()
    base.put(config, leaf, "")
    assert "'' not found; available: " in refusal(config)


def test_an_infinite_default_is_written_down(mine: None) -> None:
    told = describe(apply_flags(desk.get_config(), {"curriculum": "mine_of_entries:endless"}))
    assert told["curriculum"]["settings"] == {"most": "inf"}


def test_what_an_environment_from_outside_keeps_is_read_where_it_is_named(mine: None) -> None:
    assert environments.list_reserved("mine_of_entries:rooms") == ("eval",)
    assert environments.list_reserved("mine_of_entries:Desk") == ("eval",)  # a class of another file


def test_settings_of_a_signal_that_is_off_do_no_harm() -> None:
    config = desk.get_config()
    config.signals = "forgetting"
    check_settings(config)
    assert list(find_signals(config)) == ["forgetting"]


def test_flags_of_entries_are_told_from_the_others() -> None:
    found: dict[str, str] = {"left": "over"}
    rest = flags._move_entry_flags(
        [
            "--config=x.py", "--config.seed=1", "--config.learner.loss=sft", "--config.learner.loss_settings.a=b=c",
            "-config.curriculum", "learnability", "--config.environment.name=desk", "--config.learner.lora.rank=2",
            "--check", "--", "--config.learner.loss=no",
        ],
        found,
    )  # fmt: skip
    assert rest == [
        "--config=x.py", "--config.seed=1", "--config.learner.lora.rank=2", "--check", "--", "--config.learner.loss=no",
    ]  # fmt: skip
    assert found == {
        "learner.loss": "sft", "learner.loss_settings.a": "b=c", "curriculum": "learnability",
        "environment.name": "desk",
    }  # fmt: skip


def test_every_choice_names_an_entry() -> None:
    for experiment in (desk, bfcl):
        for leaf, choice in entries.CHOICES.items():
            name = base.at(experiment.get_config(), leaf)
            assert not name or callable(choice.find(name))


@pytest.mark.real
def test_a_loss_chosen_by_a_flag_just_works(commands: Commands, tmp_path: Path) -> None:
    small = ("model.shape.hidden_size=32", "model.shape.num_hidden_layers=1", "batch_size=1", "evaluation.tasks=2")
    given = ("learner.loss=sft", f"workdir={tmp_path}/run", "warm_start.steps=0", *small)
    done = commands.run(
        "experiments.run", "--config=experiments/desk.py", *(f"--config.{one}" for one in given), "--check",
        environment={**os.environ, "COJAX_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_value_out_of_range_is_refused_by_check_and_run_alike(tmp_path: Path, capsys) -> None:
    config = apply_flags(desk.get_config(), {"signal_settings.rare.percent": "-1"})
    config.workdir = str(tmp_path / "run")
    said = "signal_settings.rare.percent is -1.0; expected a number from 0 to 100"
    assert preflight.run_preflight(config) == 1
    assert f"failed  configuration: {said}" in capsys.readouterr().out
    with pytest.raises(ValueError, match=said):
        run.run(config)
    assert not (tmp_path / "run").exists()

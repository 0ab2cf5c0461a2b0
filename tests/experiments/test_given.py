"""A configuration that was given as an object is the same once the command has read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cojax.api.training import config_flag, flags_of
from cojax.settings import base
from cojax.settings.config_file import FlagError, load_config
from experiments import desk


def passed(config: object) -> object:
    with config_flag(config) as (flag,):  # type: ignore[arg-type]
        assert Path(flag.rpartition(":")[2]).exists()
        return load_config(flag.removeprefix("--config="))


def test_an_object_is_passed_on_whole() -> None:
    config = desk.get_config()
    config.explorer.stretch = (-1, 2)
    config.learner.loss_settings.clip = 0.25
    assert passed(config).to_dict() == config.to_dict()  # type: ignore[attr-defined]


def test_a_dict_is_over_the_papers_configuration_in_sections_or_by_dotted_names() -> None:
    found = passed({"steps": 3, "learner": {"loss": "gspo"}, "learner.row_length": 64}).to_dict()  # type: ignore[attr-defined]
    whole = base.get_config().to_dict()
    assert (found["steps"], found["learner"]["loss"], found["learner"]["row_length"]) == (3, "gspo", 64)
    whole["steps"], whole["learner"]["loss"], whole["learner"]["row_length"] = 3, "gspo", 64
    assert found == whole


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"lerner": {"loss": "x"}}, "lerner.loss is not a setting; did you mean learner.loss"),
        ({"learner": 3}, "learner is missing from the configuration|learner is 3; expected a section"),
        ({"batch_size": "many"}, "batch_size is 'many'; expected a whole number"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(config: dict, message: str) -> None:
    with pytest.raises(FlagError, match=message) as refused:
        passed(config)
    assert str(refused.value).startswith("the configuration that was given: ")
    assert "\n" not in str(refused.value)


def test_settings_are_flags() -> None:
    given = {"evolve": "none", "learner": {"lora": {"targets": ["query", "value"]}}, "seed": 1, "wandb.project": None}
    assert flags_of(given) == [
        "--config.evolve=none", "--config.learner.lora.targets=('query', 'value')", "--config.seed=1",
        "--config.wandb.project=None",
    ]  # fmt: skip


def test_the_file_of_an_object_is_gone_afterwards() -> None:
    with config_flag({"steps": 3}) as (flag,):
        file = Path(flag.rpartition(":")[2])
        assert json.loads(file.read_text()) == {"steps": 3}
    assert not file.exists()

"""Settings that were renamed, and settings that an older run lacks."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest

from cojax.run import entries
from cojax.run.checks import check_settings
from cojax.settings import base
from cojax.settings.compatibility import check_begun, rename_keys
from cojax.settings.ranges import GONE_SETTINGS
from cojax.storage.checkpoint import CheckpointError
from experiments import continued, desk


def test_an_absent_key_is_its_default_of_today() -> None:
    stored = {"steps": 3, "llm": {"timeout": 5.0}, "signal_settings": {"rare": {"percent": 1.0}}}
    filled = rename_keys(stored, base.get_config().to_dict())
    assert filled["steps"] == 3
    assert filled["llm"]["timeout"] == 5.0
    assert filled["llm"]["concurrency"] == 8
    assert filled["explorer"]["stretch"] == [-1, 0, 1, 2]  # as JSON holds it
    assert filled["signal_settings"] == {"rare": {"percent": 1.0}}
    assert stored == {"steps": 3, "llm": {"timeout": 5.0}, "signal_settings": {"rare": {"percent": 1.0}}}


def test_a_release_that_took_a_model_folder_as_it_is_showed_it_nothing() -> None:
    defaults = base.get_config().to_dict()
    old = {"model": {"path": "models/Q"}, "warm_start": {"steps": 450}}
    assert rename_keys(old, defaults)["warm_start"]["steps"] == 0
    assert rename_keys({**old, "model": {"path": ""}}, defaults)["warm_start"]["steps"] == 450
    new = {"model": {"path": "models/Q"}, "warm_start": {"steps": 450, "epochs": False}}
    assert rename_keys(new, defaults)["warm_start"]["steps"] == 450


def test_a_relative_model_folder_of_another_release_is_that_of_the_command(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    defaults = base.get_config().to_dict()
    assert rename_keys({"model": {"path": "models/Q"}}, defaults)["model"]["path"] == f"{tmp_path}/models/Q"
    assert rename_keys({"model": {"path": "/models/Q"}}, defaults)["model"]["path"] == "/models/Q"
    assert rename_keys({"model": {"path": ""}}, defaults)["model"]["path"] == ""


def test_of_an_entry_the_papers_setting_comes_before_its_own() -> None:
    defaults = entries.list_defaults(desk.get_config())
    assert defaults["learner"]["loss_settings"] == {"kl_coefficient": 1e-3}
    assert defaults["environment"] == {"name": "", "cluster": "", "isolated": False}
    assert defaults["signal_settings"]["rare"] == {"pattern": "sequence", "percent": 5.0}


OLD = {name: value for name, (value, _) in GONE_SETTINGS.items()}  # as the release before wrote them


def old_settings(**changed: object) -> dict:
    """The settings that the release before wrote, with other values of some that are gone."""
    stored = json.loads(json.dumps(desk.get_config().to_dict()))
    for name, value in {**OLD, **changed}.items():
        section, _, key = name.rpartition(".")
        functools.reduce(dict.__getitem__, section.split("."), stored)[key] = value
    return stored


def test_a_run_of_the_release_before_goes_on_as_if_the_settings_that_are_gone_had_never_been(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": old_settings()}))
    check_settings(continued.get_config(str(tmp_path)))
    assert rename_keys(old_settings(), base.get_config().to_dict()) == json.loads(
        json.dumps(desk.get_config().to_dict())
    )


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("llm.attempts", 9, "let a proxy"),
        ("optimizer.decay_to", 0.2, "give"),
        ("warm_start.lora.targets", ["key"], "ad"),
    ],
)
def test_a_run_with_another_value_of_a_setting_that_is_gone_is_refused(
    name: str, value: object, instead: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": old_settings(**{name: value})}))
    said = f"the run was made with {name}={value!r}, no longer a setting: it is always {OLD[name]!r} now. Go on"
    with pytest.raises(CheckpointError, match=re.escape(said)) as caught:
        continued.get_config(str(tmp_path))
    assert f"In a new run, {instead}" in str(caught.value)
    check_begun(tmp_path)  # it never reached a checkpoint: there is nothing to go on from
    (tmp_path / "checkpoints/1").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        check_begun(tmp_path)


def test_a_run_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    config = desk.get_config()
    config.explorer.stretch, config.learner.skip_steps, config.seed = (0, 1), (3,), 7
    stored = json.loads(json.dumps(config.to_dict()))
    del stored["quality"], stored["llm"]["timeout"]
    (tmp_path / "config.json").write_text(json.dumps({"config": stored}))
    again = continued.get_config(str(tmp_path))
    config.workdir = str(tmp_path)
    assert again.to_dict() == config.to_dict()
    check_settings(again)


def damaged(folder: Path, text: str) -> str:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        continued.get_config(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{folder}/config.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", " holds no settings of a run: it is not JSON ("),
        ("[]", " holds no settings of a run: it holds list instead of an object. Restore it from a copy"),
        ('{"config": null}', " holds no settings of a run: it has no section `config`"),
        ("[" * 100_000, " holds no settings of a run: its JSON is too deep"),
        ('{"config": ' + '{"a": ' * 400 + "1" + "}" * 401, ": 'a.a.a."),
        ('{"config": {"learner": null}}', " holds no settings of a run: model, learner and learner.lora must be"),
    ],
)
def test_a_damaged_configuration_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    assert damaged(tmp_path, text).startswith(said)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("steps", "abc", "steps is 'abc'; expected a whole number at least 0"),
        ("steps", True, "steps is True; expected a whole number"),
        ("steps", {"a": 1}, "steps is a section; expected a whole number"),
        ("steps", 10**400, "steps is a whole number of very many digits; expected a whole number at least 0, of "),
        ("optimizer.learning_rate", 10**400, "optimizer.learning_rate is a whole number of very many digits"),
        ("llm", 3, "llm is 3; expected a section"),
        ("signal_settings.rare", 3, "signal_settings.rare is 3; expected the section of a signal"),
        ("llm.timeuot", 3, "llm.timeuot is not a setting; did you mean llm.timeout?"),
    ],
)  # fmt: skip
def test_a_stored_setting_that_no_run_can_have_is_named(name: str, value: object, said: str, tmp_path: Path) -> None:
    stored = desk.get_config().to_dict()
    *above, last = name.split(".")
    place = stored
    for part in above:
        place = place[part]
    place[last] = value
    assert damaged(tmp_path, json.dumps({"config": stored})).startswith(f": {said}")

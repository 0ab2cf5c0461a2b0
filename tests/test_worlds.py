"""Environments by name, where the folder is beside `cojax`; tests/test_wheels.py has it within."""

from __future__ import annotations

import cojax
import environments
import environments.worker.venv
from cojax import worlds


def test_an_environment_is_loaded_by_one_name_from_everywhere() -> None:
    desk = cojax.load_environment("desk", isolated=False)
    assert type(desk) is type(environments.load("desk")) is environments.desk.Desk
    assert cojax.load_environment is environments.load is worlds.load
    assert "load_environment" in dir(cojax)
    assert "load_environment" not in cojax.__all__


def test_what_is_no_environment_is_not_available() -> None:
    assert worlds.available() == [
        "alfworld", "appworld", "bfcl", "desk", "mcp", "openenv", "scienceworld", "tau2", "verifiers",
    ]  # fmt: skip


def test_parts_of_the_folder_are_found_by_their_names() -> None:
    assert worlds.import_part("worker.venv") is environments.worker.venv
    assert str(worlds.FOLDER) == environments.__path__[0]


def test_what_names_mean_in_a_world_from_outside_is_its_own_business(tmp_path, monkeypatch) -> None:
    (tmp_path / "outsider.py").write_text("KINDS = ('a', 'b', 'c')\nmeasures = None\n\n\ndef make(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert worlds.measures("outsider:make", []) == {}
    assert worlds.read_own_names("outsider:make") == {}
    assert worlds.read_own_names("appworld")["KINDS"][0] == "scenario"

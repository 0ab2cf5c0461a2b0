"""ALFWorld's games: what is missing is said in the first second, and what was installed is found and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments import install as command
from environments.alfworld import data, prompts
from environments.worker.venv import InstallError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path))
    return tmp_path


def game(folder: Path, name: str, *, solvable: bool = True, task: str = "put a pen in shelf") -> None:
    file = folder / name / "game.tw-pddl"
    file.parent.mkdir(parents=True)
    told = {"solvable": solvable, "walkthrough": ["go to shelf 1"], "grammar": f'x "Your task is to: {task}."'}
    file.write_text(json.dumps(told))


def test_games_that_are_not_there_are_named_with_the_ways_to_have_them() -> None:
    with pytest.raises(InstallError, match=r"tiny games are not in .* Run: python -m environments.install alf"):
        data.games("tiny")
    with pytest.raises(InstallError, match=r"(?s)official games are not in .*--data=tiny   generates games here"):
        data.listed("official")


def test_without_a_compiler_the_installation_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["alfworld", "--data=tiny"]) == 1
    assert "alfworld needs the program cmake, which is not on PATH; on Debian" in capsys.readouterr().err


def test_the_list_has_the_solvable_games_as_the_official_loader_takes_them(own_cache: Path) -> None:
    root = own_cache / "alfworld" / "official"
    games = root / "json_2.1.1"
    for split in data.SPLITS:
        game(games, f"{split}/look_at_obj_in_light-Pen-None-DeskLamp-1/trial_1", task="look at pen under the desklamp")
    game(games, "train/pick_and_place_simple-Pen-None-Shelf-1/trial_2")
    game(games, "train/pick_and_place_with_movable_recep-Pen-Box-Shelf-1/trial_1")
    game(games, "train/pick_and_place_simple-AppleSliced-None-Fridge-1/trial_1")
    game(games, "train/pick_and_place_simple-Mug-None-Shelf-1/trial_1", solvable=False)
    data._write_list(root)
    found = data.listed("official")
    assert [(one.game.split("/")[1], one.split) for one in found] == [
        ("look_at_obj_in_light-Pen-None-DeskLamp-1", "train"),
        ("pick_and_place_simple-Pen-None-Shelf-1", "train"),
        ("look_at_obj_in_light-Pen-None-DeskLamp-1", "valid_seen"),
        ("look_at_obj_in_light-Pen-None-DeskLamp-1", "valid_unseen"),
    ]
    assert found[1] == data.Listed(
        "train/pick_and_place_simple-Pen-None-Shelf-1/trial_2", "train", "put a pen in shelf", ("go to shelf 1",)
    )


def test_a_split_without_a_game_is_an_error(own_cache: Path) -> None:
    root = own_cache / "alfworld" / "official"
    game(root / "json_2.1.1", "train/pick_and_place_simple-Pen-None-Shelf-1/trial_2")
    with pytest.raises(InstallError, match="no solvable game in valid_seen, valid_unseen"):
        data._write_list(root)


def test_what_is_installed_is_chosen_the_official_games_first(own_cache: Path) -> None:
    assert (data.chosen("installed"), data.chosen("tiny")) == ("official", "tiny")
    for name, chosen in (("tiny", "tiny"), ("official", "official")):
        root = data._root(name)
        root.mkdir(parents=True)
        (root / "games.json").write_text("[]")
        assert data.chosen("installed") == chosen


def test_the_system_message_lists_the_commands_or_does_not() -> None:
    assert "clean THING with PLACE" in prompts.instructions("full")
    assert prompts.instructions("full").startswith(prompts.instructions("brief"))
    with pytest.raises(ValueError, match="instructions 'long' not found; available: full, brief"):
        prompts.instructions("long")

"""ALFWorld's games: what is missing is said in the first second, and what a user has is found and listed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments import install as command
from environments.alfworld import data, inside, tiny
from environments.worker.venv import InstallError


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COJAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "data"))
    return tmp_path / "cache"


def game(folder: Path, name: str, *, solvable: bool = True, task: str = "put a pen in shelf") -> None:
    file = folder / name / "game.tw-pddl"
    file.parent.mkdir(parents=True)
    told = {"solvable": solvable, "walkthrough": ["go to shelf 1"], "grammar": f'x "Your task is to: {task}."'}
    file.write_text(json.dumps(told))


def downloaded(data_folder: Path, kind: str = "look_at_obj_in_light-Pen-None-DeskLamp-1") -> Path:
    """Official games, one in each split."""
    for split in data.SPLITS:
        game(data_folder / "json_2.1.1", f"{split}/{kind}/trial_1", task="look at pen under the desklamp")
    return data_folder / "json_2.1.1"


def provide(name: str) -> list[str]:
    said: list[str] = []
    data.provide(name, "no-python", said.append)
    return said


def test_games_that_are_not_there_are_named_with_the_ways_to_have_them(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match=r"tiny games are not in .* Run: cojax install alf"):
        data.find_root("tiny")
    with pytest.raises(InstallError, match=r"(?s)official games are not in .*--data=tiny   generates games here"):
        data.find_root("official")
    with pytest.raises(InstallError, match=r"(?s)not in .*data/json_2.1.1: no folder train\. .*alfworld-download"):
        provide("official")


def test_without_a_compiler_the_installation_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command.main(["alfworld", "--data=tiny"]) == 1
    assert "alfworld needs the program cmake, which is not on PATH; on Debian" in capsys.readouterr().err


def test_official_games_are_used_where_they_are_and_listed_once(tmp_path: Path, monkeypatch) -> None:
    folder = downloaded(tmp_path / "data")
    assert provide("official") == [f"alfworld: 3 official games ready in {folder}"]
    assert provide("official") == [f"alfworld: official games already in {folder}"]
    assert data.find_games_folder(data.find_root("official")) == folder
    assert sorted(file.name for file in folder.rglob("*") if file.is_file()) == ["game.tw-pddl"] * 3
    monkeypatch.delenv("ALFWORLD_DATA")
    assert provide("official") == [f"alfworld: official games already in {folder}"]


def test_another_folder_takes_the_place_of_the_first_if_it_has_games(tmp_path: Path, monkeypatch) -> None:
    first, second = (
        downloaded(tmp_path / "data"),
        downloaded(tmp_path / "other", "pick_and_place_simple-Pen-None-Shelf-1"),
    )
    provide("official")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nothing"))
    with pytest.raises(InstallError, match=r"nothing/json_2.1.1: no folder train"):
        provide("official")
    assert data.find_games_folder(data.find_root("official")) == first
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "other"))
    assert provide("official") == [f"alfworld: 3 official games ready in {second}"]
    assert {one["game"].split("/")[1] for one in data.read_game_list(data.find_root("official"))} == {
        "pick_and_place_simple-Pen-None-Shelf-1"
    }


def test_games_that_are_no_more_there_are_an_error(tmp_path: Path) -> None:
    folder = downloaded(tmp_path / "data")
    provide("official")
    folder.rename(tmp_path / "moved")
    with pytest.raises(InstallError, match="official games are not in"):
        data.find_root("official")


def test_the_list_has_the_solvable_games_as_the_official_loader_takes_them(tmp_path: Path) -> None:
    games = downloaded(tmp_path / "data")
    game(games, "train/pick_and_place_simple-Pen-None-Shelf-1/trial_2")
    game(games, "train/pick_and_place_with_movable_recep-Pen-Box-Shelf-1/trial_1")
    game(games, "train/pick_and_place_simple-AppleSliced-None-Fridge-1/trial_1")
    game(games, "train/pick_and_place_simple-Mug-None-Shelf-1/trial_1", solvable=False)
    provide("official")
    found = data.read_game_list(data.find_root("official"))
    assert [(one["game"].split("/")[1], one["split"]) for one in found] == [
        ("look_at_obj_in_light-Pen-None-DeskLamp-1", "train"),
        ("pick_and_place_simple-Pen-None-Shelf-1", "train"),
        ("look_at_obj_in_light-Pen-None-DeskLamp-1", "valid_seen"),
        ("look_at_obj_in_light-Pen-None-DeskLamp-1", "valid_unseen"),
    ]
    assert found[1] == {
        "game": "train/pick_and_place_simple-Pen-None-Shelf-1/trial_2",
        "split": "train",
        "task": "put a pen in shelf",
        "walkthrough": ["go to shelf 1"],
    }


def test_a_split_without_a_solvable_game_is_an_error(tmp_path: Path) -> None:
    for split in data.SPLITS:
        name = f"{split}/pick_and_place_simple-Pen-None-Shelf-1/trial_1"
        game(tmp_path / "data" / "json_2.1.1", name, solvable=split == "train")
    with pytest.raises(InstallError, match="no solvable game in valid_seen, valid_unseen"):
        provide("official")


@pytest.mark.parametrize(
    ("place", "name"),
    [("Fridge-1", "Fridge_bar_1"), ("SinkBasin-2", "Sink_bar_2_bar_SinkBasin"), ("GarbageCan-1", "GarbageCan_bar_1")],
)
def test_receptacles_are_named_as_the_package_reads_names(place: str, name: str) -> None:
    assert tiny._pddl_name(place) == name


def test_the_rooms_of_a_number_are_always_furnished_alike() -> None:
    assert tiny._list_receptacles("bathroom", 1) == tiny._list_receptacles("bathroom", 1)
    furnished = {tuple(tiny._list_receptacles("kitchen", number)) for number in range(1, 7)}
    assert len(furnished) > 1
    assert all({"Fridge-1", "Microwave-1", "SinkBasin-1"} <= set(room) for room in furnished)


def test_the_system_message_lists_the_commands_or_does_not() -> None:
    assert "clean THING with PLACE" in inside.system_message("full")
    assert inside.system_message("full").startswith(inside.system_message("brief"))
    with pytest.raises(ValueError, match="instructions 'long' not found; available: full, brief"):
        inside.system_message("long")

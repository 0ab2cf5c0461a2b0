"""The settings of the environment `mcp`: commands, variables, setups, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import environments
from environments.mcp import _setups, make
from environments.mcp.command import files_of, variables_of, words_of


def test_a_command_s_files_become_absolute_and_its_other_words_stay(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "server.py").touch()
    monkeypatch.chdir(tmp_path)
    words = words_of(f"{sys.executable} server.py --root . 'two words'")
    assert words == [sys.executable, str(tmp_path / "server.py"), "--root", ".", "two words"]
    shown = files_of(words)
    assert str(Path(sys.executable).parents[1]) in shown
    assert str(tmp_path) in shown


@pytest.mark.parametrize(
    ("command", "why"),
    [("", "command is empty"), ("'half", "No closing quotation"), ("no-such-program-here", "is no program on PATH")],
)
def test_a_command_that_starts_nothing_is_refused(command: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        words_of(command)


def test_a_bare_variable_has_its_value_here(monkeypatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    assert variables_of("A_TOKEN B=2 C='x y' D=") == {"A_TOKEN": "secret", "B": "2", "C": "x y", "D": ""}
    monkeypatch.delenv("A_TOKEN")
    with pytest.raises(ValueError, match="'A_TOKEN', which is not set here"):
        variables_of("A_TOKEN")
    with pytest.raises(ValueError, match="variables names '2A'; expected NAME=VALUE"):
        variables_of("2A=1")


def test_setups_are_a_file_s_or_one_for_each_folder(tmp_path: Path) -> None:
    assert _setups("", None) == [{}]
    folders = tmp_path / "starts"
    for name in ("b", "a"):
        (folders / name).mkdir(parents=True)
    assert _setups("", folders) == [{"folder": "a"}, {"folder": "b"}]
    given = [{"calls": [{"name": "add", "arguments": {"title": "tea"}}]}, {"folder": "a"}]
    (tmp_path / "setups.json").write_text(json.dumps(given))
    assert _setups(str(tmp_path / "setups.json"), folders) == given
    with pytest.raises(ValueError, match="a setup names the folder 'c'"):
        _setups('[{"folder": "c"}]', folders)
    with pytest.raises(ValueError, match="expected a list of objects"):
        _setups("[]", folders)
    with pytest.raises(ValueError, match="holds no folders"):
        _setups("", tmp_path / "none")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"server": "gti"}, "server 'gti' not found; available: sqlite, git, filesystem; or give a `command`"),
        ({"command": "true", "errors": "("}, "which is no regular expression"),
    ],
)
def test_settings_that_make_no_environment_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make(**settings)


def test_settings_from_flags_have_their_types() -> None:
    given = {"command": "true", "deadline": "5", "concurrency": "2"}
    assert environments.settings_from_text("mcp", given) == {"command": "true", "deadline": 5.0, "concurrency": 2}

"""The settings of the environment `mcp`: commands, variables, setups, and what is refused."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path

import pytest

import environments
from environments.mcp import _read_setups, cases, make
from environments.mcp.launch import list_files, read_address, read_headers, read_variables, split_command
from environments.mcp.resources import pages


def test_a_command_s_files_become_absolute_and_its_other_words_stay(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "server.py").touch()
    monkeypatch.chdir(tmp_path)
    words = split_command(f"{sys.executable} server.py --root . 'two words'")
    assert words == [sys.executable, str(tmp_path / "server.py"), "--root", ".", "two words"]
    shown = list_files(words)
    assert str(Path(sys.executable).parents[1]) in shown
    assert str(tmp_path) in shown


@pytest.mark.parametrize(
    ("command", "why"),
    [("", "command is empty"), ("'half", "No closing quotation"), ("no-such-program-here", "is not a program on PATH")],
)
def test_a_command_that_starts_nothing_is_refused(command: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split_command(command)


def test_a_bare_variable_has_its_value_here(monkeypatch) -> None:
    monkeypatch.setenv("A_TOKEN", "secret")
    assert read_variables("A_TOKEN B=2 C='x y' D=") == {"A_TOKEN": "secret", "B": "2", "C": "x y", "D": ""}
    monkeypatch.delenv("A_TOKEN")
    with pytest.raises(ValueError, match="'A_TOKEN', which is not set here"):
        read_variables("A_TOKEN")
    with pytest.raises(ValueError, match="variables names '2A'; expected NAME=VALUE"):
        read_variables("2A=1")


def test_setups_are_a_file_s_or_one_for_each_folder(tmp_path: Path) -> None:
    assert _read_setups("", None) == [{}]
    folders = tmp_path / "starts"
    for name in ("b", "a"):
        (folders / name).mkdir(parents=True)
    assert _read_setups("", folders) == [{"folder": "a"}, {"folder": "b"}]
    given = [{"calls": [{"name": "add", "arguments": {"title": "tea"}}]}, {"folder": "a"}]
    (tmp_path / "setups.json").write_text(json.dumps(given))
    assert _read_setups(str(tmp_path / "setups.json"), folders) == given
    with pytest.raises(ValueError, match="a setup names the folder 'c'"):
        _read_setups('[{"folder": "c"}]', folders)
    with pytest.raises(ValueError, match="expected a list of objects"):
        _read_setups("[]", folders)
    with pytest.raises(ValueError, match="holds no folders"):
        _read_setups("", tmp_path / "none")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"server": "gti"}, "server 'gti' not found; available: sqlite, git, filesystem; or give a `command`"),
        ({"command": "true", "errors": "("}, "which is not a regular expression"),
        ({"command": "true", "ids": "("}, "which is not a regular expression"),
        ({"command": "true", "ids": "[0-9]*"}, "also finds an empty text"),
        ({"url": "http://localhost/mcp"}, "a server at a url is not confined: .* set unconfined=True"),
        ({"url": "http://localhost/mcp", "command": "true"}, "command and url name two servers"),
        ({"url": "http://localhost/mcp", "folders": "starts"}, "folders is given, but a server at a url starts"),
        ({"command": "true", "headers": "X=Y"}, "headers is given, but a command takes `variables`"),
        ({"command": "true", "reset": "clear"}, "each episode has a server of its own; leave it out, or set reuse"),
        ({"command": "true", "reuse": True}, "no reset leads a server of a command back to its start; name in `reset`"),
        (
            {"url": "http://localhost/mcp", "unconfined": True, "reset": "clear", "reuse": True},
            "reuse is True, but no reset leads a server of a command back to its start; leave it out",
        ),
    ],
)
def test_settings_that_make_no_environment_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make(**settings)


def test_an_address_that_may_hold_a_secret_is_a_variable_s(monkeypatch) -> None:
    assert read_address("http://127.0.0.1:8000/mcp") == "http://127.0.0.1:8000/mcp"
    monkeypatch.setenv("MY_ADDRESS", "https://ada:secret@example.org/mcp?key=1")
    assert read_address("$MY_ADDRESS") == "https://ada:secret@example.org/mcp?key=1"
    for url in ("https://ada:secret@example.org/mcp", "https://example.org/mcp?key=1"):
        with pytest.raises(ValueError, match="url holds a user or a query"):
            read_address(url)
    with pytest.raises(ValueError, match=r"expected http://HOST/PATH, https://HOST/PATH, or \$NAME of a variable"):
        read_address("localhost:8000/mcp")
    monkeypatch.delenv("MY_ADDRESS")
    with pytest.raises(ValueError, match="url names the variable 'MY_ADDRESS', which is not set here"):
        read_address("$MY_ADDRESS")


def test_headers_name_variables_and_no_values(monkeypatch) -> None:
    monkeypatch.setenv("A_TOKEN", "Bearer of a secret")
    assert read_headers("Authorization=A_TOKEN X-Key=A_TOKEN") == {
        "Authorization": "Bearer of a secret",
        "X-Key": "Bearer of a secret",
    }
    with pytest.raises(ValueError, match="expected HEADER=NAME of a variable"):
        read_headers("Authorization='Bearer of a secret'")
    monkeypatch.delenv("A_TOKEN")
    with pytest.raises(ValueError, match="names a variable for 'Authorization' which is not set here"):
        read_headers("Authorization=A_TOKEN")


def test_the_check_goes_through_the_public_servers_unless_one_is_named() -> None:
    assert cases({"deadline": 60.0}) == {
        name: {"server": name, "deadline": 60.0} for name in ("sqlite", "git", "filesystem")
    }
    assert cases({"server": "git"}) == {"git": {"server": "git"}}
    assert cases({"command": "my-server"}) == {"": {"command": "my-server"}}


def test_every_page_of_a_list_is_read_up_to_a_hundred() -> None:
    class Page:
        def __init__(self, number: int, last: int) -> None:
            self.tools, self.next_cursor = [number], str(number + 1) if number < last else None

    async def listing(cursor: str | None, last: int = 3) -> Page:
        return Page(int(cursor or 1), last)

    assert asyncio.run(pages(listing, "tools")) == [1, 2, 3]
    assert asyncio.run(pages(functools.partial(listing, last=1_000), "tools"))[-1] == 100


def test_settings_from_flags_have_their_types() -> None:
    given = {"command": "true", "deadline": "5", "concurrency": "2", "unconfined": "True"}
    assert environments.parse_settings("mcp", given) == {
        "command": "true", "deadline": 5.0, "concurrency": 2, "unconfined": True,
    }  # fmt: skip

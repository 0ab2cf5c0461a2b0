"""Entries by name and by dotted path, the settings that they declare, and which values are refused."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from absl import app

from cojax import __version__
from cojax.registry import REQUIRED, DeclaredSetting, Range, RegistryError, check_call, check_settings, find, settings
from cojax.registry.annotations import convert_setting, from_text, say_type
from cojax.registry.source import commit, describe_source, shorten_commit
from environments import desk

Share = Annotated[float, "a share", Range(0.0, 1.0)]


def clipped(logprobs: object, *, clip: Annotated[float, Range(0, low_open=True)] = 0.2, kind: Literal["a", "b"] = "a"):
    return logprobs, clip, kind


def needy(*, least: int, share: Share = 0.5, where: tuple[str, ...] = (), perhaps: int | None = None, untold=3.0):
    return least, share, where, perhaps, untold


@dataclasses.dataclass(frozen=True)
class Detector:
    window: Annotated[int, Range(1)] = 10
    play: Callable[[], None] = print
    seen: int = dataclasses.field(default=0, init=False)


ENTRIES = {"clipped": clipped, "needy": needy, "detector": Detector}


TAKING = """
import dataclasses, functools
from of_mine import double
from cojax.signals import Forgetting

quadruple = functools.partial(double, by=4)


class Inherits(Forgetting):
    pass


@dataclasses.dataclass(frozen=True)
class Scale:
    by: int = 2

    def __call__(self, x, *, plus: float = 0.0):
        return x * self.by + plus


tripled = Scale(3)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "of_mine.py").write_text("NUMBER = 3\n\ndef double(x, *, by: int = 2):\n    return x * by\n")
    (tmp_path / "broken_mine.py").write_text("def half(:\n")
    (tmp_path / "needing_mine.py").write_text("import absent_thing\n")
    (tmp_path / "raising_mine.py").write_text("raise RuntimeError('two\\nlines')\n")
    (tmp_path / "leaving_mine.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "taking_mine.py").write_text(TAKING)
    yield tmp_path
    for name in ("of_mine", "broken_mine", "needing_mine", "raising_mine", "leaving_mine", "taking_mine"):
        sys.modules.pop(name, None)


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(RegistryError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_name_of_the_registry() -> None:
    assert find("loss", "clipped", ENTRIES) is clipped
    assert refusal(lambda: find("loss", "clippt", ENTRIES)) == (
        "loss 'clippt' not found; available: clipped, needy, detector, or package.module:name from outside"
    )


def test_a_function_of_the_current_folder(folder: Path) -> None:
    double = find("loss", "of_mine:double", ENTRIES)
    assert double(4) == 8
    assert settings(double) == {"by": DeclaredSetting(int, 2)}
    told = describe_source("of_mine:double", double)
    assert told == {
        "path": "of_mine:double",
        "version": "",
        "hash": hashlib.sha256((folder / "of_mine.py").read_bytes()).hexdigest(),
        "folder": str(folder),
        "commit": "unknown",
    }


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_function_of_a_repository_has_its_commit(folder: Path) -> None:
    double = find("loss", "of_mine:double", ENTRIES)

    def told() -> str:
        return describe_source("of_mine:double", double)["commit"]

    git(folder, "init", "--quiet")
    assert told() == "unknown"  # there is no commit yet
    git(folder, "add", "taking_mine.py")
    git(folder, "commit", "--quiet", "--message=One")
    head = git(folder, "rev-parse", "HEAD")
    assert told() == f"{head} with changes"  # the file itself is not in it
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=Two")
    assert told() == git(folder, "rev-parse", "HEAD") != head
    (folder / "notes.txt").write_text("no code")
    assert told() == git(folder, "rev-parse", "HEAD")
    with (folder / "taking_mine.py").open("a") as file:
        file.write("# what it may import has changed\n")
    assert told() == git(folder, "rev-parse", "HEAD") + " with changes"


@pytest.mark.parametrize("ignored", [True, False])
def test_an_installed_copy_is_not_of_the_repository_around_it(folder: Path, ignored: bool) -> None:
    """A virtual environment lies within a project: the project's commit says nothing of what is installed there."""
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text("venv\n" if ignored else "")
    git(folder, "add", ".gitignore")
    git(folder, "commit", "--quiet", "--message=One")
    installed = folder / "venv/lib/python3/site-packages/cojax.py"
    installed.parent.mkdir(parents=True)
    installed.touch()
    assert commit(installed) == "unknown"
    assert commit(folder / "of_mine.py").endswith(" with changes")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_mine:f", "no module 'no_such_mine'"),
        ("of_mine.deeper:f", "no module 'of_mine.deeper'"),
        ("of_mine:triple", "defines no 'triple'"),
        ("of_mine:NUMBER", "is of type int; expected a function or a class"),
        ("broken_mine:half", "cannot be imported: SyntaxError"),
        ("needing_mine:half", "it needs 'absent_thing', which is not there"),
        ("raising_mine:half", "cannot be imported: RuntimeError: two lines"),
        ("leaving_mine:half", "cannot be imported: SystemExit: 0"),
        (":half", "Empty module name"),
    ],
)
def test_a_missing_entry_is_one_line(folder: Path, name: str, reason: str) -> None:
    said = refusal(lambda: find("loss", name, ENTRIES))
    assert said.startswith(f"loss {name!r}")
    assert reason in said


def test_a_changed_partial_has_another_hash(folder: Path) -> None:
    """Its own file counts, and the file of the function that it wraps."""
    partial = find("loss", "taking_mine:quadruple", ENTRIES)
    told = describe_source("taking_mine:quadruple", partial)
    here, there = ((folder / name).read_bytes() for name in ("taking_mine.py", "of_mine.py"))
    assert (told["path"], told["hash"]) == ("taking_mine:quadruple", hashlib.sha256(here).hexdigest())
    told = describe_source("taking_mine:double", find("loss", "taking_mine:double", ENTRIES))
    assert (told["path"], told["hash"]) == ("of_mine:double", hashlib.sha256(there + here).hexdigest())


def test_annotations_are_read_where_they_stand(folder: Path) -> None:
    """A subclass need not import what its parent's fields are annotated by; an object's fields are no settings."""
    assert settings(find("signal", "taking_mine:Inherits", ENTRIES))["window"].annotation == Annotated[int, Range(1)]
    assert settings(find("loss", "taking_mine:tripled", ENTRIES)) == {"plus": DeclaredSetting(float, 0.0)}


def test_what_cannot_be_called_as_its_kind_is_called() -> None:
    check_call("curriculum", "needy", lambda scores, *, a=1: scores, ("scores",), {"a": 2})
    said = refusal(lambda: check_call("curriculum", "mine", lambda: 1.0, ("scores",), {}))
    assert said == (
        "curriculum 'mine' is called with scores and its settings, which stand after a *: too many positional arguments"
    )
    assert "missing a required argument: 'b'" in refusal(
        lambda: check_call("weighting", "mine", lambda a, b: a, ("lengths",), {})
    )


def test_where_an_entry_of_the_package_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_source("partial", functools.partial(find, "x"))["path"].startswith("functools:")
    assert describe_source("run", app.run)["version"] == importlib.metadata.version("absl-py")
    # All distributions are read, which takes a second, for entries of others alone.
    monkeypatch.setattr("cojax.registry.source._distributions", lambda: pytest.fail("all distributions are read"))
    told = describe_source("detector", find)
    assert told["path"] == "cojax.registry:find"
    assert told["version"] == __version__
    assert len(told["hash"]) == 64
    assert describe_source("desk", desk.make)["version"] == __version__


def test_settings_are_keywords_or_fields() -> None:
    assert list(settings(clipped)) == ["clip", "kind"]
    assert settings(clipped)["clip"].default == 0.2
    assert list(settings(needy)) == ["least", "share", "where", "perhaps", "untold"]
    assert settings(needy)["least"] == DeclaredSetting(int, REQUIRED)
    assert settings(needy)["untold"] == DeclaredSetting(float, 3.0)
    assert list(settings(Detector)) == ["window", "play"]
    assert settings(functools.partial(needy, share=0.25))["share"].default == 0.25


def test_an_annotation_that_cannot_be_read_is_an_error() -> None:
    def odd(*, x: Absent = 1):  # noqa: F821
        return x

    assert "odd cannot be read: name 'Absent' is not defined" in refusal(lambda: settings(odd))


def test_given_settings_are_converted_where_nothing_is_lost() -> None:
    taken = check_settings("loss", "needy", needy, {"least": 2, "share": 1, "where": ["a", "b"], "perhaps": None})
    assert taken == {"least": 2, "share": 1.0, "where": ("a", "b"), "perhaps": None}
    assert type(taken["share"]) is float


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (
            clipped,
            {"clap": 1.0},
            "loss 'mine' has no setting loss_settings.clap; did you mean loss_settings.clip? it has clip, kind",
        ),
        (clipped, {"clip": -3.0}, "loss_settings.clip is -3.0; expected a number above 0"),
        (clipped, {"clip": 0}, "loss_settings.clip is 0; expected a number above 0"),
        (clipped, {"clip": math.nan}, "loss_settings.clip is nan; expected a number above 0"),
        (clipped, {"clip": math.inf}, "loss_settings.clip is inf; expected a number above 0"),
        (clipped, {"clip": True}, "loss_settings.clip is True; expected a number above 0"),
        (clipped, {"clip": "much"}, "loss_settings.clip is 'much'; expected a number above 0"),
        (
            clipped,
            {"clip": 10**400},
            "loss_settings.clip is a whole number of very many digits; expected a number above 0, of 64 bits",
        ),
        (needy, {"least": 2**63}, "loss_settings.least is 9223372036854775808; expected a whole number, of 64 bits"),
        (needy, {"least": 1, "untold": math.inf}, "loss_settings.untold is inf; expected a number"),
        (clipped, {"kind": "c"}, "loss_settings.kind is 'c'; expected one of 'a', 'b'"),
        (needy, {}, "loss 'mine' needs its setting loss_settings.least: a whole number"),
        (needy, {"least": 1.5}, "loss_settings.least is 1.5; expected a whole number"),
        (needy, {"least": 1, "share": 2}, "loss_settings.share is 2; expected a share from 0 to 1"),
        (needy, {"least": 1, "where": ("a", 1)}, "loss_settings.where is ('a', 1); expected a tuple, each of it text"),
        (needy, {"least": 1, "perhaps": "x"}, "loss_settings.perhaps is 'x'; expected a whole number or None"),
        (Detector, {"window": 0}, "loss_settings.window is 0; expected a whole number at least 1"),
        (refusal, {"clip": 1}, "loss 'mine' has no setting loss_settings.clip; it has none"),
    ],
)
def test_a_refused_value_is_one_line(function: Any, given: dict[str, Any], said: str) -> None:
    assert refusal(lambda: check_settings("loss", "mine", function, given, "loss_settings.")) == said


def test_ends_of_a_range() -> None:
    assert 0.0 in Range(0.0, 1.0)
    assert 1.0 not in Range(0.0, 1.0, high_open=True)
    assert 0.0 not in Range(0.0, low_open=True)
    assert math.inf in Range(0.0, math.inf)
    assert math.inf not in Range(0.0)
    assert math.nan not in Range()


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (float, "0.5", 0.5),
        (float, "1e-6", 1e-6),
        (int, "3", 3),
        (bool, "true", True),
        (bool, "False", False),
        (str, "1", "1"),
        (str | int, "1", "1"),
        (int | None, "None", None),
        (tuple[int, ...], "(1, 2)", (1, 2)),
        (Literal[1, 2], "2", 2),
        (Any, "7", 7),
        (float, "much", "much"),
    ],
)
def test_the_value_of_a_flag(annotation: Any, text: str, value: Any) -> None:
    assert from_text(annotation, text) == value


def test_pairs_of_numbers() -> None:
    assert convert_setting("x", tuple[int, float], (1, 2)) == (1, 2.0)
    assert say_type(tuple[int, float]) == "a tuple of a whole number, a number"
    assert refusal(lambda: convert_setting("x", tuple[int, float], (1,))) == (
        "x is (1,); expected a tuple of a whole number, a number"
    )


def test_a_shortened_commit_still_says_that_its_code_was_changed():
    assert shorten_commit(40 * "a") == 10 * "a"
    assert shorten_commit(40 * "a" + " with changes") == 10 * "a" + " with changes"
    assert shorten_commit("unknown") == "unknown"

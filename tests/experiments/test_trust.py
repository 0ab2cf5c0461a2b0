"""Which code of a run that goes on by its folder may be imported: none that its config.json alone asks for."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from absl.testing import flagsaver
from commands import Commands
from ml_collections import ConfigDict

import environments
from cojax import registry
from cojax.registry.annotations import RegistryError
from cojax.run import entries
from cojax.run.checks import check_settings as check_settings
from cojax.run.configuration import read_configuration
from cojax.settings import flags
from cojax.settings.tree import SETTING_NAMES
from experiments import desk

_MODULE = """
import pathlib
from subprocess import run
from cojax.learner.losses import grpo
pathlib.Path(__file__).with_name("imported").touch()
def flat(scores):
    return 1.0
"""
Config = dict[str, Any]


def code_in(folder: Path, module: str = "foreign_curve") -> Path:
    """A folder with a module that leaves a marker where it is imported."""
    folder.mkdir(parents=True)
    (folder / f"{module}.py").write_text(_MODULE)
    return folder


def written(workdir: Path, settings: Config, folders: Config | None = None) -> Path:
    """A run directory of the desk with these settings; `folders` are those of the entries' code."""
    config = desk.get_config()
    with config.unlocked(), config.ignore_type():
        for name, value in settings.items():
            section, _, key = name.rpartition(".")
            (config[section] if section else config)[key] = value
    code = {leaf: {"name": settings[leaf], "folder": folder} for leaf, folder in (folders or {}).items()}
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / "config.json").write_text(json.dumps({"config": config.to_dict(), "code": code}))
    return workdir


@pytest.fixture(autouse=True)
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty current folder, and an import path and modules that are as before once a test is over."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("foreign"):
            del sys.modules[name]


def resumed(workdir: Path, *arguments: str) -> ConfigDict:
    with flagsaver.flagsaver(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "argv", ["run", f"--config=experiments/continued.py:{workdir}", *arguments])
        flags.parse_flags(sys.argv)
        return read_configuration()


def refusal(workdir: Path, *arguments: str) -> str:
    with pytest.raises(RegistryError) as caught:
        resumed(workdir, *arguments)
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 1_000
    return said


COMMANDS = {
    "run": lambda workdir: ("experiments.run", f"--workdir={workdir}"),
    "check": lambda workdir: ("experiments.run", f"--workdir={workdir}", "--check"),
    "evaluate": lambda workdir: (
        "experiments.evaluate", f"--config=experiments/continued.py:{workdir}", f"--checkpoint={workdir}"
    ),
    "serve": lambda workdir: ("experiments.serve", f"--config=experiments/continued.py:{workdir}"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_reads_a_run_imports_none_of_its_code_and_names_the_folder_to_trust(
    command: str, tmp_path: Path, commands: Commands
) -> None:
    workdir = tmp_path / "a run"
    code = code_in(workdir / "code")
    written(workdir, {"curriculum": "foreign_curve:flat"}, {"curriculum": str(code)})
    before = sorted(workdir.rglob("*"))
    done = commands.run(*COMMANDS[command](workdir), folder=tmp_path / "here")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.endswith(f"if you trust the one that it came from, add --trust-code='{code}'\n")
    assert len(done.stdout.splitlines()) == 1
    assert sorted(workdir.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        lambda workdir: ("experiments.report", str(workdir)),
        lambda workdir: ("experiments.export", f"--workdir={workdir}", str(workdir.parent / "out")),
        lambda workdir: ("experiments.evaluate", "--config=experiments/desk.py", f"--checkpoint={workdir}"),
        lambda workdir: ("experiments.compare", str(workdir), str(workdir)),
    ],
    ids=["report", "export", "checkpoint", "compare"],
)
def test_a_command_that_takes_no_settings_from_a_run_imports_none_of_its_code_either(
    arguments: Callable[[Path], tuple[str, ...]], tmp_path: Path, commands: Commands
) -> None:
    code = code_in(tmp_path / "run" / "code")
    names = {"curriculum": "foreign_curve:flat", "learner.advantage": "foreign_curve:flat"}
    workdir = written(tmp_path / "run", names, dict.fromkeys(names, str(code)))
    done = commands.run(*arguments(workdir), folder=code)
    assert "Traceback" not in done.stdout + done.stderr
    assert not (code / "imported").exists()


def test_a_folder_that_the_command_line_names_is_trusted(tmp_path: Path) -> None:
    one, two = code_in(tmp_path / "one"), code_in(tmp_path / "two", "foreign_choice")
    settings = {"curriculum": "foreign_curve:flat", "synthesis.select": "foreign_choice:flat"}
    workdir = written(tmp_path / "run", settings, {"curriculum": str(one), "synthesis.select": str(two)})
    assert f"add --trust-code={one}" in refusal(workdir)
    assert f"add --trust-code={two}" in refusal(workdir, f"--trust-code={one}")
    assert f"add --trust-code={one}" in refusal(workdir, f"--trust-code={tmp_path / 'here'}")
    assert not (one / "imported").exists()  # nothing is, before all names are known to be trusted
    config = resumed(workdir, f"--trust-code={one}", f"--trust-code={os.path.relpath(two)}")
    assert (config.curriculum, (one / "imported").exists()) == ("foreign_curve:flat", True)


@pytest.mark.parametrize("where", ["current folder", "PYTHONPATH"])
def test_the_current_folder_and_pythonpath_are_trusted(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = code_in(tmp_path / "mine")
    workdir = written(tmp_path / "run", {"curriculum": "foreign_curve:flat"}, {"curriculum": "/nowhere"})
    if where == "PYTHONPATH":
        sys.path.append(str(code))
    else:
        monkeypatch.chdir(code)
    assert resumed(workdir).curriculum == "foreign_curve:flat"
    assert (code / "imported").exists()


@pytest.mark.parametrize("place", ["foreign_runs/theirs/code", "foreign_runs/theirs", "foreign_runs"])
def test_a_run_below_the_current_folder_is_no_package_of_it(place: str, tmp_path: Path) -> None:
    code = code_in(Path(place))
    name = f"{place.replace('/', '.')}.foreign_curve:flat"
    workdir = written(Path("foreign_runs/theirs"), {"curriculum": name}, {"curriculum": str(code)})
    assert "is of a package that holds the run's own folder; if you mean it" in refusal(workdir)
    assert not (code / "imported").exists()
    assert resumed(workdir, f"--config.curriculum={name}").curriculum == name


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    workdir = written(tmp_path / "run", {"curriculum": "foreign_curve:flat"})
    with pytest.raises(ValueError, match="--trust-code=/no/where: there is no such folder"):
        resumed(workdir, "--trust-code=/no/where")


@pytest.mark.parametrize(
    ("folder", "printed"),
    [
        ("/tmp/\x1b[2J\x1b]0;x\x07\n\u202eerror", "FOLDER; it says '/tmp/\\x1b[2J\\x1b]0;x\\x07\\n\\u202eerror'"),
        ("x" * 1_000_000, "FOLDER; it says 'xxx"),
        ("/tmp/x; touch y", "'/tmp/x; touch y'"),
        ("", "FOLDER"),
        ([1], "FOLDER"),
    ],
    ids=["escapes", "long", "shell", "empty", "list"],
)
def test_the_folder_of_a_config_json_is_printed_safely(folder: Any, printed: str, tmp_path: Path) -> None:
    workdir = written(tmp_path / "run", {"curriculum": "foreign_curve:flat"}, {"curriculum": folder})
    said = refusal(workdir)
    assert f"--trust-code={printed}" in said
    if folder == "/tmp/x; touch y":
        assert shlex.split(said)[-1] == f"--trust-code={folder}"


@pytest.mark.parametrize(
    "settings",
    [
        {"learner.loss": "os:system", "learner.loss_settings": {"command": "true"}},
        {"environment.name": "antigravity"},
        {"environment.name": "environments.desk"},
        {"environment.name": "cojax.api.process:Child"},
        {"signals": "forgetting,subprocess:run"},
        {"curriculum": "numpy:load"},
        {"curriculum": "foreign_curve:run"},
        {"learner.loss": "foreign_curve:grpo"},
        {"environment.name": "mcp", "environment.command": "touch here", "environment.unconfined": True},
        {"environment.name": "mcp", "environment.affordances": "os:system"},
        {"environment.name": "mcp", "environment.state": "shutil:rmtree"},
        {"environment.name": "verifiers", "environment.python": "/tmp/evil"},
        {"environment.name": "openenv", "environment.module": "evil:Class"},
        {"environment.cluster": "ray://evil:10001"},
        {"sglang.python": "/tmp/evil"},
        {"sglang.flags": "--trust-remote-code"},
        {"environment.name": "openenv", "environment.solution": "evil:solve"},
        {"explorer.name": "llm", "llm.base_url": "http://evil.example/v1", "llm.model": "m"},
        {"quality.embedding": "endpoint", "quality.base_url": "http://evil.example/v1", "quality.model": "m"},
        {"sglang.urls": "http://evil.example"},
        {"sglang.router": "http://evil.example"},
        {"sglang.folder": "/home/you"},
        {"sglang.local": "/home/you"},
        {"wandb.project": "evil"},
        {"environment.name": "mcp", "environment.url": "$SECRET", "environment.unconfined": True},
        {"environment.name": "mcp", "environment.headers": "X=SECRET"},
        {"environment.name": "mcp", "environment.folders": "/home"},
        {"environment.name": "mcp", "environment.setups": "/home/you/list.json"},
        {"environment.name": "verifiers", "environment.visible": "/home/you/.ssh"},
        {"environment.name": "tau2", "environment.user": "model", "environment.user_url": "http://evil.example/v1"},
    ],
    ids=lambda settings: ",".join(str(value) for value in settings.values()),
)
def test_what_else_runs_code_or_leaves_the_folder_must_stand_on_the_command_line(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(code_in(tmp_path / "mine"))
    before = set(sys.modules)
    workdir = written(tmp_path / "run", settings)
    assert "; if you mean it, say so on the command line: --config." in refusal(workdir)
    assert "antigravity" not in set(sys.modules) - before


def test_a_setting_on_the_command_line_needs_no_further_trust(tmp_path: Path) -> None:
    workdir = written(tmp_path / "run", {"synthesis.select": "experiments.study.former:first_place"})
    assert "is code of this installation, and no entry that it lists; if you mean it" in refusal(workdir)
    stated = "--config.synthesis.select=experiments.study.former:first_place"
    assert resumed(workdir, stated).synthesis.select == "experiments.study.former:first_place"
    workdir = written(tmp_path / "run", {"sglang.flags": "--tp 4"})
    assert resumed(workdir, "--config.sglang.flags=--tp 2").sglang.flags == "--tp 2"


def test_a_run_goes_on_in_its_own_folder_wherever_it_says_that_it_lay(tmp_path: Path) -> None:
    workdir = written(tmp_path / "run", {"workdir": "/home/you"})
    assert resumed(workdir).workdir == str(workdir)


def test_the_programs_and_places_are_settings_that_there_are() -> None:
    leaves, own = desk.get_config(), set()
    for world in ("mcp", "openenv", "tau2"):
        own |= registry.settings(environments.maker(world)).keys()
    for name in (*SETTING_NAMES["programs"], *SETTING_NAMES["places"]):
        section, _, key = name.partition(".")
        assert key in leaves[section] or (section == "environment" and key in own)


def test_what_a_run_noted_of_its_code_names_the_folder_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    code_in(there / "foreign_package")
    config = desk.get_config()
    config.curriculum = "foreign_package.foreign_curve:flat"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        patch.chdir(there)
        code = json.loads(json.dumps(entries.describe(config)))
    assert code["curriculum"]["folder"] == str(there)
    assert "folder" not in code["learner.loss"]
    (tmp_path / "config.json").write_text(json.dumps({"config": config.to_dict(), "code": code}))
    for name in [name for name in sys.modules if name.startswith("foreign_package")]:
        del sys.modules[name]
    assert refusal(tmp_path).endswith(f"add --trust-code={there}")
    check_settings(resumed(tmp_path, f"--trust-code={there}"))

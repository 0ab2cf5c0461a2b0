"""The command `cojax`: its names, its help, its errors."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Commands

from cojax import __version__
from cojax.command import COMMANDS, format_usage, main, reword

ROOT = Path(__file__).parents[1]


def test_every_name_stands_for_a_module_that_can_be_run() -> None:
    for module, _ in COMMANDS.values():
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.submodule_search_locations is None or importlib.util.find_spec(f"{module}.__main__")
    assert set(COMMANDS) == {
        "run", "evaluate", "report", "compare", "check", "audit", "install", "convert", "export", "serve", "compile",
        "study", "campaign", "bench", "settings", "fork",
    }  # fmt: skip


def test_help_version_and_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["--help"], ["-h"], ["help"]):
        assert main(given) == 0
        assert capsys.readouterr().out == format_usage() + "\n"
    assert all(f"\n  {name} " in format_usage() for name in COMMANDS)
    assert (main([]), main(["--version"])) == (2, 0)
    assert capsys.readouterr().out.endswith(f"\ncojax {__version__}\n")
    for given, meant in (
        ("exprot", "export"),
        ("train", "run"),
        ("trian", "run"),
        ("resume", "run"),
        ("eval", "evaluate"),
    ):
        assert main([given]) == 2
        assert capsys.readouterr().err == f"error: cojax has no command {given!r}; did you mean {meant}?\n"
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err.startswith("error: cojax has no command 'xyzzy'; expected one of run, evaluate, ")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_command_as_it_was_started(name: str, commands: Commands) -> None:
    done = commands.run("cojax", name, "--help")
    module = COMMANDS[name][0]
    assert f"cojax {name}" in done.stdout, done.stdout + done.stderr
    assert f"python -m {module} " not in done.stdout
    # absl's --help has status 1.
    assert done.returncode == (1 if name in ("run", "evaluate", "serve", "compile") else 0)


def test_started_as_a_module_help_says_so(commands: Commands) -> None:
    done = commands.run("experiments.report", "--help")
    assert done.stdout.startswith("usage: python -m experiments.report ")
    assert reword("python -m experiments.run") == "python -m experiments.run"


def test_the_status_is_that_of_the_module(commands: Commands) -> None:
    assert commands.run("cojax", "report", "/no/run").returncode == 2
    wrong = commands.run("cojax", "run", "--config=nowhere.py")
    assert (wrong.returncode, wrong.stdout.startswith("error: --config=nowhere.py: there is no such file")) == (1, True)


def test_an_unknown_setting_names_what_lists_them(commands: Commands) -> None:
    """An installed copy has no docs/."""
    wrong = commands.run("cojax", "run", "--config=experiments/desk.py", "--config.nonsense=1")
    assert wrong.stdout == "error: nonsense is not a setting; cojax settings lists them all\n"
    listed = commands.run("cojax", "settings")
    assert listed.stdout.startswith("# Settings\n")
    assert "\n| `learner.loss` | `grpo` |" in listed.stdout
    some = commands.run("cojax", "settings", "evolve_every")
    assert some.stdout == "| `evolve_every` | `10` | a whole number at least 1 | steps between evolutions, F |\n"
    none = commands.run("cojax", "settings", "nonsense")
    assert (none.returncode, none.stderr) == (
        2, "error: no setting has 'nonsense' in its name; without a word, all are printed\n",
    )  # fmt: skip


def test_benchmarks_and_the_campaign_say_that_they_need_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "cojax").mkdir()
    for name in ("__init__", "command", "imports"):
        shutil.copy(ROOT / "cojax" / f"{name}.py", tmp_path / "cojax")
    program = "from cojax.command import run_in_checkout; run_in_checkout('bench', 'benchmarks.__main__')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: bench needs a checkout of cojax, ")

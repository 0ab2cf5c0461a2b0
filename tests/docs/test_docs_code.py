"""The code of README.md and docs/ is accepted by what it names.

A block of ```bash is runnable as it stands: its commands are given to their own flags and settings, values included. In
blocks without a language, which may hold `…` or names in capitals to fill in, modules, flags and settings must exist. A
block of ```python is Python, and imports what is there; one of ```json is JSON.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from absl import flags as absl_flags
from commands import Commands
from doc_pages import PAGES, ROOT, Block, blocks, spans
from doc_pages import commands as commands_of

from cojax.command import COMMANDS
from cojax.settings.base import expand_flag
from cojax.settings.ranges import RANGES, is_open, is_section

OURS = ("cojax", "environments", "experiments")
BLOCKS = [block for page in PAGES for block in blocks(page.read_text(), page.stem)]
TYPED = [(block.page, command) for block in BLOCKS for command in commands_of(block) if block.language in ("", "bash")]
RUNNABLE = [(block.page, command) for block in BLOCKS for command in commands_of(block) if block.language == "bash"]
PYTHON = [block for block in BLOCKS if block.language == "python"]
JSON = [block for block in BLOCKS if block.language == "json"]
# Commands whose flags absl parses, and the module that defines them.
WITH_CONFIG = {
    "experiments.run": "cojax.run.command", "experiments.evaluate": "cojax.evaluation.command",
    "experiments.serve": "cojax.serving.command", "experiments.compile": "cojax.compile.command",
}  # fmt: skip


class Parsed(Exception):
    """A command has read its arguments; it is not to do more."""


def module_of(command: list[str]) -> tuple[str, list[str]]:
    """The module that a command starts, and its arguments."""
    if command[0] == "-m":
        return command[1], command[2:]
    return (COMMANDS[command[1]][0] if command[1] in COMMANDS else f"cojax {command[1]}"), command[2:]


def exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def is_setting(name: str) -> bool:
    return name in RANGES or is_section(name) or is_open(name)


@contextlib.contextmanager
def only_parsing() -> Iterator[None]:
    """Commands end once they have read their arguments."""

    calls: list[str] = []  # one of these methods calls another

    def stopping(original: Callable[..., Any]) -> Callable[..., Any]:
        def parse(*given: Any, **named: Any) -> Any:
            calls.append(original.__name__)
            try:
                read = original(*given, **named)
            finally:
                calls.pop()
            if not calls:
                raise Parsed
            return read

        return parse

    with pytest.MonkeyPatch.context() as patch:
        for name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
            patch.setattr(argparse.ArgumentParser, name, stopping(getattr(argparse.ArgumentParser, name)))
        yield


def objection(command: list[str]) -> str:
    """What is wrong with the names of a command; "" where nothing is."""
    module, arguments = module_of(command)
    if module.partition(".")[0] not in OURS:
        return "" if command[0] == "-m" else f"{module} is no command"
    if not exists(module):
        return f"there is no module {module}"
    if module in WITH_CONFIG:
        importlib.import_module(WITH_CONFIG[module])
        names = [re.match(r"--?([^=]+)", word) for word in arguments]
        unknown = [found[1] for found in names if found and not known(found[1])]
        return f"{module} has no flag {', '.join(unknown)}" if unknown else ""
    return refused(module, [word for word in arguments if not word.startswith("--config.")]) or "".join(
        f"{word} is not a setting" for word in arguments if not known(word.lstrip("-").partition("=")[0], word)
    )


def known(name: str, word: str = "--config.") -> bool:
    if word.startswith("--config.") and name.startswith("config."):
        given = expand_flag(f"--{name}=x").removeprefix("--config.").removesuffix("=x")
        return is_setting(given)
    return not word.startswith("--config.") or name in absl_flags.FLAGS


def refused(module: str, arguments: list[str]) -> str:
    """What a command without configuration says of its arguments."""
    file = importlib.util.find_spec(module)
    main = importlib.import_module(f"{module}.__main__" if file and file.submodule_search_locations else module)
    if "main" not in vars(main):
        return f"{module} takes no arguments" if arguments else ""
    with only_parsing(), contextlib.suppress(Parsed):
        try:
            main.main(arguments)
        except SystemExit as error:
            return f"{module} refuses {' '.join(arguments)}: {error}"
    return ""


@pytest.mark.parametrize("page", sorted({page for page, _ in TYPED}))
def test_commands_name_what_there_is(page: str) -> None:
    wrong = [objection(command) for where, command in TYPED if where == page]
    assert [one for one in wrong if one] == []


@pytest.mark.parametrize(("page", "command"), RUNNABLE, ids=lambda value: value if isinstance(value, str) else "")
def test_a_runnable_command_is_accepted(page: str, command: list[str], commands: Commands) -> None:
    module, arguments = module_of(command)
    if module not in WITH_CONFIG:
        return  # its own parser has read it above
    if not any(word.startswith("--config=") for word in arguments):  # goes on with a run
        arguments = ["--config=experiments/desk.py", *arguments]
    done = commands.run("settings_of", WITH_CONFIG[module], *arguments, folder=ROOT / "tests" / "deploy")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("python -m experiments.run --config=experiments/desk.py --config.stesp=3", "has no flag config.stesp"),
        ("python -m experiments.rum --config=experiments/desk.py", "there is no module experiments.rum"),
        ("python -m experiments.run --chekc", "has no flag chekc"),
        ("cojax runn --config=experiments/desk.py", "cojax runn is no command"),
        ("python -m experiments.report W --tsak=3", "experiments.report refuses W --tsak=3"),
        ("python -m experiments.export --step=3 OUT", "experiments.export refuses"),
        ("A=1 V/bin/python -m experiments.serve \\\n  --hots=h &", "has no flag hots"),
        ("python -m experiments.study --name=main --config.nothing=1", "--config.nothing=1 is not a setting"),
        ("cd x && python -m experiments.report W --live", ""),
        ("python -m experiments.run --config=F … --config.engine=sglang # --nothing", ""),
    ],
)
def test_a_wrong_command_of_a_page_is_found(text: str, said: str) -> None:
    (command,) = commands_of(Block("", "", text))
    found = objection(command)
    assert said in found if said else not found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_modules_and_settings_in_prose_exist(page: Path) -> None:
    wrong = []
    for code in spans(page.read_text()):
        for module in re.findall(r"\bpython -m ((?:cojax|environments|experiments)[\w.]*)", code):
            wrong += [module] * (not exists(module))
        for name in re.findall(r"--config\.([a-z_]+(?:\.[a-z_]+)*)(?=[=\s]|$)", code):
            wrong += [name] * (not known(f"config.{name}"))
    assert wrong == []


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.page)
def test_python_compiles_and_imports_what_is_there(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, one.name) or exists(f"{node.module}.{one.name}") for one in node.names)
        if isinstance(node, ast.Import):
            assert all(exists(one.name) for one in node.names if one.name.partition(".")[0] in OURS)


@pytest.mark.parametrize("block", JSON, ids=lambda block: block.page)
def test_records_are_json(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict)


def test_targets_and_extras_exist() -> None:
    phony = set(re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.M)[0].split())
    extras = set(re.findall(r'^        "([a-z]+)": \[', (ROOT / "setup.py").read_text(), re.M))
    assert {"demo", "test", "docs"} <= phony
    assert {"docs", "pandas"} <= extras
    for page in PAGES:
        text = page.read_text()
        lines = [line for block in blocks(text) if block.language in ("", "bash") for line in block.text.splitlines()]
        made = [found[1] for line in [*spans(text), *lines] if (found := re.match(r"make ([a-z][\w-]*)", line))]
        assert set(made) <= phony, page.name
        assert set(re.findall(r"cojax\[([a-z]+)\]", text)) <= extras, page.name


def test_pinned_versions_are_those_of_the_dockerfile() -> None:
    pattern = re.compile(r"\b(jax|sglang|sglang-router)(?:\[\S+\])?==([\w.]+)")
    said = dict(pattern.findall((ROOT / "deploy" / "Dockerfile").read_text()))
    for page in PAGES:
        assert set(pattern.findall(page.read_text())) <= set(said.items()), page.name
    assert set(pattern.findall((ROOT / "docs" / "appworld.md").read_text())) == set(said.items())


def test_there_is_code_of_each_kind() -> None:
    assert len(TYPED) > 60
    assert len(RUNNABLE) > 15
    assert len(PYTHON) > 8
    assert len(JSON) > 8

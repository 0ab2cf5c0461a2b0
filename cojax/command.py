"""The command `cojax NAME …`: each name stands for a module, whose `main` it calls; `python -m MODULE …` does the same.

It works in any folder. Modules of the current folder can be imported, after all others (cojax/imports.py). The modules
are named as in a checkout; in a wheel they are within `cojax`.
"""

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cojax import __version__, imports

# For every command: cojax itself says what is wrong, and needs no PyTorch.
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
# Name → the module that is run, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("experiments.run", "train by a configuration, or go on with a run; --check only tries everything"),
    "evaluate": ("experiments.evaluate", "success of a checkpoint, a model folder or an endpoint"),
    "report": ("experiments.report", "the page of a run, or why one of its tasks exists"),
    "fork": ("experiments.fork", "a run from one of its checkpoints on, with one thing taken away"),
    "settings": ("experiments.reference", "every setting with its default, range and meaning"),
    "compare": ("experiments.compare", "the results of runs side by side, paired by evaluation task"),
    "check": ("environments.check", "prove an environment sound"),
    "audit": ("environments.audit", "can a world's reward be gamed?"),
    "install": ("environments.install", "install an environment's packages and data"),
    "convert": ("experiments.convert", "a GGUF file as a model folder"),
    "export": ("experiments.export", "a checkpoint as a model folder"),
    "serve": ("experiments.serve", "keep SGLang servers running on a rollout host"),
    "compile": ("experiments.compile", "does a run fit accelerators that are not here, and what does it cost?"),
    "study": ("experiments.study", "the paper's comparison: many runs, tables, pictures"),
    "campaign": ("experiments.campaign", "hostile episodes and faults, counted by what they broke"),
    "bench": ("experiments.bench", "how fast the parts are on this machine"),
}
# Names of commands in other programs → ours.
_OTHER_NAMES = {"train": "run", "resume": "run", "eval": "evaluate"}
# Commands that import modules of the user.
_IMPORTING_COMMANDS = ("run", "evaluate", "check", "audit", "serve", "compile")
_runs_as_cojax = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status, unless the command itself exits. An unknown command gives 2."""
    global _runs_as_cojax
    _escape_output()
    command_name, *command_arguments = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if command_name in ("", "-h", "--help", "help"):
        print(format_usage())
        return 0 if command_name else 2
    if command_name == "--version":
        print(f"cojax {__version__}")
        return 0
    if command_name not in COMMANDS:
        near = difflib.get_close_matches(command_name, [*COMMANDS, *_OTHER_NAMES], n=1)
        hint = (
            f"did you mean {_OTHER_NAMES.get(near[0], near[0])}?" if near else f"expected one of {', '.join(COMMANDS)}"
        )
        print(f"error: cojax has no command {command_name!r}; {hint}", file=sys.stderr)
        return 2
    _runs_as_cojax = True
    _move_current_folder_last(warn=command_name in _IMPORTING_COMMANDS)
    sys.argv = [f"cojax {command_name}", *command_arguments[:-1]]
    module_name = imports.resolve(COMMANDS[command_name][0])
    command_module = importlib.import_module(module_name)
    if hasattr(command_module, "__path__"):
        command_module = importlib.import_module(f"{module_name}.__main__")
    return int(command_module.main() or 0)


def format_usage() -> str:
    name_width = max(map(len, COMMANDS))
    lines = [f"  {command_name:{name_width}}  {summary}" for command_name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        ["usage: cojax COMMAND …", "", *lines, "", "cojax COMMAND --help says more; cojax --version names the version."]
    )


def run_in_checkout(command_name: str, module_name: str, arguments: Sequence[str] | None = None) -> int:
    """Runs `module_name`, which only a checkout has; ends the command `command_name` where there is none."""
    checkout_folder = Path(__file__).resolve().parents[1]
    if not (checkout_folder / "benchmarks").is_dir():
        sys.exit(
            f"error: {command_name} needs a checkout of cojax, with benchmarks/ and tests/; here is only the package"
        )
    sys.path.append(str(checkout_folder / "tests"))
    return importlib.import_module(module_name).main(arguments)


def reword(help_text: str) -> str:
    """Rewrites the commands in a help text in the form in which this process was started."""
    command_by_module = {
        module_name: f"cojax {command}" if _runs_as_cojax else f"python -m {imports.resolve(module_name)}"
        for command, (module_name, _) in COMMANDS.items()
    }
    # A longer name, such as experiments.study.launch, is not one of our commands.
    pattern = rf"python -m ({'|'.join(map(re.escape, command_by_module))})(?![\w.]*\w)"
    return re.sub(pattern, lambda match: command_by_module[match[1]], help_text)


class CommandLineParser(argparse.ArgumentParser):
    """The arguments of a command without configuration: an error is one line, and the exit status 2.

    `prog` and `description` name commands as python -m MODULE; started by `cojax`, they are shown as cojax NAME.
    """

    def __init__(self, prog: str, description: str | None, **options: Any) -> None:
        self._arguments: list[str] = []
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(reword(prog), description=reword(description or ""), formatter_class=formatter, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._arguments = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Reports an unknown flag before any argument that is missing because of it."""
        for argument in self._arguments:
            name = argument.partition("=")[0]
            if name.startswith("--") and not any(flag.startswith(name) for flag in self._option_string_actions):
                alike = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.7)
                message = f"{name} is not a flag; {f'did you mean {alike[0]}? ' if alike else ''}--help lists the flags"
                break
        self.exit(2, f"error: {message}\n")


def _escape_output() -> None:
    """Writes characters that the terminal's encoding lacks as escapes, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="backslashreplace")


def _move_current_folder_last(warn: bool) -> None:
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    imports.add_current_folder()
    for hidden_path in filter(None, map(imports.find_hidden, imports.SHARED_NAMES if warn else ())):
        print(f"warning: {os.path.dirname(hidden_path)} cannot be imported, {imports.RENAME_FIX}", file=sys.stderr)

"""The command: runs suites with settings, and prints their figures as tables or as one JSON object."""

import argparse
import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
# By default JAX takes three quarters of an accelerator's memory; it reads this when it first looks for one.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")

import jax
from rich.console import Console

import benchmarks
from benchmarks import folders, host, sampling, servers
from benchmarks.attackers import attackers
from benchmarks.gpu.suite import gpu
from benchmarks.results import Row, make_table, row_to_json
from benchmarks.scale import scale
from benchmarks.shapes import SHAPES
from benchmarks.step import step
from benchmarks.update import update
from benchmarks.worlds import worlds
from cojax.command import CommandLineParser
from cojax.learner.rehearsal import DeviceMemoryError, is_out_of_memory
from cojax.run.machine import read_facts
from cojax.settings.base import choose

# A suite's settings are its keywords.
SUITES: Mapping[str, Callable[..., list[Row]]] = {
    "step": step,
    "update": update,
    "decode": sampling.decode,
    "prefill": sampling.prefill,
    "load": folders.load,
    "export": folders.export,
    "signals": host.signals,
    "desk": host.desk,
    "engine": host.engine,
    "sync": servers.sync,
    "conversations": servers.conversations,
    "worlds": worlds,
    "scale": scale,
    "attackers": attackers,
    "gpu": gpu,
}
# These need an installed server or environment, or take long, and run only when they are named.
SUITES_ON_REQUEST = frozenset({"sync", "conversations", "worlds", "scale", "attackers", "gpu"})


def parse_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**31):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1 to {2**31 - 1}")
    return int(text)


def parse_amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; expected a number above 0")
    return value


def parse_counts(text: str) -> list[int]:
    return [parse_count(number_text) for number_text in text.split(",")]


def parse_amounts(text: str) -> list[float]:
    return [parse_amount(number_text) for number_text in text.split(",")]


def parse_words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


# Setting → arguments for argparse. A suite takes a setting if it has a keyword of that name.
_COUNT_OPTION: Mapping[str, Any] = {"type": parse_count, "metavar": "N"}
_DTYPE_OPTION: Mapping[str, Any] = {"choices": ("float32", "bfloat16", "float16")}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "shape": {"choices": tuple(SHAPES), "help": "the model, with random weights; nano without it"},
    "folder": {"metavar": "PATH", "help": "the model in this folder in HF format, in place of a shape"},
    "layers": {**_COUNT_OPTION, "help": "another number of layers"},
    "depths": {"type": parse_counts, "metavar": "N,N,…", "help": "several numbers of layers, one after another"},
    "override": {"type": parse_words, "metavar": "FIELD=VALUE,…", "help": "other fields of the model's config"},
    "dtype": {**_DTYPE_OPTION, "help": "computed in; without it the folder's own, float32 for a shape"},
    "param-dtype": {**_DTYPE_OPTION, "help": "parameters are stored in"},
    "moments-dtype": {"choices": ("float32", "bfloat16"), "help": "AdamW's moments are stored in"},
    "remat": {"choices": ("none", "dots", "layers", "inputs", "auto"), "help": "what a layer computes again"},
    "reference": {"action": argparse.BooleanOptionalAction, "help": "with the KL to a reference"},
    "rows": {**_COUNT_OPTION, "help": "packed rows an update"},
    "row-length": {**_COUNT_OPTION, "help": "tokens a row; without it 1024 (update), what its texts need (step)"},
    "segments": {**_COUNT_OPTION, "help": "texts a row, of one prompt where that has a length"},
    "micro-rows": {**_COUNT_OPTION, "help": "rows that go through the model at a time"},
    "prompts": {**_COUNT_OPTION, "help": "prompts a step"},
    "samples": {**_COUNT_OPTION, "help": "samples a prompt"},
    "batch": {**_COUNT_OPTION, "help": "conversations at once"},
    "lanes": {**_COUNT_OPTION, "help": "threads that the engine decodes in"},
    "prompt-length": {**_COUNT_OPTION, "help": "tokens a prompt; one prompt for all texts of a row of an update"},
    "completion-length": {**_COUNT_OPTION, "help": "tokens sampled a conversation, or of each answer of an update"},
    "max-length": {**_COUNT_OPTION, "help": "tokens of the longest conversation; more than 512 are cut into pages"},
    "prefill-rows": {**_COUNT_OPTION, "help": "conversations that are prefilled at a time"},
    "prefill-chunk": {**_COUNT_OPTION, "help": "tokens of each that are prefilled at a time"},
    "trajectories": {"type": parse_counts, "metavar": "N,N,…", "help": "how many, one after another"},
    "tasks": {**_COUNT_OPTION, "help": "tasks to solve"},
    "drafts": {**_COUNT_OPTION, "help": "drafts of each explorer"},
    "episodes": {"type": parse_counts, "metavar": "N,N,…", "help": "episodes, and tasks, of earlier steps"},
    "on-setup": {**_COUNT_OPTION, "help": "tasks on each setup, on average"},
    "turns": {**_COUNT_OPTION, "help": "actions a conversation"},
    "sizes": {"type": parse_amounts, "metavar": "GB,GB,…", "help": "sizes of the model, one after another"},
    "python": {"metavar": "PATH", "help": "an interpreter that has SGLang; without: that of make sglang"},
    "gigabytes": {"type": parse_amount, "metavar": "GB", "help": "size of the model"},
    "learning-rate": {"type": parse_amount, "metavar": "RATE", "help": "of AdamW"},
    "minutes": {**_COUNT_OPTION, "help": "after which it ends"},
    "out": {"metavar": "PATH", "help": "the folder for a file of each result; those that are there are not made again"},
    "kit": {"metavar": "PATH", "help": "what make gpu-kit prepared"},
    "steps": {**_COUNT_OPTION, "help": "steps, the first of which warms up"},
    "repeats": {**_COUNT_OPTION, "help": "repetitions after the warm-up"},
}
_SHORT_FLAGS: Mapping[str, Sequence[str]] = {"prompt-length": ["--prompt"], "completion-length": ["--answer"]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0; 1 if a suite does not fit into memory; 2 for settings that make no sense."""
    parser = make_parser()
    settings = vars(parser.parse_intermixed_args(arguments))
    suites = settings.pop("suite") or [name for name in SUITES if name not in SUITES_ON_REQUEST]
    as_object = settings.pop("json")
    try:
        runs = [(name, *select_keywords(name, settings)) for name in suites]
        _refuse_unused(settings, suites)
        # Compilation must take the same time whatever was compiled here before.
        jax.config.update("jax_enable_compilation_cache", False)
        results = {}
        for suite_name, suite, keywords in runs:
            # What a library prints goes to standard error, not among the figures.
            with contextlib.redirect_stdout(sys.stderr):
                results[suite_name] = suite(**keywords)
            if not as_object:
                Console(width=None if sys.stdout.isatty() else 160).print(make_table(suite_name, results[suite_name]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        # XLA's messages, also inside the engine's errors: the first on accelerators, the second on CPUs.
        if isinstance(error, RuntimeError) and not (isinstance(error, DeviceMemoryError) or is_out_of_memory(error)):
            raise
        print(f"error: it does not fit into memory: {str(error)[:500]}\n{_MEMORY_ADVICE}", file=sys.stderr)
        return 1
    if as_object:
        print(json.dumps(make_object(results)))
    return 0


_MEMORY_ADVICE = (
    "Try --remat=layers or inputs, --param-dtype=bfloat16 or --moments-dtype=bfloat16, fewer --layers, --micro-rows, "
    "--rows, --segments, --prompts, --samples or --batch, or a shorter --row-length, --prompt or --answer."
)


def make_parser() -> CommandLineParser:
    parser = CommandLineParser("python -m experiments.bench", benchmarks.__doc__, allow_abbrev=False)
    parser.add_argument(
        "suite",
        nargs="*",
        metavar="SUITE",
        help=f"which; if none is named, all but {', '.join(sorted(SUITES_ON_REQUEST))}",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    for name, options in SETTINGS.items():
        keyword_name = name.replace("-", "_")
        default_of_suite = {
            suite: keywords[keyword_name].default
            for suite, suite_function in SUITES.items()
            if keyword_name in (keywords := list_keywords(suite_function))
        }
        defaults = ", ".join(f"{suite} {format_default(default)}" for suite, default in default_of_suite.items())
        parser.add_argument(
            *list_flags(name), **{**options, "default": None, "help": f"{options['help']} ({defaults})"}
        )
    return parser


def list_flags(setting_name: str) -> list[str]:
    """The spellings of a setting, the first of which names its keyword."""
    return [f"--{setting_name}", *_SHORT_FLAGS.get(setting_name, ())]


def format_default(default: Any) -> str:
    return str(default) if default not in (None, (), False, "") else "–"


def list_keywords(suite: Callable[..., list[Row]]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(suite).parameters


def select_keywords(suite_name: str, settings: Mapping[str, Any]) -> tuple[Callable[..., list[Row]], dict[str, Any]]:
    """The suite, and the settings that it takes of those that are set."""
    suite = choose(SUITES, suite_name, "suite")
    return suite, {
        keyword_name: settings[keyword_name]
        for keyword_name in list_keywords(suite)
        if settings[keyword_name] is not None
    }


def _refuse_unused(settings: Mapping[str, Any], suite_names: Sequence[str]) -> None:
    """Raises ValueError for a setting that no chosen suite takes: it would have no effect."""
    for setting, value in settings.items():
        suites_with_setting = [suite_name for suite_name, suite in SUITES.items() if setting in list_keywords(suite)]
        if value is not None and not set(suites_with_setting) & set(suite_names):
            raise ValueError(
                f"{' or '.join(list_flags(setting.replace('_', '-')))} is no setting of {', '.join(suite_names)}; "
                f"it is one of {', '.join(suites_with_setting)}"
            )


def make_object(results: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """The object of --json: the machine and each suite's rows; a single row of a single suite is at the top too."""
    machine = read_facts()
    machine_facts = {"device": jax.devices()[0].device_kind, "jax": machine["versions"]["jax"], "machine": machine}
    suites: list[dict[str, Any]] = [
        {"suite": name, "rows": [row_to_json(row) for row in rows]} for name, rows in results.items()
    ]
    if len(suites) > 1:
        return {**machine_facts, "suites": suites}
    [suite] = suites
    only_row: Mapping[str, Any] = suite["rows"][0] if len(suite["rows"]) == 1 else {}
    return {**machine_facts, **only_row, **suite}

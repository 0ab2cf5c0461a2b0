"""The command: runs suites with settings, and prints their figures as tables or as one JSON object."""

import argparse
import contextlib
import inspect
import json
import os
import re
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
from benchmarks.gpu.suite import gpu
from benchmarks.results import Row, as_json, table
from benchmarks.scale import scale
from benchmarks.shapes import SHAPES
from benchmarks.step import step
from benchmarks.update import update
from benchmarks.worlds import worlds
from cojax.command import CommandLineParser
from cojax.run.machine import facts
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
    "gpu": gpu,
}
# These need an installed server or environment, or take long, and run only when they are named.
ASKED = frozenset({"sync", "conversations", "worlds", "scale", "gpu"})


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def _amount(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise ValueError
    return value


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _amounts(text: str) -> list[float]:
    return [_amount(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


# Setting → arguments for argparse. A suite takes a setting if it has a keyword of that name.
_NUMBER: Mapping[str, Any] = {"type": _count, "metavar": "N"}
_DTYPE: Mapping[str, Any] = {"choices": ("float32", "bfloat16", "float16")}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "shape": {"choices": tuple(SHAPES), "help": "the model, with random weights; nano without it"},
    "folder": {"metavar": "PATH", "help": "the model in this folder in HF format, in place of a shape"},
    "layers": {**_NUMBER, "help": "another number of layers"},
    "depths": {"type": _counts, "metavar": "N,N,…", "help": "several numbers of layers, one after another"},
    "override": {"type": _words, "metavar": "FIELD=VALUE,…", "help": "other fields of the model's config"},
    "dtype": {**_DTYPE, "help": "computed in; without it the folder's own, float32 for a shape"},
    "param-dtype": {**_DTYPE, "help": "parameters are stored in"},
    "moments-dtype": {"choices": ("float32", "bfloat16"), "help": "AdamW's moments are stored in"},
    "remat": {"choices": ("none", "dots", "layers", "auto"), "help": "which results of a layer are computed again"},
    "reference": {"action": argparse.BooleanOptionalAction, "help": "with the KL to a reference"},
    "rows": {**_NUMBER, "help": "packed rows an update"},
    "row-length": {**_NUMBER, "help": "tokens a row"},
    "segments": {**_NUMBER, "help": "texts a row"},
    "micro-rows": {**_NUMBER, "help": "rows that go through the model at a time"},
    "prompts": {**_NUMBER, "help": "prompts a step"},
    "samples": {**_NUMBER, "help": "samples a prompt"},
    "batch": {**_NUMBER, "help": "conversations at once"},
    "lanes": {**_NUMBER, "help": "threads that the engine decodes in"},
    "prompt-length": {**_NUMBER, "help": "tokens a prompt"},
    "completion-length": {**_NUMBER, "help": "tokens sampled a conversation"},
    "prefill-rows": {**_NUMBER, "help": "conversations that are prefilled at a time"},
    "prefill-chunk": {**_NUMBER, "help": "tokens of each that are prefilled at a time"},
    "trajectories": {"type": _counts, "metavar": "N,N,…", "help": "how many, one after another"},
    "tasks": {**_NUMBER, "help": "tasks to solve"},
    "episodes": {"type": _counts, "metavar": "N,N,…", "help": "episodes, and tasks, of earlier steps"},
    "on-setup": {**_NUMBER, "help": "tasks on each setup, on average"},
    "turns": {**_NUMBER, "help": "actions a conversation"},
    "sizes": {"type": _amounts, "metavar": "GB,GB,…", "help": "sizes of the model, one after another"},
    "python": {"metavar": "PATH", "help": "an interpreter that has SGLang; without: that of make sglang"},
    "gigabytes": {"type": _amount, "metavar": "GB", "help": "size of the model"},
    "learning-rate": {"type": _amount, "metavar": "RATE", "help": "of AdamW"},
    "minutes": {**_NUMBER, "help": "after which it ends"},
    "out": {"metavar": "PATH", "help": "the folder for a file of each result; those that are there are not made again"},
    "kit": {"metavar": "PATH", "help": "what make gpu-kit prepared"},
    "steps": {**_NUMBER, "help": "steps, the first of which warms up"},
    "repeats": {**_NUMBER, "help": "repetitions after the warm-up"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns exit status 0; 1 if a suite does not fit into memory; 2 for settings that make no sense."""
    parser = _parser()
    settings = vars(parser.parse_intermixed_args(arguments))
    suites = settings.pop("suite") or [name for name in SUITES if name not in ASKED]
    as_object = settings.pop("json")
    try:
        runs = [(name, *_keywords(name, settings)) for name in suites]
        _refuse_unused(settings, suites)
        # Compilation must take the same time whatever was compiled here before.
        jax.config.update("jax_enable_compilation_cache", False)
        results = {}
        for name, suite, keywords in runs:
            # What a library prints goes to standard error, not among the figures.
            with contextlib.redirect_stdout(sys.stderr):
                results[name] = suite(**keywords)
            if not as_object:
                Console(width=None if sys.stdout.isatty() else 160).print(table(name, results[name]))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        # XLA's messages, also inside the engine's errors: the first on accelerators, the second on CPUs.
        if isinstance(error, RuntimeError) and not re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)):
            raise
        print(f"error: it does not fit into memory: {str(error)[:500]}\n{_SMALLER}", file=sys.stderr)
        return 1
    if as_object:
        print(json.dumps(_object(results)))
    return 0


_SMALLER = (
    "Try --remat=layers, --param-dtype=bfloat16 or --moments-dtype=bfloat16, fewer --layers, --micro-rows or --batch, "
    "or a shorter --row-length."
)


def _parser() -> CommandLineParser:
    parser = CommandLineParser("python -m experiments.bench", benchmarks.__doc__, allow_abbrev=False)
    parser.add_argument(
        "suite", nargs="*", metavar="SUITE", help=f"which; if none is named, all but {', '.join(sorted(ASKED))}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    for name, options in SETTINGS.items():
        key = name.replace("-", "_")
        used = {suite: keywords[key].default for suite, run in SUITES.items() if key in (keywords := _takes(run))}
        defaults = ", ".join(f"{suite} {_shown(default)}" for suite, default in used.items())
        parser.add_argument(f"--{name}", **{**options, "default": None, "help": f"{options['help']} ({defaults})"})
    return parser


def _shown(default: Any) -> str:
    return str(default) if default not in (None, (), False, "") else "–"


def _takes(suite: Callable[..., list[Row]]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(suite).parameters


def _keywords(name: str, given: Mapping[str, Any]) -> tuple[Callable[..., list[Row]], dict[str, Any]]:
    """The suite, and the settings that it takes of those that are set."""
    suite = choose(SUITES, name, "suite")
    return suite, {key: given[key] for key in _takes(suite) if given[key] is not None}


def _refuse_unused(given: Mapping[str, Any], chosen: Sequence[str]) -> None:
    """Raises ValueError for a setting that no chosen suite takes: it would have no effect."""
    for key, value in given.items():
        takers = [name for name, suite in SUITES.items() if key in _takes(suite)]
        if value is not None and not set(takers) & set(chosen):
            raise ValueError(
                f"--{key.replace('_', '-')} is no setting of {', '.join(chosen)}; it is one of {', '.join(takers)}"
            )


def _object(results: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """The object of --json: the machine and each suite's rows; a single row of a single suite is at the top too."""
    machine = facts()
    about = {"device": jax.devices()[0].device_kind, "jax": machine["versions"]["jax"], "machine": machine}
    suites: list[dict[str, Any]] = [
        {"suite": name, "rows": [as_json(row) for row in rows]} for name, rows in results.items()
    ]
    if len(suites) > 1:
        return {**about, "suites": suites}
    [suite] = suites
    alone: Mapping[str, Any] = suite["rows"][0] if len(suite["rows"]) == 1 else {}
    return {**about, **alone, **suite}

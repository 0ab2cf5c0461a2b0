"""Do the tests notice a mistake? python tests/mutants.py losses batch … [--seed=0] [--count=20]

Changes one thing at a time in a module of a copy of this checkout, and runs the tests of the module's rules until one
fails. Prints the lines of mutants that no test fails on, and how many each test caught. Without names: all of MODULES.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Name → the module, and the tests of its rules.
MODULES = {
    "losses": (
        "cojax/learner/losses.py",
        "learner/test_losses.py learner/test_loss_references.py learner/test_loss_reading.py learner/test_pairs.py",
    ),
    "weightings": ("cojax/learner/weightings.py", "learner/test_weightings.py learner/test_batch.py"),
    "batch": (
        "cojax/learner/batch.py",
        "learner/test_batch.py learner/test_packing.py learner/test_pairs.py "
        "learner/test_routing.py::test_routes_lie_at_the_tokens_that_were_fed "
        "learner/test_routing.py::test_routes_of_more_tokens_than_were_fed_are_refused",
    ),
    "update": (
        "cojax/learner/update.py",
        "learner/test_update.py learner/test_learner_invariance.py learner/test_learner.py",
    ),
    "signals": ("cojax/signals/detectors.py", "signals synthesis/test_selection.py"),
    "selection": (
        "cojax/synthesis/evolutions.py",
        "synthesis/test_selection.py synthesis/test_evolutions.py synthesis/test_idle.py",
    ),
    "validation": (
        "cojax/validation/__init__.py",
        "validation/test_validation.py validation/test_drafts.py validation/test_controls.py",
    ),
    "checkpoint": ("cojax/storage/checkpoint.py", "storage/test_checkpoint.py storage/test_run_directory.py"),
    "chat": ("cojax/rollout/chat.py", "rollout/test_chat.py rollout/test_control_tokens.py"),
    "play": ("cojax/environment/__init__.py", "environment"),
}
_OPERATOR_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
}  # fmt: skip
_NAME_SWAPS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_TIMEOUT_S = 600


def mutations(tree: ast.Module) -> Iterator[tuple[int, Callable[[], None]]]:
    """Line of each possible mutation, and what makes it in the tree."""
    for node in _walk_code(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATOR_SWAPS:
            yield line, lambda node=node: node.ops.__setitem__(0, _OPERATOR_SWAPS[type(node.ops[0])]())
        elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in _OPERATOR_SWAPS:
            yield line, lambda node=node: setattr(node, "op", _OPERATOR_SWAPS[type(node.op)]())
        elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            yield line, lambda node=node, value=value: setattr(node, "value", value)
        elif isinstance(node, (ast.If, ast.IfExp)):
            yield line, lambda node=node: setattr(node, "test", ast.UnaryOp(ast.Not(), node.test))
        elif isinstance(node, ast.Name) and node.id in _NAME_SWAPS:
            yield line, lambda node=node: setattr(node, "id", _NAME_SWAPS[node.id])
        elif isinstance(node, ast.Attribute) and node.attr in _NAME_SWAPS:
            yield line, lambda node=node: setattr(node, "attr", _NAME_SWAPS[node.attr])
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield line, lambda node=node: setattr(node, "value", ast.Constant(None))


def _walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but annotations, and what a raise holds."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns") or isinstance(node, ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _walk_code(child)


def mutants(source: str, seed: int, max_mutants: int) -> list[tuple[int, str]]:
    """Line and source of `max_mutants` mutants, drawn by the seed."""
    tree = ast.parse(source)
    indices = random.Random(seed).sample(
        range(mutation_count := len(list(mutations(tree)))), min(max_mutants, mutation_count)
    )
    mutated_sources = []
    for index in sorted(indices):
        mutated_tree = copy.deepcopy(tree)
        line, mutate = list(mutations(mutated_tree))[index]
        mutate()
        mutated_sources.append((line, ast.unparse(ast.fix_missing_locations(mutated_tree))))
    return mutated_sources


def first_failure(copy_of_root: Path, tests: Sequence[str]) -> str | None:
    """The first of these tests that fails, or what else ends them; None where all pass within the time."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy_of_root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        process = subprocess.run(
            command, cwd=copy_of_root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"more than {_TIMEOUT_S} s"
    if not process.returncode:
        return None
    failures = [line.split()[1] for line in process.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [*failures, f"exit status {process.returncode}"][0]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *MODULES], metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkout"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".*", "build", "runs", "results"))
        for name in options.names or MODULES:
            module, paths = MODULES[name]
            tests = [f"tests/{path}" for path in paths.split()]
            source = (root / module).read_text()
            if reason := first_failure(root, tests):
                sys.exit(f"error: the tests of {module} fail without a mutant: {reason}")
            mutated_sources = mutants(source, options.seed, options.count)
            survivors, killers = list[int](), collections.Counter[str]()
            for line, mutated_source in mutated_sources:
                (root / module).write_text(mutated_source)
                if killer := first_failure(root, tests):
                    killers[killer] += 1
                else:
                    survivors.append(line)
            (root / module).write_text(source)
            result = {"module": module, "mutants": len(mutated_sources), "survivors": survivors, "killers": killers}
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

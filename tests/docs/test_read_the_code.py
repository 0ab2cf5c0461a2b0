"""docs/read-the-code.md is a tour of an afternoon: at most twenty files, each once, of at most 4,000 lines of code."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STOPS = re.findall(r"^\d+\. \[`([^`]+)`\]\(\.\./\1\)", (ROOT / "docs/read-the-code.md").read_text(), re.MULTILINE)


def code_lines(source: str) -> int:
    """The lines of statements, without docstrings, comments and blank lines."""
    bare = ast.parse(source)
    for node in ast.walk(bare):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node) is not None :]
    nodes = [node for node in ast.walk(bare) if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.alias)]
    return len({line for node in nodes for line in (node.lineno, node.end_lineno)})


def test_the_tour_takes_an_afternoon() -> None:
    assert 12 <= len(STOPS) == len(set(STOPS)) <= 20
    lengths = {stop: code_lines((ROOT / stop).read_text()) for stop in STOPS}
    assert min(lengths.values()) > 20
    assert 3_000 <= sum(lengths.values()) <= 4_000


def test_every_number_of_the_tour_is_listed() -> None:
    text = (ROOT / "docs/read-the-code.md").read_text()
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(STOPS) + 1))

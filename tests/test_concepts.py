"""docs/concepts.md defines the nouns of the method: at most forty, each once, each a public class."""

import ast
import collections
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Marks of code in the first column of a table.
ROW = re.compile(r"^\| (`.+?`) \|", re.MULTILINE)


def nouns() -> list[str]:
    text = (ROOT / "docs/concepts.md").read_text()
    return [name for cell in ROW.findall(text) for name in re.findall(r"`(\w+)`", cell)]


def public_classes() -> list[str]:
    files = sorted((ROOT / "cojax").rglob("*.py"))
    nodes = (node for path in files for node in ast.parse(path.read_text()).body)
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def nouns_of_types() -> list[str]:
    tree = ast.parse((ROOT / "cojax/types.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def test_no_two_public_classes_share_a_name():
    assert [name for name, count in collections.Counter(public_classes()).items() if count > 1] == []


def test_each_noun_is_a_class_and_is_defined_once():
    assert [name for name, count in collections.Counter(nouns()).items() if count > 1] == []
    assert set(nouns()) <= set(public_classes())
    assert 30 <= len(nouns()) <= 40


def test_the_types_of_the_host_are_nouns():
    assert set(nouns_of_types()) <= set(nouns())

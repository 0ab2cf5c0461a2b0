"""docs/concepts.md has every public class of cojax, each once."""

import ast
import collections
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Marks of code at the start of a line of a list, and in the first column of a table.
LISTED = re.compile(r"^- `(\w+)`", re.MULTILINE)
ROW = re.compile(r"^\| (`.+?`) \|", re.MULTILINE)


def listed() -> list[str]:
    text = (ROOT / "docs/concepts.md").read_text()
    return LISTED.findall(text) + [name for cell in ROW.findall(text) for name in re.findall(r"`(\w+)`", cell)]


def public_classes() -> list[str]:
    files = sorted((ROOT / "cojax").rglob("*.py"))
    nodes = (node for path in files for node in ast.parse(path.read_text()).body)
    return [node.name for node in nodes if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def test_no_two_public_classes_share_a_name():
    assert [name for name, count in collections.Counter(public_classes()).items() if count > 1] == []


def test_every_public_class_is_listed_once():
    assert sorted(listed()) == sorted(public_classes())

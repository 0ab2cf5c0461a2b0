"""Fills reference.md: what each name of PUBLIC in tests/test_public.py says of itself."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

_LIST = Path(__file__).resolve().parents[2] / "tests" / "test_public.py"
_MARK = "<!-- names -->"


def public() -> dict[str, tuple[str, ...]]:
    """Module → stable names. Read as text, so that it can be imported without the tests' own packages."""
    for node in ast.parse(_LIST.read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PUBLIC" and node.value:
            return ast.literal_eval(node.value)
    raise ValueError(f"{_LIST} defines no PUBLIC: dict[…] = {{…}}; the stable names are listed there")


def _entry(module: str, name: str, shown: set[int]) -> list[str]:
    """The directive for a name. A second name of the same object refers to the first by its heading alone."""
    found = getattr(importlib.import_module(module), name, None)
    if found is None or isinstance(found, ModuleType):
        return [f".. automodule:: {module}.{name}", "   :members: get_config", "   :noindex:", ""]
    if id(found) in shown:
        return [f"``{name}`` is described above.", ""]
    shown.add(id(found))
    if inspect.isclass(found):
        return [f".. autoclass:: {module}.{name}", "   :members:", ""]
    if inspect.isroutine(found):
        return [f".. autofunction:: {module}.{name}", ""]
    return [f".. py:data:: {module}.{name}", "", *_value(found), ""]


def _value(value: object) -> list[str]:
    """A registry by its keys, any other value by itself."""
    if isinstance(value, dict):
        return ["   Entries: " + ", ".join(f"``{key}``" for key in value)]
    return [f"   ``{value!r}``"[:200]] if isinstance(value, (int, float, str)) else ["   A constant."]


def filled(text: str) -> str:
    """The page with the names in place of its mark."""
    if _MARK not in text:
        raise ValueError(f"reference.md has no {_MARK}; the names stand there")
    lines: list[str] = []
    shown: set[int] = set()
    for module, names in public().items():
        lines += [f"## {module}", "", "```{eval-rst}"]
        for name in names:
            lines += _entry(module, name, shown)
        lines += ["```", ""]
    return text.replace(_MARK, "\n".join(lines))


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "reference":
        source[0] = filled(source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

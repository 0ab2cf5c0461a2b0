"""Fills reference.md: what each name of PUBLIC in tests/test_public.py says of itself."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Mapping
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
        return [f".. automodule:: {module}.{name}", "   :members: get_config", "   :no-index:", ""]
    if id(found) in shown:
        return [f"``{name}`` is described above.", ""]
    shown.add(id(found))
    if inspect.isclass(found):
        return [f".. autoclass:: {module}.{name}", "   :members:", ""]
    if inspect.isroutine(found):
        return [f".. autofunction:: {module}.{name}", ""]
    lines = [f".. py:data:: {module}.{name}", ""]
    if isinstance(found, dict):
        return [*lines, "   Entries: " + ", ".join(f"``{key}``" for key in found), "", *_entries(found, shown)]
    return [*lines, f"   ``{found!r}``" if isinstance(found, (int, float, str)) else "   A constant.", ""]


def _entries(registry: Mapping[str, Any], shown: set[int]) -> list[str]:
    """The entries of a registry, each by its own docstring."""
    lines: list[str] = []
    for entry in registry.values():
        if id(entry) not in shown and (inspect.isroutine(entry) or inspect.isclass(entry)):
            shown.add(id(entry))
            kind = "class" if inspect.isclass(entry) else "function"
            lines += [f".. auto{kind}:: {entry.__module__}.{entry.__qualname__}", "   :no-index:", ""]
    return lines


def _signature(
    app: Sphinx, what: str, name: str, subject: Any, options: Any, arguments: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """A protocol has no signature: it is not called. A default that is this interpreter is named as such."""
    if what == "class" and vars(subject).get("_is_protocol"):
        return "", None
    return (arguments.replace(repr(sys.executable), "sys.executable"), returned) if arguments else None


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
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

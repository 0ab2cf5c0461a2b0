"""Docstrings are plain text with `code`; Sphinx reads reStructuredText.

Prose keeps its words: what would be markup there is escaped. A block that is indented stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_MARKUP = re.compile(r"([\\*|_`<>:])")
_ITEM = re.compile(r"([-•*]|\d+\.) ")


def as_restructured_text(lines: Iterable[str]) -> list[str]:
    """The docstring's lines as reStructuredText."""
    written: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        if not block.strip():
            continue
        written += [*_block(block.split("\n")), ""]
    return written


def _block(lines: list[str]) -> list[str]:
    """A paragraph, or a block whose lines and spaces are kept: an indented one, a list, or a table."""
    kept = any(line.startswith((" ", "\t")) or "   " in line.strip() or _ITEM.match(line) for line in lines)
    if kept:
        return ["::", "", *(f"   {line}" for line in lines)]
    return [_prose("\n".join(lines)).replace("\n", " ")]


def _prose(text: str) -> str:
    """The text with its code as ``code``, and all else that is markup escaped."""
    parts, at = [], 0
    for found in _CODE.finditer(text):
        parts += [_MARKUP.sub(r"\\\1", text[at : found.start()]), f"``{found[2].strip()}``\\ "]
        at = found.end()
    return "".join([*parts, _MARKUP.sub(r"\\\1", text[at:])])


def _read(app: Sphinx, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    lines[:] = as_restructured_text(lines)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

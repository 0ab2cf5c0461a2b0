"""The pages of the site in the order in which index.md links to them, under its headings.

So index.md is plain text on hosts of repositories too, and no list of pages stands twice.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx


def contents(text: str) -> str:
    """The tables of contents that follow from the text's headings and links."""
    parts, seen = [], set()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        pages = [page for page in re.findall(r"\]\(([\w-]+)\.md\)", body) if page not in seen]
        pages = list(dict.fromkeys(pages))
        seen |= set(pages)
        if pages:
            listed = "\n".join(pages)
            parts.append(f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n")
    return "\n".join(parts)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if page == "index":
        source[0] += f"\n{contents(source[0])}"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

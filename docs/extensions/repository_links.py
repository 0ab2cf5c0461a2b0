"""Links to files of the repository that are no page, such as ../experiments/desk.py.

The rule: a page links to such a file or folder by its path from the page, as hosts of repositories follow it. The site
has no address of the repository, so it holds a copy of each file that a page links to, and a list of each folder.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
# Files above this are named, not copied.
_LARGEST = 200_000  # bytes
_SCHEME = "repository:"
_LOG = logging.getLogger(__name__)


class RepositoryLinks(SphinxTransform):
    """Marks the links of a page that lead out of docs/. A link to nothing is a warning."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)) + list(
            self.document.findall(addnodes.download_reference)
        ):
            if not (target := str(node.get("reftarget", ""))):
                continue
            path = (ROOT / "docs" / target).resolve()
            if node.get("refdomain") == "doc":  # MyST names a page without its suffix
                path = path.with_name(f"{path.name}.md")
            if not path.is_relative_to(ROOT) or path.is_relative_to(ROOT / "docs"):
                continue
            if not path.exists():
                _LOG.warning("%s is not in the repository", target, location=node)
            name = path.relative_to(ROOT).as_posix()
            node.replace_self(nodes.reference("", "", *node.children, refuri=_SCHEME + name, internal=True))


def _resolve(app: Sphinx, document: nodes.document, page: str) -> None:
    for node in document.findall(nodes.reference):
        if (uri := node.get("refuri", "")).startswith(_SCHEME):
            name = uri.removeprefix(_SCHEME)
            _linked(app).add(name)
            node["refuri"] = app.builder.get_relative_uri(page, _page_of(name))


def _linked(app: Sphinx) -> set[str]:
    """The files and folders to which pages link, by their paths in the repository."""
    env: Any = app.env
    if not hasattr(env, "cojax_linked"):
        env.cojax_linked = set()
    return env.cojax_linked


def _page_of(name: str) -> str:
    return f"repository/{name or 'index'}"


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    for name in sorted(_linked(app)):
        path = ROOT / name
        body = _folder(app, path) if path.is_dir() else _file(path)
        yield _page_of(name), {"title": name, "body": f"<h1>{html.escape(name)}</h1>\n{body}"}, "page.html"


def _file(path: Path) -> str:
    if path.stat().st_size > _LARGEST:
        return f"<p>A file of {path.stat().st_size:,} bytes; see the repository.</p>"
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(path.read_text(errors="replace"), lexer, HtmlFormatter())


def _folder(app: Sphinx, folder: Path) -> str:
    """Its files; those that have a page are links."""
    items = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one != "__pycache__")
        for file in sorted(files):
            name = (Path(root) / file).relative_to(ROOT).as_posix()
            shown = html.escape(name)
            if name in _linked(app):
                shown = f'<a href="{app.builder.get_relative_uri(_page_of(_name(folder)), _page_of(name))}">{shown}</a>'
            items.append(f"<li>{shown}</li>")
    return f"<ul>{''.join(items)}</ul>"


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(RepositoryLinks)
    app.connect("doctree-resolved", _resolve)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}

"""The site of these pages, which `make docs` builds in build/docs; Sphinx with MyST."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent)]

project = "cojax"
author = "the cojax authors"
release = version = importlib.import_module("cojax").__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "plain_docstrings",
    "public_names",
    "reading_order",
    "repository_links",
]
exclude_patterns = ["extensions"]

# Headings have the anchors that hosts of repositories give them: [text](page.md#the-heading).
myst_heading_anchors = 4
smartquotes = False
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"cojax {release}"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False

"""`make docs` builds the site without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_pages import DOCS, ROOT
from patience import patience

import cojax

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["--builder", "html", "--fresh-env", "--fail-on-warning", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "--doctree-dir", folder / "trees", DOCS, folder / "html"],
        cwd=ROOT, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
        timeout=patience(900), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


def test_every_page_is_built(site: Path) -> None:
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in site.glob("*.html")}


def test_links_to_files_of_the_repository_lead_to_their_copies(site: Path) -> None:
    linked = set(re.findall(r"\]\(\.\./(results/[^)#]+\.md)\)", (DOCS / "study.md").read_text()))
    targets = re.findall(r'href="(repository/[^"#]+)"', (site / "study.html").read_text())
    assert linked
    assert {f"repository/{page}.html" for page in linked} <= set(targets)
    for page in site.glob("*.html"):
        for target in re.findall(r'href="(repository/[^"#]+)"', page.read_text()):
            assert (site / target).is_file(), f"{page.name}: {target}"


def test_every_stable_name_has_its_docstring(site: Path) -> None:
    text = (site / "reference.html").read_text()
    assert all(f'id="cojax.{name}"' in text for name in cojax.__all__)
    assert "The run in a folder." in text


def test_a_docstring_keeps_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    from plain_docstrings import as_restructured_text

    written = as_restructured_text(["Takes `a|b` of *x_ and **y:", "as it is.", "", "    loss = a * b", "", "End."])
    assert written == [
        "Takes ``a|b``\\  of \\*x\\_ and \\*\\*y\\: as it is.", "", "::", "", "       loss = a * b", "", "End.", "",
    ]  # fmt: skip


def test_the_contents_follow_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    from reading_order import contents

    found = contents(
        "# T\n## One\n[a](a.md) [b](b.md#x) [a](a.md)\n## Two\n[b](b.md) [r](../README.md)\n## Three\n[c](c.md)"
    )
    pages = [re.findall(r"^[a-z]$", part, re.MULTILINE) for part in found.split("```\n\n")]
    assert pages == [["a"], ["b"], ["c"]]

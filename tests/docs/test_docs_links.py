"""Every relative link of README.md and docs/ leads to a file, and every anchor to a heading."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_pages import DOCS, PAGES, ROOT, anchors, broken, links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_every_page_stands_in_the_index() -> None:
    listed = {link.partition("#")[0] for link in links((DOCS / "index.md").read_text())}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= listed


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[a](pods.md) [b](pods.md#the-table) ![c](report-400.png) [d](../deploy) <a href=\"api.md\">", []),
        ("[a](pod.md)", ["pod.md: no such file"]),
        ("[a](pods.md#a-table)", ["pods.md#a-table: no such heading"]),
        ("# One\n[a](#one) [b](#two)", ["#two: no such heading"]),
        ("[a](../../elsewhere)", ["../../elsewhere: no such file"]),
        ("`[a](pod.md)`\n```\n[a](pod.md)\n```\n[a](https://example.org/pod.md)", []),
        ("[a]: pod.md\n", ["pod.md: no such file"]),
        ("<img src=\"no.png\">", ["no.png: no such file"]),
    ],
)  # fmt: skip
def test_a_wrong_link_is_found(text: str, wrong: list[str]) -> None:
    assert broken(DOCS / "page.md", text) == wrong


def test_anchors_are_those_of_hosts() -> None:
    text = "# A `b.c` d\n## [Link](x.md), it's *here*\n## Same\n## Same\n```\n# none\n```\n## Ü-1 % x\n"
    assert anchors(text) == {"a-bc-d", "link-its-here", "same", "same-1", "ü-1--x"}


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 10_000


def test_pages_are_found() -> None:
    assert ROOT / "README.md" in PAGES
    assert len(PAGES) > 30

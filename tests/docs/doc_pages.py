"""What README.md and the pages of docs/ hold: links, anchors, code blocks, and the commands in them."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
_FENCE = re.compile(r"^ *(?P<marks>```+|~~~+)(?P<language>\S*).*\n(?P<text>(?:.*\n)*?) *(?P=marks) *$", re.M)
_CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|(?:src|href)=\"([^\"]+)\"|^\[[^\]]+\]:\s*(\S+)", re.M)
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.M)
_ENDS = ("&", "&&", "|", "||", ";", ">", ">>")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, "" where it has none, and its text."""

    page: str
    language: str
    text: str


def blocks(text: str, page: str = "") -> Iterator[Block]:
    for found in _FENCE.finditer(text):
        yield Block(page, found["language"], found["text"])


def links(text: str) -> list[str]:
    """The targets of a page's links and images; what stands in code is none."""
    prose = _CODE.sub("", _FENCE.sub("", text))
    return [next(filter(None, groups)) for groups in _LINK.findall(prose)]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as hosts of repositories make them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        again = sum(1 for one in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", one))
        found.add(f"{name}-{again}" if name in found else name)
    return found


def broken(page: Path, text: str) -> list[str]:
    """The relative links of a page that lead to no file, or to no heading."""
    wrong = []
    for target in links(text):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if path and not (file.exists() and file.is_relative_to(ROOT)):
            wrong.append(f"{target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in anchors(text if file == page else file.read_text()):
            wrong.append(f"{target}: no such heading")
    return wrong


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block that start this project: `-m`, module and arguments, or `cojax` and its arguments."""
    for line in block.text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a drawing, or what a command prints
            continue
        while words:
            end = next((at for at, word in enumerate(words) if word in _ENDS), len(words))
            if command := _started([word for word in words[:end] if word != "…"]):
                yield command
            words = words[end + 1 :]


def _started(words: list[str]) -> list[str]:
    while words and re.match(r"\w+=", words[0]):  # variables of the environment
        words = words[1:]
    if len(words) > 2 and words[1] == "-m" and re.search(r"python[\d.]*$|^\$P$", words[0]):
        return words[1:]
    return words if words[:1] == ["cojax"] and len(words) > 1 and not words[1].endswith("/") else []


def spans(text: str) -> list[str]:
    """What stands in code within the prose of a page, on one line each."""
    return [" ".join(code.split()) for _, code in _CODE.findall(_FENCE.sub("", text))]

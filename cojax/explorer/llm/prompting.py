"""Reads the prompts from the files in prompts/ and fills their slots; the prompts' version is a hash of all files."""

from __future__ import annotations

import functools
import hashlib
import re
from pathlib import Path

from cojax.types import Message, content_hash

_FOLDER = Path(__file__).parent / "prompts"
_PART = re.compile(r"^# (\w+)\n", re.MULTILINE)
_SLOT = re.compile(r"{{(\w+)}}")


@functools.cache
def version() -> str:
    """8 hex digits of the SHA-256 of all prompts, by name."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.md")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]


@functools.cache
def parts(name: str) -> dict[str, str]:
    """The parts of a prompt file, by their headings: lines `# heading`."""
    _, *pieces = _PART.split((_FOLDER / f"{name}.md").read_text())
    return {heading: text.strip() for heading, text in zip(pieces[::2], pieces[1::2], strict=True)}


def fill(text: str, **values: str) -> str:
    """The text with values for its slots `{{name}}`; slots within values stay. Raises KeyError for a missing value."""
    return _SLOT.sub(lambda slot: values[slot[1]], text)


def prompt(name: str, **values: str) -> tuple[Message, Message]:
    """The system and the user message of a prompt file, filled."""
    both = parts(name)
    return tuple(Message(role, fill(both[role], **values)) for role in ("system", "user"))  # type: ignore[return-value]


def data(text: str) -> str:
    """Untrusted text between marks. The text cannot contain these marks, as they contain the text's hash."""
    mark = content_hash(text)[:8]
    return f"<data {mark}>\n{text}\n</data {mark}>"


def bullets(lines: tuple[str, ...] | list[str]) -> str:
    """The lines as a list; "- (nothing)" where there are none."""
    return "\n".join(f"- {line}" for line in lines) or "- (nothing)"

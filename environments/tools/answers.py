"""Answers: what an actor says as one, and whether it is the expected one."""

from __future__ import annotations

import json
from typing import Any

from cojax.types import Action, canonical


def spoken_answer(action: Action) -> str | None:
    """The answer in an action without calls: its text without a thought, None where there is none."""
    return action.text.rpartition("</think>")[2].strip() or None


def same_answer(given: str | None, expected: str) -> bool:
    """Whether an answer is the expected one: as JSON, or as text without differences of case and white space."""
    if given is None:
        return False
    ours, theirs = read(given), read(expected)
    if isinstance(ours, str) and isinstance(theirs, str):
        return " ".join(ours.casefold().split()) == " ".join(theirs.casefold().split())
    return canonical(ours) == canonical(theirs)


def read(text: str) -> Any:
    """The JSON that a text is, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

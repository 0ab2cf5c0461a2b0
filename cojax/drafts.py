"""Checks a draft's text before it is hashed, compared or run: it must be readable and of bounded size."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action
from cojax.unicode_forms import normal_form

# The greatest value that `longest_query` may be set to.
MOST_CHARACTERS = 100_000
# Bounds of a solution: actions, calls of one action; and over all of it values, characters and depth.
_ACTIONS, _CALLS, _VALUES, _CHARACTERS, _DEPTH = 200, 64, 10_000, 200_000, 32
# The control tokens of common chat templates, which are refused in addition to the policy's own.
_TEMPLATE = re.compile(
    r"<\|[^\s<>|]{1,40}\|>|</?(?:s|bos|eos|pad|unk|think|tool_call|tool_response|start_of_turn|end_of_turn)>|\[/?inst\]"
)
# Invisible letters: the fillers of Hangul.
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
_LINES = frozenset("\n\r\t")
# Joiners and marks of direction, which some languages need.
_JOINERS = frozenset("\u200c\u200d\u200e\u200f\u061c\u00ad")
# Category of characters → what they are.
_UNREADABLE = {
    "Cs": "half a surrogate pair", "Cc": "a control character", "Cf": "a character that hides or turns text",
    "Co": "a character for private use",
}  # fmt: skip
# Any character but letters, digits, underscores and white space.
_SIGN = re.compile(r"[^\w\s]")


class DraftRefused(Exception):
    """A check refuses the draft; `quarantine` names the rule for which a person should look at it."""

    def __init__(self, reason: str, quarantine: str = ""):
        super().__init__(reason)
        self.quarantine = quarantine


def flaw(query: str, longest: int, control_tokens: Sequence[str] = ()) -> str:
    """Why a query is refused, as a line of evidence; "" if it is not refused.

    A query must be text of at most `longest` characters with a letter or a digit. It must not contain lone surrogates,
    control characters, characters that hide or reverse text, or a literal of `control_tokens` in any case or width.
    """
    if not isinstance(query, str):
        return f"the query is {type(query).__name__}; expected text"
    if len(query) > longest:
        return f"the query has {len(query):,} characters; at most {longest:,} are taken (validation.longest_query)"
    for character in query:
        if name := _unreadable(character):
            return f"the query holds {name}, U+{ord(character):04X}; expected plain text"
    if not any(unicodedata.category(c)[0] in "LN" and c not in _FILLERS for c in query):
        return "the query has no letter and no digit; expected words that ask for something"
    folded_query = _fold(query)
    if match := _TEMPLATE.search(folded_query):
        return f"the query holds {match[0]!r}, a control token of chat templates"
    for literal in control_tokens:
        # Some tokenizers have runs of spaces, or other ordinary text, among their control tokens.
        if len(literal.strip()) > 2 and _SIGN.search(literal) and _fold(literal) in folded_query:
            return f"the query holds {literal!r}, a control token of the policy's template"
    return ""


def oversize(solution: Sequence[Action]) -> str:
    """Why a solution is too large to play or not JSON; "" if it can be played."""
    if len(solution) > _ACTIONS:
        return f"the solution has {len(solution):,} actions; at most {_ACTIONS} are played"
    calls = [call for action in solution for call in action.calls]
    if any(len(action.calls) > _CALLS for action in solution):
        return f"an action has more than {_CALLS} calls"
    characters, values = 0, 0
    stack: list[tuple[int, Any]] = [(0, action.text) for action in solution]
    for call in calls:
        stack += [(0, call.name), (0, call.arguments)]
    while stack:
        depth, value = stack.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
            if characters <= _CHARACTERS and any(unicodedata.category(c) == "Cs" for c in value):
                return "the solution holds half a surrogate pair; expected text"
        elif isinstance(value, Mapping | list | tuple):
            children = [child for pair in value.items() for child in pair] if isinstance(value, Mapping) else value
            values += len(children)
            if values <= _VALUES:
                stack += [(depth + 1, child) for child in children]
        elif isinstance(value, int):
            # An estimate: Python takes long to write out a number with millions of digits.
            characters += value.bit_length() // 3
        elif isinstance(value, float) and math.isfinite(value):
            characters += 24
        elif value is not None:
            return f"an argument of the solution is {value!r:.60}; expected what JSON holds"
        if depth > _DEPTH:
            return f"arguments of the solution nest deeper than {_DEPTH} levels"
        if characters > _CHARACTERS or values > _VALUES:
            return f"the solution holds more than {_CHARACTERS:,} characters or {_VALUES:,} values"
    return ""


def _unreadable(character: str) -> str:
    """What a character is that a query must not hold; "" for any other character."""
    if character in _LINES or character in _JOINERS:
        return ""
    if ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF:
        return "a code point that is no character"
    return _UNREADABLE.get(unicodedata.category(character), "")


def _fold(text: str) -> str:
    """The text in one case and width, without white space and invisible characters."""
    plain = normal_form("NFKC", text).casefold()
    visible = (c for c in plain if not c.isspace() and c not in _FILLERS)
    return "".join(c for c in visible if unicodedata.category(c) not in ("Cf", "Mn", "Me"))

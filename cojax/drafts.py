"""Checks a draft's text before it is hashed, compared or run: it must be readable and of bounded size."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action
from cojax.unicode_forms import normalise_form

# The greatest value that `longest_query` may be set to.
MAX_QUERY_CHARACTERS = 100_000
# A solution has at most this many actions, calls in one action, values, characters, and levels of nesting.
_MAX_ACTIONS, _MAX_CALLS, _MAX_ARGUMENT_VALUES, _MAX_CHARACTERS, _MAX_NESTING = 200, 64, 10_000, 200_000, 32
# The control tokens of common chat templates, which are refused in addition to the policy's own.
_CONTROL_TOKEN_PATTERN = re.compile(
    r"<\|[^\s<>|]{1,40}\|>|</?(?:s|bos|eos|pad|unk|think|tool_call|tool_response|start_of_turn|end_of_turn)>|\[/?inst\]"
)
# Invisible letters: the fillers of Hangul.
_INVISIBLE_LETTERS = frozenset("\u115f\u1160\u3164\uffa0")
_WHITE_SPACE = frozenset("\n\r\t")
# Joiners and marks of direction, which some languages need.
_JOINERS = frozenset("\u200c\u200d\u200e\u200f\u061c\u00ad")
# Category of characters → what they are.
_DESCRIPTION_BY_CATEGORY = {
    "Cs": "half a surrogate pair", "Cc": "a control character", "Cf": "a character that hides or turns text",
    "Co": "a character for private use",
}  # fmt: skip
# Any character but letters, digits, underscores and white space.
_SYMBOL_PATTERN = re.compile(r"[^\w\s]")


class DraftRefused(Exception):
    """A check refuses the draft; `quarantine` names the rule for which a person should look at it."""

    def __init__(self, reason: str, quarantine: str = ""):
        super().__init__(reason)
        self.quarantine = quarantine


def find_flaw(query: str, max_length: int, control_tokens: Sequence[str] = ()) -> str:
    """Why a query is refused, as a line of evidence; "" if it is not refused.

    A query must be text of at most `max_length` characters with a letter or a digit. It must not contain lone
    surrogates, control characters, characters that hide or reverse text, or a literal of `control_tokens` in any case
    or width.
    """
    if not isinstance(query, str):
        return f"the query is {type(query).__name__}; expected text"
    if len(query) > max_length:
        return f"the query has {len(query):,} characters; at most {max_length:,} are taken (validation.longest_query)"
    for character in query:
        if description := _describe_unreadable(character):
            return f"the query holds {description}, U+{ord(character):04X}; expected plain text"
    if not any(unicodedata.category(char)[0] in "LN" and char not in _INVISIBLE_LETTERS for char in query):
        return "the query has no letter and no digit; expected words that ask for something"
    folded_query = _fold(query)
    if control_match := _CONTROL_TOKEN_PATTERN.search(folded_query):
        return f"the query holds {control_match[0]!r}, a control token of chat templates"
    for literal in control_tokens:
        # Some tokenizers have runs of spaces, or other ordinary text, among their control tokens.
        if len(literal.strip()) > 2 and _SYMBOL_PATTERN.search(literal) and _fold(literal) in folded_query:
            return f"the query holds {literal!r}, a control token of the policy's template"
    return ""


def find_excess(solution: Sequence[Action]) -> str:
    """Why a solution is too large to play or not JSON; "" if it can be played."""
    if len(solution) > _MAX_ACTIONS:
        return f"the solution has {len(solution):,} actions; at most {_MAX_ACTIONS} are played"
    calls = [call for action in solution for call in action.calls]
    if any(len(action.calls) > _MAX_CALLS for action in solution):
        return f"an action has more than {_MAX_CALLS} calls"
    total_length, value_count = 0, 0
    stack: list[tuple[int, Any]] = [(0, action.text) for action in solution]
    for call in calls:
        stack += [(0, call.name), (0, call.arguments)]
    while stack:
        depth, value = stack.pop()
        value_count += 1
        if isinstance(value, str):
            total_length += len(value)
            if total_length <= _MAX_CHARACTERS and any(unicodedata.category(char) == "Cs" for char in value):
                return "the solution holds half a surrogate pair; expected text"
        elif isinstance(value, Mapping | list | tuple):
            children = [child for pair in value.items() for child in pair] if isinstance(value, Mapping) else value
            value_count += len(children)
            if value_count <= _MAX_ARGUMENT_VALUES:
                stack += [(depth + 1, child) for child in children]
        elif isinstance(value, int):
            # An estimate: Python takes long to write out a number with millions of digits.
            total_length += value.bit_length() // 3
        elif isinstance(value, float) and math.isfinite(value):
            total_length += 24
        elif value is not None:
            return f"an argument of the solution is {value!r:.60}; expected what JSON holds"
        if depth > _MAX_NESTING:
            return f"arguments of the solution nest deeper than {_MAX_NESTING} levels"
        if total_length > _MAX_CHARACTERS or value_count > _MAX_ARGUMENT_VALUES:
            return f"the solution holds more than {_MAX_CHARACTERS:,} characters or {_MAX_ARGUMENT_VALUES:,} values"
    return ""


def leave_out(actions: Sequence[Action], index: int, call_index: int | None = None) -> tuple[Action, ...]:
    """The actions without one, or without one of its calls and its text, which may spell the calls out."""
    calls = () if call_index is None else actions[index].calls[:call_index] + actions[index].calls[call_index + 1 :]
    return (*actions[:index], *((Action(calls=calls),) if calls else ()), *actions[index + 1 :])


def _describe_unreadable(character: str) -> str:
    """What a character is that a query must not hold; "" for any other character."""
    if character in _WHITE_SPACE or character in _JOINERS:
        return ""
    if ord(character) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(character) <= 0xFDEF:
        return "a code point that is no character"
    return _DESCRIPTION_BY_CATEGORY.get(unicodedata.category(character), "")


def _fold(text: str) -> str:
    """The text in one case and width, without white space and invisible characters."""
    folded_text = normalise_form("NFKC", text).casefold()
    visible_characters = (char for char in folded_text if not char.isspace() and char not in _INVISIBLE_LETTERS)
    return "".join(char for char in visible_characters if unicodedata.category(char) not in ("Cf", "Mn", "Me"))

"""The safety filter: sets drafts aside for review by a person, by rules over their words and actions.

Rules match words, not intentions. A draft that matches is set aside with its evidence: it is never trained on and never
dropped silently. The rules concern wholesale harm and other people's secrets. Deleting one file or logging in is
allowed.
"""

import codecs
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cojax.explorer.answers import list_leaves
from cojax.types import TaskDraft, signature
from cojax.validation.decodings import decode, to_plain
from cojax.validation.mention import ENGLISH

_FAMILY_PATTERN = re.compile(r"<([A-Z_]+)>")


def _read_rules(text: str) -> list[dict[str, re.Pattern[str]]]:
    """Rule → one pattern that matches if any of its patterns does: for the query of a draft, and for its actions.

    Raises KeyError for a family that is not defined before its use.
    """
    sections, families = tomllib.loads(text), dict[str, str]()

    def fill(pattern: str) -> str:
        return _FAMILY_PATTERN.sub(lambda name: families[name[1]], pattern)

    for name, pattern in sections["families"].items():
        families[name] = fill(pattern)
    return [
        {rule: re.compile("|".join(map(fill, rule_patterns))) for rule, rule_patterns in sections[section_name].items()}
        for section_name in ("query", "actions")
    ]


QUERY_RULES, ACTION_RULES = _read_rules(Path(__file__).with_name("safety_rules.toml").read_text("utf-8"))
_MODEL_RULE = {"instructions to a model": QUERY_RULES["instructions to a model"]}
_COMMONEST_WORDS = frozenset(ENGLISH["commonest"].split())
# A text of more characters is not decoded, only read as it is.
_MAX_DECODED_LENGTH = 20_000


def find_violated_rule(draft: TaskDraft) -> str:
    """The first rule that the draft violates, with the words that match; empty if it violates none."""
    request = f"{draft.query}\n{draft.description}\n{draft.criterion}"
    done = "\n".join(f"{signature(action)}\n{action.text}" for action in draft.solution)
    # The arguments of a call may carry a request to someone else.
    arguments = [text for action in draft.solution for call in action.calls for text in _list_texts(call.arguments)]
    readings = [reading for text in dict.fromkeys((request, *arguments)) for reading in _list_readings(text)]
    texts_by_rules = ((QUERY_RULES, readings), (ACTION_RULES, [_plain(done), *readings]), (_MODEL_RULE, [_plain(done)]))
    for rules, texts in texts_by_rules:
        for rule, pattern in rules.items():
            if match := next(filter(None, map(pattern.search, texts)), None):
                return f"{rule}: {match[0][:120]!r}"
    return ""


def _list_readings(text: str) -> Iterator[str]:
    """The text unchanged, decoded, reversed, and in the commonest cipher (ROT13)."""
    yield _plain(text)
    if len(text) > _MAX_DECODED_LENGTH or not any(map(str.isalpha, text)):
        return
    for _, reading in decode(text):
        yield _plain(reading)
    plain_text = _plain(text)
    for reading in (plain_text[::-1], codecs.encode(plain_text, "rot13")):
        # A text that reads as English is not also a cipher text.
        if _count_common_words(reading) >= _count_common_words(plain_text):
            yield reading


def _count_common_words(text: str) -> int:
    """The number of words in the text that are among the commonest of English."""
    return sum(word in _COMMONEST_WORDS for word in text.split())


def _list_texts(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a call's arguments: every key and value at any depth, and all values of one argument joined.

    They are joined because a text may be cut into a list.
    """
    for parameter, value in arguments.items():
        values = [*map(str, list_leaves(value))]
        yield from (key.replace("_", " ") for key in (str(parameter), *_list_keys(value)))
        yield from values
        if len(values) > 1:
            yield " ".join(values)


def _list_keys(value: Any) -> Iterator[str]:
    """The keys of a value at any depth."""
    stack = [value]
    while stack:
        match stack.pop():
            case Mapping() as inner:
                yield from map(str, inner)
                stack += inner.values()
            case list() | tuple() as inner:
                stack += inner


def _plain(text: str) -> str:
    """The text in plain lower-case letters and single spaces, without invisible characters."""
    return " ".join(_QUOTES_PATTERN.sub("'", to_plain(text)).casefold().split())


# Unicode's table turns a double quotation mark into two single ones.
_QUOTES_PATTERN = re.compile("''+")

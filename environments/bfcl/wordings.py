"""The user's turns: calls worded as tools.txt says.

Values are written out, text in quotes, so that different calls have different wordings.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Call, Triplet

_TABLE = Path(__file__).with_name("tools.txt").read_text(encoding="utf-8").replace("\n        ", " ")
# Of tools.txt: list → what it holds; tool → the request for a call of it; tool → parameter → what is tried for it.
LISTS: Mapping[str, str] = dict(re.findall(r"^(\w+) = (.+)$", _TABLE, re.MULTILINE))
WORDINGS: Mapping[str, str] = dict(re.findall(r"^(\w+): (.+)$", _TABLE, re.MULTILINE))
PARAMETERS: Mapping[str, Mapping[str, str]] = {
    tool: dict(re.findall(r"^    (\w+): (.+)$", lines, re.MULTILINE))
    for tool, lines in re.findall(r"^(\w+): .+\n((?:    .+\n)*)", _TABLE, re.MULTILINE)
}

_JOINER = ", then "
_SLOT = re.compile(r"{(\w+)(?::([^|}]*)\|([^}]*))?}")
_OPTION = re.compile(r"\[(\w+)=([^:]*):((?:[^\]{]|{[^}]*})*)\]")


def phrase(steps: Sequence[Triplet]) -> list[str] | None:
    """The user's turns that the steps fulfil; an action without calls ends a turn.

    None where a step failed, a turn is empty or the last one is not ended, or a call has no wording for an argument.
    """
    turns: list[str] = []
    said: list[str] = []
    for step in steps:
        if not step.observation.ok:
            return None
        for call in step.action.calls:
            worded = word(call)
            if worded is None:
                return None
            said.append(worded)
        if not step.action.calls:
            if not said:
                return None
            text = _JOINER.join(said)
            turns.append(f"{text[0].upper()}{text[1:]}.")
            said = []
    return turns if turns and not said else None


def word(call: Call) -> str | None:
    """The user's request for this call; None where an argument has no slot or a slot no argument."""
    given, placed = call.arguments, set[str]()

    def option(found: re.Match[str]) -> str:
        """The words of an option that is given, and is not what it is by default."""
        name, default, words = found.groups()
        placed.add(name)
        if name not in given or given[name] == json.loads(default):
            return ""
        if given[name] is not True and not _SLOT.search(words):
            raise ValueError(f"{name} can only be said to be true")
        return words

    def slot(found: re.Match[str]) -> str:
        name, yes, no = found.groups()
        placed.add(name)
        if (yes or no) and not isinstance(given[name], bool):
            raise ValueError(f"{name} is neither true nor false")
        return _value(given[name], yes, no)

    try:
        text = _SLOT.sub(slot, _OPTION.sub(option, WORDINGS[call.name]))
    except (KeyError, ValueError):
        return None
    return text if set(given) <= placed else None


def _value(value: Any, yes: str | None, no: str | None) -> str:
    if yes or no:
        return str(yes if value else no)
    if isinstance(value, str):
        # Quotes inside the text, line breaks and the like are written as in JSON.
        return json.dumps(value, ensure_ascii=False) if re.search(r"['\\\x00-\x1f]", value) else f"'{value}'"
    if isinstance(value, list):
        return ", ".join(_value(item, None, None) for item in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} to {_value(item, None, None)}" for key, item in value.items()) or "nothing"
    return json.dumps(value)

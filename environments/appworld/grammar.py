"""Words steps of the scripted explorer as a query: the request that they fulfil."""

import json
import re
from collections.abc import Sequence
from typing import Any

from cojax.types import Call, Triplet
from .skills import ENDING, SKILLS

_JOINER = ", then "
_SLOT = re.compile(r"{(!?)(\w+)(?::([^|}]*)\|([^}]*))?}")


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that the steps fulfil; None where they cannot be worded.

    A task ends by completing it, once. A look-up is worded where it stands last and its value is the answer.
    """
    done = [(call, step.observation) for step in steps for call in step.action.calls]
    if len(done) < 2 or len(done) != len(steps) or not all(observation.ok for _, observation in done):
        return None
    (*before, (last, observed)), (ending, _) = done[:-1], done[-1]
    if ending.name != ENDING or any(call.name not in SKILLS for call, _ in done[:-1]):
        return None
    if any(SKILLS[call.name].look for call, _ in before):
        return None
    if ending.arguments != ({"answer": observed.text} if SKILLS[last.name].look else {}):
        return None
    if SKILLS[last.name].look and not (observed.text.strip() and "\n" not in observed.text):
        return None
    clauses = [_wording(call) for call, _ in done[:-1]]
    if None in clauses or len(set(clauses)) < len(clauses):
        return None
    text = _JOINER.join(filter(None, clauses))
    return f"{text[0].upper()}{text[1:]}."


def _wording(call: Call) -> str | None:
    skill = SKILLS[call.name]
    if call.arguments.keys() != set(skill.parameters):
        return None
    return _SLOT.sub(lambda slot: _value_text(call.arguments[slot[2]], slot), skill.wording)


def _value_text(value: Any, slot: re.Match[str]) -> str:
    bare, _, yes, no = slot.groups()
    if yes or no:
        return str(yes if value else no)
    if isinstance(value, str) and (bare or not re.search(r"['\\\x00-\x1f]", value)):
        return value if bare else f"'{value}'"
    return json.dumps(value, ensure_ascii=False)

"""Checks the answer of a solution: an action must have shown it, and the query must not give it away."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.explorer.answers import answer_objections, leaves, states_value, written_answers
from cojax.types import Triplet

# Answers to a question of yes or no: the query may contain them.
_YES_NO = frozenset({"true", "false", "yes", "no"})
_SHORT = 60  # characters of an answer in a line of evidence


@dataclasses.dataclass(frozen=True)
class AnswerCheck:
    """The reason to refuse an answer, or the evidence for it; both empty where the solution gives no answer."""

    against: str = ""
    line: str = ""


def check_answer(
    query: str, steps: Sequence[Triplet], end: Mapping[str, Any], ending: str, document: Mapping[str, Any]
) -> AnswerCheck:
    """Checks the answer that these steps give.

    `end` is the last state, which holds the answer under "answer" if the environment keeps one. `ending` is the tool
    that ends an episode; the first parameter of its `document` carries the answer. An answer in code that is no literal
    counts as worked out. It must not stand in the query either, except for a number, which may agree by chance.
    """
    parameter = next(iter(document.get("parameters", {}).get("properties", {})), None)
    if against := answer_objections(steps, ending, parameter):
        return AnswerCheck(against[0])
    plain = [value for value in written_answers(steps, ending, parameter) if value is not None]
    worked_out = [value for value in leaves(end.get("answer")) if value not in (None, "") and value not in plain]
    for value in (*plain, *(value for value in worked_out if isinstance(value, str) and not _is_number(value))):
        if str(value).strip().lower() not in _YES_NO and states_value(query, value):
            return AnswerCheck(f"the query holds the answer {str(value)!r:.{_SHORT}}")
    if plain:
        return AnswerCheck(line=f"the answer {str(plain[0])!r:.{_SHORT}} is shown by an action, and not in the query")
    if worked_out:
        text = f"{str(worked_out[0])!r:.{_SHORT}}"
        return AnswerCheck(line=f"the answer {text} is worked out in code: whether it was shown cannot be told")
    return AnswerCheck()


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

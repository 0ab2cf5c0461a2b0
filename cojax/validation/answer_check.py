"""Checks the answer of a solution: an action must have shown it, the query must ask for it and not give it away."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cojax.explorer.answers import answer_objections, leaves, states_value, written_answers
from cojax.types import Triplet, normalise
from cojax.validation.asking import asks, may_ask
from cojax.validation.consistency import Documents, action_words, documentation_words
from cojax.validation.hints import hint
from cojax.validation.mention import words

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
        if (said := str(value).strip()).lower() in _YES_NO:
            continue
        if states_value(query, value):
            return AnswerCheck(f"the query holds the answer {str(value)!r:.{_SHORT}}")
        if how := hint(query, said):
            return AnswerCheck(f"the query gives the answer {str(value)!r:.{_SHORT}} away: {how}")
    if plain:
        return AnswerCheck(line=f"the answer {str(plain[0])!r:.{_SHORT}} is shown by an action, and not in the query")
    if worked_out:
        text = f"{str(worked_out[0])!r:.{_SHORT}}"
        return AnswerCheck(line=f"the answer {text} is worked out in code: whether it was shown cannot be told")
    return AnswerCheck()


def takes_answer(end: Mapping[str, Any], ending: str, document: Mapping[str, Any]) -> bool:
    """Whether an episode with this last state can end with an answer."""
    return bool(document.get("parameters", {}).get("properties")) if ending else "answer" in end


def asking_flaw(
    query: str, steps: Sequence[Triplet], changing: Collection[int], bare: str | None, given: bool, documents: Documents
) -> str:
    """Why the query asks for no answer where one is given, or for one where none is given; "" if it does neither.

    `changing` are the positions of the steps that change the world, and `bare` the environment's wording of the steps
    with a bare ending, None if it has none.
    """
    if given and bare is not None and normalise(bare) == normalise(query):
        return "the solution gives an answer, and the query asks for none: the environment words it so without one"
    calls = [call for step in steps[:-1] for call in step.action.calls]
    values = {word for call in calls for word in words(str([*call.arguments.values()]))}
    done = {word for place in changing for word in words(action_words(documents, steps[place].action))}
    done |= values | {*words(bare or "")}
    if not given:
        found = asks(query, done, len(changing) < len(steps) - 1)
        return f"the query asks for an answer, {found!r:.{_SHORT}}, and the solution gives none" if found else ""
    looks = (call.name for place, step in enumerate(steps[:-1]) if place not in changing for call in step.action.calls)
    about = {word for tool in looks for word in words(documentation_words(documents, tool))} - done
    return "" if may_ask(query, done, about) else "the solution gives an answer, and the query asks for none"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

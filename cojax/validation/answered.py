"""Whether the answer of a solution was found: an action showed it, and the query does not say it already."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.explorer.answers import holds, leaves, unfounded, written
from cojax.types import Triplet

# A query that asks a question of yes or no may well say one of them.
_VERDICTS = frozenset({"true", "false", "yes", "no"})
_SHORT = 60


@dataclasses.dataclass(frozen=True)
class Answered:
    """What speaks against an answer, and what was found about it; both empty where none is given."""

    against: str = ""
    line: str = ""


def answered(
    query: str, steps: Sequence[Triplet], end: Mapping[str, Any], ending: str, document: Mapping[str, Any]
) -> Answered:
    """`end` is the last state, where the answer stands under "answer" if the environment keeps one; `ending` the tool
    that ends an episode, with its `document`, whose first parameter carries the answer.

    An answer in code that is no plain literal counts as worked out: it must not stand in the query either, but for a
    number, which may be the same by chance.
    """
    parameter = next(iter(document.get("parameters", {}).get("properties", {})), None)
    if against := unfounded(steps, ending, parameter):
        return Answered(against[0])
    plain = [value for value in written(steps, ending, parameter) if value is not None]
    worked_out = [value for value in leaves(end.get("answer")) if value not in (None, "") and value not in plain]
    for value in (*plain, *(value for value in worked_out if isinstance(value, str) and not _number(value))):
        if str(value).strip().lower() not in _VERDICTS and holds(query, value):
            return Answered(f"the query holds the answer {str(value)!r:.{_SHORT}}")
    if plain:
        return Answered(line=f"the answer {str(plain[0])!r:.{_SHORT}} is shown by an action, and not in the query")
    if worked_out:
        shown = f"{str(worked_out[0])!r:.{_SHORT}}"
        return Answered(line=f"the answer {shown} is worked out in code: whether it was shown cannot be told")
    return Answered()


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

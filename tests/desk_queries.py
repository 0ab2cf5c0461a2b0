"""Reads the queries of the desk, to compare what the generator and the grammar say with what is meant."""

from __future__ import annotations

import re

from environments.desk.generator import JOINER, Plan
from environments.desk.skills import DESK, Skill, Suite


def read(query: str, suite: Suite = DESK) -> Plan:
    """The skills a query names, with their words. Raises ValueError for a clause outside the language."""
    return tuple(_read_clause(clause, suite) for clause in query.split(JOINER))


def _read_clause(clause: str, suite: Suite) -> tuple[Skill, dict[str, str]]:
    for skill in suite.skills:
        match = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>\\w+)", skill.wording), clause)
        words = match.groupdict() if match else {}
        if (
            match
            and len({*words.values()}) == len(words)
            and all(words[slot] in suite.words_of(slot) for slot in words)
        ):
            return skill, words
    raise ValueError(f"clause {clause!r} matches no skill; the wordings stand in environments/desk/skills.txt")

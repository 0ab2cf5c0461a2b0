"""Which of the simulator's commands are worth trying, and how a sequence of them is worded."""

import re
from collections.abc import Iterable, Sequence

from cojax.types import Triplet
from ..tools import commands
from ..tools.commands import verb

# Verbs of which a task cannot consist: those that only show something, let time pass, or concern the official task.
UNASKED = frozenset(("look", "examine", "read", "inventory", "task", "wait", "wait1", "focus", "reset"))
_GOING = frozenset(("go", "teleport"))
# Objects of which commands come to nothing, or to nothing that a state shows.
_FIXED = re.compile(r"\b(door|agent)\b")
# The simulator asks which of several meanings a command has.
_AMBIGUOUS = "Ambiguous request"


def worth_trying(valid: Iterable[str], rooms: Iterable[str]) -> list[str]:
    """The valid commands that a task may consist of, without those of which nothing comes.

    `focus` is not among them: it says that the official task is about an object, and ends the episode if it is not.
    """
    fixed = re.compile("|".join((_FIXED.pattern, *(rf"\b(to|into|in|on|from) {re.escape(room)}$" for room in rooms))))
    return [
        command
        for command in valid
        if verb(command) not in UNASKED and (verb(command) in _GOING or not fixed.search(command))
    ]


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that these steps answer; None where there is none, or a command had several meanings."""
    if any(step.observation.text.startswith(_AMBIGUOUS) for step in steps):
        return None
    return commands.phrase(steps, UNASKED)

"""The desk: a small stateful office of files, notes, contacts, a calendar and mail. Pure Python, deterministic.

words.py         the words of the office, by kind
office.py        the state and what each tool does to it
tools.py         the tools' table and documentation
skills.py        ONE table of skills: wording, calls, typical mistakes
generator.py     tasks of the splits seed, dev, eval and challenge
demonstrator.py  noisy demonstrations for the warm start
grammar.py       calls → a query, and back
episode.py       one episode
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import Environment
from cojax.types import Action, Task, Triplet
from environments.desk import demonstrator, generator, grammar, office, tools
from environments.desk.episode import DeskEpisode
from environments.desk.skills import SKILLS
from environments.desk.words import WORDS
from environments.worker import isolate

# The splits that an evaluation of all splits takes.
EVALUATION = ("eval", "dev", "challenge")
# A tool of popularity rank r has the weight r ** -POPULARITY for an unguided explorer.
POPULARITY = 1.3


def make(*, isolated: bool = False) -> Environment:
    """The environment `desk`, in this process or in workers. It runs no code of a policy."""
    return isolate(__name__) if isolated else Desk()


class Desk:
    """The environment: tasks, episodes, and the language of its queries."""

    name = generator.NAME
    splits = tuple(generator.SPLITS)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tools.documentation()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """`count` distinct tasks with solutions; splits share no query. Raises ValueError for an unknown split."""
        return tuple(task for task, _ in itertools.islice(generator.stream(split, seed), count))

    def start(self, task: Task) -> DeskEpisode:
        return DeskEpisode(task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return grammar.phrase(steps)

    def demonstrations(
        self, count: int, seed: int, noise: tuple[float, float] = (0.10, 0.85)
    ) -> Iterator[tuple[Task, tuple[Action, ...]]]:
        """Noisy demonstrations of tasks of the seed split; see `demonstrator.demonstrations`."""
        return demonstrator.demonstrations(count, seed, noise)

    def popularity(self) -> Mapping[str, float]:
        """Tool name → how often a novice user tries it, in (0, 1]; in the order of the skills."""
        called = (template.tool for skill in SKILLS for branch in skill.branches for template in branch)
        ranked = [*dict.fromkeys(tool for tool in called if tool != tools.FINISH), tools.FINISH]
        return {tool: rank**-POPULARITY for rank, tool in enumerate(ranked, start=1)}

    def neighbours(self, tool: str) -> tuple[str, ...]:
        """The other tools of the same application. Raises KeyError for an unknown tool."""
        if tool == tools.FINISH:
            return ()
        application = tools.TOOLS[tool].application
        return tuple(
            other.name for other in tools.TOOLS.values() if other.application == application and other.name != tool
        )

    def lexicon(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(words used as arguments or observations, texts that contain every other word of queries and replies)."""
        values = tuple(itertools.chain.from_iterable(WORDS.values()))
        wordings = tuple(" ".join(re.sub(r"{\w+}", " ", skill.wording).split()) for skill in SKILLS)
        return values, (*wordings, generator.JOINER, "ok", *self._errors())

    def _errors(self) -> tuple[str, ...]:
        signatures = [tuple(tool.slots) for tool in tools.TOOLS.values()] + [("answer",)]
        reasons = [*office.REASONS, *map(tools.expects, dict.fromkeys(signatures))]
        return tuple(f"error: {reason}" for reason in reasons)

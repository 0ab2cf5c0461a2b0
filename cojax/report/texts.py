"""Which exchanges with a model the page holds: those of tasks spread evenly over the run, within a bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cojax.report.exchanges import Exchange, Exchanges, about
from cojax.report.figures import evenly
from cojax.report.lineage import Story
from cojax.report.run import Json

TASKS = 64  # tasks whose exchanges the page holds at most
CHARACTERS = 2_500_000  # of all texts, each counted once
TEXT = 8_000  # characters of one text


class Texts:
    """Texts, each kept once: tools' documentation stands in every prompt of a run."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.characters = 0
        self._places: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Where the text stands; of a long one only its beginning does, and how much is missing."""
        shown = text if len(text) <= TEXT else f"{text[:TEXT]} … [{len(text) - TEXT:,} characters more]"
        if shown not in self._places:
            self._places[shown] = len(self.all)
            self.all.append(shown)
            self.characters += len(shown)
        return self._places[shown]


def held(stories: Sequence[Story], exchanges: Exchanges) -> Json:
    """The exchanges of some of these tasks: `texts`, and by expedition "STEP/NUMBER" and by task id rows of place,
    messages shared with the row before, other messages as role and number of text, number of the reply's text, facts.

    `tasks` maps a task to whether all of its exchanges are there; tasks beyond the bound are in none.
    """
    texts = Texts()
    expeditions: dict[str, list[Json]] = {}
    tasks: dict[str, list[Json]] = {}
    for story in _spread(evenly(stories, TASKS) if exchanges else ()):
        if texts.characters >= CHARACTERS:
            break
        if story.expedition is not None and (name := named(story.expedition)) not in expeditions:
            expeditions[name] = _rows(exchanges.of_expedition(*story.expedition), texts)
        tasks[story.id] = _rows(exchanges.of_task(story.id), texts)
    return {"texts": texts.all, "expeditions": expeditions, "tasks": tasks}


def named(expedition: tuple[int, int]) -> str:
    return "/".join(map(str, expedition))


def _rows(exchanges: Iterable[Exchange], texts: Texts) -> list[Json]:
    return [
        {
            "place": exchange.place,
            "shared": exchange.shared,
            "messages": [[role, texts.add(text)] for role, text in exchange.messages[exchange.shared :]],
            "text": None if exchange.text is None else texts.add(exchange.text),
            "about": about(exchange),
        }
        for exchange in exchanges
    ]


def _spread(stories: Sequence[Story]) -> list[Story]:
    """The same in an order whose every beginning is spread over them: wherever the bound falls, it is even."""
    width = max(1, (len(stories) - 1).bit_length())
    return [story for _, story in sorted(enumerate(stories), key=lambda item: f"{item[0]:0{width}b}"[::-1])]

"""Selects the exchanges with models that the page holds: of tasks spread evenly over the run, up to a bound."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cojax.report.exchanges import Exchange, Exchanges, about
from cojax.report.figures import evenly
from cojax.report.lineage import TaskHistory
from cojax.report.run import Json

TASKS = 64  # tasks whose exchanges the page holds at most
CHARACTERS = 1_500_000  # of all texts, each counted once
TEXT = 8_000  # characters of one text


class Texts:
    """Texts, each stored once, as the documentation of tools stands in every prompt of a run."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.characters = 0
        self._places: dict[str, int] = {}

    def add(self, text: str) -> int:
        """The number of the text; of a long one only its beginning is stored, with the number of characters cut."""
        shown = text if len(text) <= TEXT else f"{text[:TEXT]} … [{len(text) - TEXT:,} characters more]"
        if shown not in self._places:
            self._places[shown] = len(self.all)
            self.all.append(shown)
            self.characters += len(shown)
        return self._places[shown]


def journal_texts(histories: Sequence[TaskHistory], exchanges: Exchanges) -> Json:
    """The exchanges of some of these tasks, as JSON.

    `texts` holds every text once. `expeditions`, by "STEP/NUMBER", and `tasks`, by id, hold rows, one per exchange: its
    place, the number of messages shared with the row before, the other messages as role and number of text, the number
    of the reply's text, and a line of facts. Tasks beyond the bound are left out.
    """
    texts = Texts()
    expeditions: dict[str, list[Json]] = {}
    tasks: dict[str, list[Json]] = {}
    for task in _spread(evenly(histories, TASKS) if exchanges else ()):
        if texts.characters >= CHARACTERS:
            break
        if task.expedition is not None and (name := expedition_name(task.expedition)) not in expeditions:
            expeditions[name] = _rows(exchanges.of_expedition(*task.expedition), texts)
        tasks[task.id] = _rows(exchanges.of_task(task.id), texts)
    return {"texts": texts.all, "expeditions": expeditions, "tasks": tasks}


def expedition_name(expedition: tuple[int, int]) -> str:
    """ "STEP/NUMBER"."""
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


def _spread(tasks: Sequence[TaskHistory]) -> list[TaskHistory]:
    """The tasks in an order of which every beginning is spread evenly over them (reversed binary numbers)."""
    width = max(1, (len(tasks) - 1).bit_length())
    return [task for _, task in sorted(enumerate(tasks), key=lambda item: f"{item[0]:0{width}b}"[::-1])]

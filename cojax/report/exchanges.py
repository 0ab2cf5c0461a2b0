"""The exact requests to models and their replies, read from journal.jsonl by expedition and by task.

Both are untrusted texts. The journal may hold gigabytes: one pass notes where each record starts, and records are read
on demand. The key "place" of a record says what the call was for:

EVOLUTION/NUMBER/…             an expedition: reflect, run R/turn T, abstract
EVOLUTION/task ID/attempt N/…  an attempt on the query of a task
judge/ID                       the judge's opinion of a draft

EVOLUTION ends in "initial", or in the step before the evolution.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from cojax.report.figures import evenly
from cojax.report.lineage import TaskHistory
from cojax.report.run import Json, cut_text
from cojax.storage.files import LONGEST_LINE, lines_of, open_file, parse_record

# The place of a record is within this many bytes of the beginning of its line.
_HEAD = 8_192
_PLACE = re.compile(rb'"place":"((?:[^"\\]|\\.)*)"')
_EXPEDITION = re.compile(r"(?P<evolution>.*?)/(?P<number>\d{1,9})/(?P<rest>(?:reflect|run \d{1,9}|abstract)(?:/.*)?)")
_ATTEMPT = re.compile(r".*/task (?P<task>[0-9a-f]{16})/(?P<rest>attempt )(?P<more>.*)")
_JUDGE = re.compile(r"(?P<rest>judge)/(?P<task>[0-9a-f]{16})(?P<more>.*)")
# The order of the parts of an expedition, and of a validation.
_RANKS = {"reflect": 0, "run": 1, "abstract": 2, "judge": 3, "attempt": 4}
_OWN_FIELDS = {"key", "place", "sent", "text"}

TASKS = 64  # the page holds the exchanges of at most so many tasks
CHARACTERS = 1_500_000  # of all texts, each counted once
TEXT = 8_000  # characters of one text
Key = tuple[int, int] | str  # step and number of an expedition, or the id of a task
Place = tuple[tuple[int, ...], int, str]  # of an exchange: its order, where its record starts, the rest of its place


def places_of(journal: Path) -> dict[Key, list[Place]]:
    """The places of all exchanges by expedition and by task, older ones first; empty if the run has no journal."""
    places: dict[Key, list[Place]] = defaultdict(list)
    start = 0
    if journal.exists():
        with open_file(journal) as file:
            for line in lines_of(file):
                match = _PLACE.search(line, 0, _HEAD) if line.endswith(b"\n") else None
                if match and (pair := _key(match[1])):
                    key, rest = pair
                    # Sorted by part, run and turn; repeated and repaired calls stay in their order.
                    numbers = (int(number) for number in re.findall(r"\d{1,9}", rest)[:2])
                    places[key].append(((_RANKS[re.split(r"[ /]", rest)[0]], *numbers), start, rest))
                start += len(line)
    return {key: sorted(pair) for key, pair in places.items()}


def _key(quoted_place: bytes) -> tuple[Key, str] | None:
    """The expedition or task that a place in JSON's spelling names, and the rest of it; None for any other place."""
    try:
        place = json.loads(b'"' + quoted_place + b'"')
    except ValueError:
        return None
    if match := _EXPEDITION.fullmatch(place):
        last = match["evolution"].rpartition("/")[2]
        if last == "initial":
            return (0, int(match["number"])), match["rest"]
        is_step = last.isdecimal() and len(last) < 10
        return ((int(last) + 1, int(match["number"])), match["rest"]) if is_step else None
    match = _ATTEMPT.fullmatch(place) or _JUDGE.fullmatch(place)
    return (match["task"], match["rest"] + match["more"]) if match else None


def read_exchanges(journal: Path, places: Sequence[Place]) -> list[Json]:
    """Reads the exchanges at these places. Each is one call to a model.

    An expedition has reflection, its runs turn by turn, and abstraction. A task or a draft has the judge and the
    attempts on the query alone.

    place     what the call was for, within its expedition or validation
    messages  role and content of the messages sent; the first `shared` are all those of the exchange before
    settings  the rest of the request
    text      the reply, or None
    facts     the other fields of the journal's record
    """
    exchanges: list[Json] = []
    if not places:
        return []
    with open_file(journal) as file:
        for _, start, rest in places:
            file.seek(start)
            if (exchange := _exchange(file.readline(LONGEST_LINE + 1), rest)) is not None:
                previous = exchanges[-1]["messages"] if exchanges else []
                # Only the continuation of a whole conversation counts as shared.
                shared_count = len(previous) if exchange["messages"][: len(previous)] == previous else 0
                exchanges.append({**exchange, "shared": shared_count})
    return exchanges


def _exchange(line: bytes, place: str) -> Json | None:
    """The exchange of a journal's line; None for a damaged one."""
    try:
        record = parse_record(line)
        request = dict(record["sent"])
        messages = [(str(message["role"]), str(message["content"])) for message in request.pop("messages")]
        text = record.get("text")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    facts = {name: value for name, value in record.items() if name not in _OWN_FIELDS}
    text = text if isinstance(text, str) else None
    return {"place": place, "messages": messages, "settings": request, "text": text, "facts": facts}


def about(exchange: Json) -> str:
    """The settings and facts of an exchange in one line."""
    settings, facts = exchange["settings"], exchange["facts"]
    schema = settings.get("response_format")
    json_schema = schema.get("json_schema", {}) if isinstance(schema, dict) else {}
    parts: Iterable[str] = (
        *(f"{name} {value}" for name, value in settings.items() if isinstance(value, (str, int, float))),
        f"held to the schema {json_schema.get('name', '')}".rstrip() if schema else "",
        *(
            f"{name} {value if isinstance(value, (str, int, float)) else json.dumps(value)}"
            for name, value in facts.items()
            if value not in (None, "", False) and settings.get(name) != value
        ),
    )
    return " ".join(" · ".join(part for part in parts if part).split())


def journal_texts(histories: Sequence[TaskHistory], journal: Path) -> Json:
    """The exchanges of some of these tasks, as JSON.

    `texts` holds every text once. `expeditions`, by "STEP/NUMBER", and `tasks`, by id, hold rows, one per exchange: its
    place, the number of messages shared with the row before, the other messages as role and number of text, the number
    of the reply's text, and a line of facts. Tasks beyond the bound are left out.
    """
    texts: dict[str, int] = {}  # each once, because every prompt of a run repeats the documentation of tools
    expeditions: dict[str, list[Json]] = {}
    tasks: dict[str, list[Json]] = {}
    places = places_of(journal)
    for task in _spread(evenly(histories, TASKS) if places else ()):
        if sum(map(len, texts)) >= CHARACTERS:
            break
        if task.expedition is not None and (name := expedition_name(task.expedition)) not in expeditions:
            expeditions[name] = _rows(read_exchanges(journal, places.get(task.expedition, ())), texts)
        tasks[task.id] = _rows(read_exchanges(journal, places.get(task.id, ())), texts)
    return {"texts": list(texts), "expeditions": expeditions, "tasks": tasks}


def expedition_name(expedition: tuple[int, int]) -> str:
    """ "STEP/NUMBER"."""
    return "/".join(map(str, expedition))


def _rows(exchanges: Iterable[Json], texts: dict[str, int]) -> list[Json]:
    """Makes the rows of exchanges, and adds their texts to `texts`, which maps a text to its number."""

    def number(text: str) -> int:
        return texts.setdefault(cut_text(text, TEXT), len(texts))

    return [
        {
            "place": exchange["place"],
            "shared": exchange["shared"],
            "messages": [[role, number(text)] for role, text in exchange["messages"][exchange["shared"] :]],
            "text": None if exchange["text"] is None else number(exchange["text"]),
            "about": about(exchange),
        }
        for exchange in exchanges
    ]


def _spread(tasks: Sequence[TaskHistory]) -> list[TaskHistory]:
    """Orders the tasks so that the first n, for any n, are spread evenly over them (by reversed binary numbers)."""
    width = max(1, (len(tasks) - 1).bit_length())
    return [task for _, task in sorted(enumerate(tasks), key=lambda item: f"{item[0]:0{width}b}"[::-1])]

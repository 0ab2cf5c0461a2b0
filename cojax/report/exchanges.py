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
from cojax.storage.files import MAX_LINE_BYTES, open_file, parse_record, read_lines

# The place of a record is within this many bytes of the beginning of its line.
_MAX_HEAD_BYTES = 8_192
_PLACE_PATTERN = re.compile(rb'"place":"((?:[^"\\]|\\.)*)"')
_EXPEDITION = re.compile(r"(?P<evolution>.*?)/(?P<number>\d{1,9})/(?P<rest>(?:reflect|run \d{1,9}|abstract)(?:/.*)?)")
_ATTEMPT_PATTERN = re.compile(r".*/task (?P<task>[0-9a-f]{16})/(?P<rest>attempt )(?P<more>.*)")
_JUDGE_PATTERN = re.compile(r"(?P<rest>judge)/(?P<task>[0-9a-f]{16})(?P<more>.*)")
# The order of the parts of an expedition, and of a validation.
_PART_RANKS = {"reflect": 0, "run": 1, "abstract": 2, "judge": 3, "attempt": 4}
_OWN_FIELDS = {"key", "place", "sent", "text"}

MAX_TASKS = 64  # the page holds the exchanges of at most so many tasks
MAX_CHARACTERS = 1_500_000  # of all texts, each counted once
MAX_TEXT_CHARACTERS = 8_000  # characters of one text
ExchangeKey = tuple[int, int] | str  # step and number of an expedition, or the id of a task
Place = tuple[tuple[int, ...], int, str]  # of an exchange: its order, where its record starts, the rest of its place


def find_places(journal: Path) -> dict[ExchangeKey, list[Place]]:
    """The places of all exchanges by expedition and by task, older ones first; empty if the run has no journal."""
    places_by_key: dict[ExchangeKey, list[Place]] = defaultdict(list)
    offset = 0
    if journal.exists():
        with open_file(journal) as journal_file:
            for line in read_lines(journal_file):
                match = _PLACE_PATTERN.search(line, 0, _MAX_HEAD_BYTES) if line.endswith(b"\n") else None
                if match and (parsed_place := _parse_place(match[1])):
                    key, purpose = parsed_place
                    # Sorted by part, run and turn; repeated and repaired calls stay in their order.
                    numbers = (int(digits) for digits in re.findall(r"\d{1,9}", purpose)[:2])
                    places_by_key[key].append(((_PART_RANKS[re.split(r"[ /]", purpose)[0]], *numbers), offset, purpose))
                offset += len(line)
    return {key: sorted(places) for key, places in places_by_key.items()}


def _parse_place(quoted_place: bytes) -> tuple[ExchangeKey, str] | None:
    """The expedition or task that a place in JSON's spelling names, and the rest of it; None for any other place."""
    try:
        place = json.loads(b'"' + quoted_place + b'"')
    except ValueError:
        return None
    if match := _EXPEDITION.fullmatch(place):
        evolution_end = match["evolution"].rpartition("/")[2]
        if evolution_end == "initial":
            return (0, int(match["number"])), match["rest"]
        is_step = evolution_end.isdecimal() and len(evolution_end) < 10
        return ((int(evolution_end) + 1, int(match["number"])), match["rest"]) if is_step else None
    match = _ATTEMPT_PATTERN.fullmatch(place) or _JUDGE_PATTERN.fullmatch(place)
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
    with open_file(journal) as journal_file:
        for _, offset, call_name in places:
            journal_file.seek(offset)
            if (exchange := _parse_exchange(journal_file.readline(MAX_LINE_BYTES + 1), call_name)) is not None:
                previous = exchanges[-1]["messages"] if exchanges else []
                # Only the continuation of a whole conversation counts as shared.
                shared_count = len(previous) if exchange["messages"][: len(previous)] == previous else 0
                exchanges.append({**exchange, "shared": shared_count})
    return exchanges


def _parse_exchange(line: bytes, call_name: str) -> Json | None:
    """The exchange of a journal's line; None for a damaged one."""
    try:
        record = parse_record(line)
        request_settings = dict(record["sent"])
        messages = [(str(message["role"]), str(message["content"])) for message in request_settings.pop("messages")]
        reply_text = record.get("text")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    facts = {field_name: field_value for field_name, field_value in record.items() if field_name not in _OWN_FIELDS}
    reply_text = reply_text if isinstance(reply_text, str) else None
    return {"place": call_name, "messages": messages, "settings": request_settings, "text": reply_text, "facts": facts}


def describe_exchange(exchange: Json) -> str:
    """The settings and facts of an exchange in one line."""
    settings, facts = exchange["settings"], exchange["facts"]
    response_format = settings.get("response_format")
    json_schema = response_format.get("json_schema", {}) if isinstance(response_format, dict) else {}
    fact_texts: Iterable[str] = (
        *(f"{name} {value}" for name, value in settings.items() if isinstance(value, (str, int, float))),
        f"held to the schema {json_schema.get('name', '')}".rstrip() if response_format else "",
        *(
            f"{name} {value if isinstance(value, (str, int, float)) else json.dumps(value)}"
            for name, value in facts.items()
            if value not in (None, "", False) and settings.get(name) != value
        ),
    )
    return " ".join(" · ".join(fact_text for fact_text in fact_texts if fact_text).split())


def collect_texts(histories: Sequence[TaskHistory], journal: Path) -> Json:
    """The exchanges of some of these tasks, as JSON.

    `texts` holds every text once. `expeditions`, by "STEP/NUMBER", and `tasks`, by id, hold rows, one per exchange: its
    place, the number of messages shared with the row before, the other messages as role and number of text, the number
    of the reply's text, and a line of facts. Tasks beyond the bound are left out.
    """
    number_by_text: dict[str, int] = {}  # each once, because every prompt of a run repeats the documentation of tools
    expeditions: dict[str, list[Json]] = {}
    rows_by_task: dict[str, list[Json]] = {}
    places = find_places(journal)
    for history in _spread_evenly(evenly(histories, MAX_TASKS) if places else ()):
        if sum(map(len, number_by_text)) >= MAX_CHARACTERS:
            break
        if history.expedition is not None and (name := name_expedition(history.expedition)) not in expeditions:
            expeditions[name] = _build_rows(read_exchanges(journal, places.get(history.expedition, ())), number_by_text)
        rows_by_task[history.id] = _build_rows(read_exchanges(journal, places.get(history.id, ())), number_by_text)
    return {"texts": list(number_by_text), "expeditions": expeditions, "tasks": rows_by_task}


def name_expedition(expedition_key: tuple[int, int]) -> str:
    """ "STEP/NUMBER"."""
    return "/".join(map(str, expedition_key))


def _build_rows(exchanges: Iterable[Json], number_by_text: dict[str, int]) -> list[Json]:
    """Makes the rows of exchanges, and adds their texts to `number_by_text`."""

    def number_text(text: str) -> int:
        return number_by_text.setdefault(cut_text(text, MAX_TEXT_CHARACTERS), len(number_by_text))

    return [
        {
            "place": exchange["place"],
            "shared": exchange["shared"],
            "messages": [[role, number_text(text)] for role, text in exchange["messages"][exchange["shared"] :]],
            "text": None if exchange["text"] is None else number_text(exchange["text"]),
            "about": describe_exchange(exchange),
        }
        for exchange in exchanges
    ]


def _spread_evenly(histories: Sequence[TaskHistory]) -> list[TaskHistory]:
    """Orders the tasks so that the first n, for any n, are spread evenly over them (by reversed binary numbers)."""
    bit_count = max(1, (len(histories) - 1).bit_length())
    return [history for _, history in sorted(enumerate(histories), key=lambda item: f"{item[0]:0{bit_count}b}"[::-1])]

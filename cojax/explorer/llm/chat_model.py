"""The protocol of language models that answer an explorer, their budget and journal, and how replies become records.

A reply is untrusted text. A call that fails raises `ChatFailure`; an error never becomes the text of a reply. The
journal keeps every paid call to a model, and finds it by the content of its request. It is append-only and never
truncated. So no call is paid twice when a killed run is resumed, and a report shows the exact text sent and received.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from cojax.environment import EngineError
from cojax.openai_api import CallKind
from cojax.settings.tree import LLMSettings
from cojax.storage.checksums import CHECKSUM_KEY, add_checksum, has_valid_checksum
from cojax.storage.files import Log, open_file, parse_record, read_lines
from cojax.types import Message, canonical, content_hash, nesting, parse_json

FailureKind = CallKind | Literal["budget", "deadline", "stopped", "empty", "truncated", "invalid"]

_T = TypeVar("_T", bound=BaseModel)
_LOG = logging.getLogger(__name__)
# The beginning of each line, so that the key can be read without parsing the line.
_LINE_HEAD = b'{"key":"'
_KEY_LENGTH = 32
# The deepest nesting of a reply's JSON.
_MAX_NESTING = 32
# A request for repair quotes at most this many characters of the failed reply, and of the reason.
_MAX_QUOTED_REPLY, _MAX_QUOTED_REASON = 4_000, 600
# This many seconds pass between two checks of whether a budget was closed.
_CHECK_INTERVAL_S = 0.05
_FENCE_PATTERN = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


class ChatFailure(EngineError):
    """A model gave no usable reply; `kind` says why. It is never evidence about a policy or a task.

    budget, deadline   not sent: the evolution's budget or time does not cover it
    stopped            not sent: the budget was closed
    refused            the endpoint refused this request
    unauthorised       the endpoint refuses every request: the address, the key or the model is wrong
    unreachable, timeout, server, rate, malformed   how the last of several attempts failed
    too_long           the prompt does not fit the model
    empty, truncated, invalid   there was a reply, but it cannot be used
    """

    def __init__(self, kind: FailureKind, reason: str):
        super().__init__(f"{kind}: {reason}")
        self.kind, self.reason = kind, reason


@dataclasses.dataclass(frozen=True)
class ModelReply:
    """A model's text; `truncated` if the limit of tokens cut it off. `usage` counts tokens of prompt and reply."""

    text: str
    truncated: bool = False
    usage: tuple[int, int] = (0, 0)


@dataclasses.dataclass(eq=False)
class Budget:
    """What may still be spent: tokens, requests, and seconds until `end_time` (of `time.monotonic`).

    Only one thread spends from a budget. Parallel threads get separate budgets from `split`. So the replies alone
    decide which calls are refused, not timing. Exceptions are the deadline `end_time`, and `close`, which any thread
    may call. `min_share` is the smallest useful share, in tokens and requests; `whole_budget` is the budget that this
    is a share of.
    """

    tokens: int
    requests: int
    end_time: float = math.inf
    min_share: tuple[int, int] = (1, 1)
    whole_budget: "Budget | None" = None
    _closed: bool = False

    @classmethod
    def of(cls, settings: LLMSettings) -> "Budget":
        """The budget of an evolution that begins now. A useful share pays for eight replies."""
        deadline, min_share = time.monotonic() + settings.deadline, (8 * settings.max_tokens, 8)
        return cls(settings.max_tokens_per_evolution, settings.max_requests_per_evolution, deadline, min_share)

    @property
    def seconds(self) -> float:
        return self.end_time - time.monotonic()

    @property
    def is_closed(self) -> bool:
        """Whether this budget, or the one that it is a share of, was closed."""
        return self._closed or (self.whole_budget is not None and self.whole_budget.is_closed)

    def close(self) -> None:
        """Ends spending from this budget and all its shares.

        The next call raises ChatFailure. A call that waits before another attempt raises it immediately. A request that
        was already sent runs to its end.
        """
        self._closed = True

    def wait(self, duration_s: float) -> None:
        """Sleeps for these seconds, or until the budget is closed."""
        deadline = time.monotonic() + duration_s
        while not self.is_closed and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(remaining, _CHECK_INTERVAL_S))

    def check(self, token_count: int) -> None:
        """Raises ChatFailure unless the budget covers one more request of at most `token_count` tokens."""
        if self.is_closed:
            raise ChatFailure("stopped", "the evolution is ending; no further request is sent")
        if self.seconds <= 0:
            raise ChatFailure("deadline", "the evolution's time is up; raise llm.deadline")
        if self.requests < 1:
            raise ChatFailure("budget", "no requests are left; raise llm.max_requests_per_evolution")
        if token_count > self.tokens:
            raise ChatFailure(
                "budget",
                f"the request may take {token_count:,} tokens, {max(0, self.tokens):,} are left for it; "
                "raise llm.max_tokens_per_evolution",
            )

    def pay(self, token_count: int, request_count: int) -> None:
        self.tokens -= token_count
        self.requests -= request_count

    @contextlib.contextmanager
    def split(self, budget_count: int) -> "Iterator[list[Budget]]":
        """Splits the rest into `budget_count` equal budgets. What they do not spend returns at the end of the block.

        If equal shares would be below `min_share`, only the first budgets hold anything.
        """
        tokens, requests = max(0, self.tokens), max(0, self.requests)
        share_count = max(1, min(budget_count, tokens // self.min_share[0], requests // self.min_share[1]))
        share = tokens // share_count, requests // share_count
        amounts = [share] * min(share_count, budget_count) + [(0, 0)] * (budget_count - share_count)
        budgets = [Budget(*amount, self.end_time, self.min_share, self) for amount in amounts]
        self.pay(share_count * share[0], share_count * share[1])
        try:
            yield budgets
        finally:
            for budget in budgets:
                self.pay(-budget.tokens, -budget.requests)


class ChatModel(Protocol):
    """Answers messages with text."""

    name: str

    def begin(self, evolution: str = "") -> Budget:
        """Starts an evolution: returns its full budget, and resets the figures.

        The same name means the same evolution, repeated after the run was killed; "" always means a new one.
        """

    def reopen(self) -> None:
        """Records that the evolution was given up: if it is repeated, calls that failed in it are made again."""

    def figures(self) -> dict[str, Any]:
        """What the evolution has cost so far."""

    def count_failure(self, kind: FailureKind) -> None:
        """Counts a reply that could not be used, for `figures`. `reply` counts its own failures."""

    def reply(
        self,
        messages: Sequence[Message],
        *,
        budget: Budget,
        seed: int,
        place: str,
        schema: Mapping[str, Any] | None = None,
        temperature: float | None = None,
    ) -> ModelReply:
        """The reply: JSON that fits the schema, if the model's server can enforce one.

        `place` tells the journal what the call was for. A `temperature` of None is the model's default. Raises
        ChatFailure.
        """


def make_seed(*parts: Any) -> int:
    """A seed of 31 bits, which every endpoint accepts."""
    return int(content_hash(["mind", repr(parts)]), 16) % 2**31


def structured_reply(
    chat_model: ChatModel, messages: Sequence[Message], record_type: type[_T], *, place: str, **reply_options: Any
) -> _T:
    """The reply as a record of `record_type`; the model may repair it once. Raises ChatFailure.

    `reply_options` holds the other keywords of `ChatModel.reply`: budget, seed, and possibly the temperature.
    """
    reply_options["schema"] = schema = record_type.model_json_schema()
    reply = chat_model.reply(messages, place=place, **reply_options)
    try:
        return parse_reply(reply, record_type)
    except ChatFailure as failure:
        repair = (
            f"That reply cannot be used ({failure.kind}): {failure.reason[:_MAX_QUOTED_REASON]}\n"
            "Reply again, with one JSON object that fits this schema and nothing else"
            f"{', and be much shorter' if failure.kind == 'truncated' else ''}:\n{json.dumps(schema)}"
        )
        repair_messages = Message("assistant", reply.text[:_MAX_QUOTED_REPLY] or "(nothing)"), Message("user", repair)
    second_reply = chat_model.reply((*messages, *repair_messages), place=f"{place}/repair", **reply_options)
    try:
        return parse_reply(second_reply, record_type)
    except ChatFailure as failure:
        chat_model.count_failure(failure.kind)
        raise


def parse_reply(reply: ModelReply, record_type: type[_T]) -> _T:
    """The record in a reply, which may be inside a code fence or within prose. Raises ChatFailure."""
    if reply.truncated:
        raise ChatFailure("truncated", "the reply was cut off at its most tokens")
    if not reply.text.strip():
        raise ChatFailure("empty", "the reply holds no text")
    try:
        json_object = _find_json(reply.text.rpartition("</think>")[2])
    except (ValueError, RecursionError) as error:
        raise ChatFailure("invalid", f"no JSON object was found: {error}"[:_MAX_QUOTED_REASON]) from None
    try:
        return record_type.model_validate(json_object)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'reply'}: {e['msg']}" for e in error.errors()[:5])
        raise ChatFailure("invalid", problems[:_MAX_QUOTED_REASON]) from None


def _find_json(text: str) -> Any:
    """The JSON object in a text. Raises ValueError if there is none, or if UTF-8 cannot encode it."""
    block = _FENCE_PATTERN.search(text)
    start, end = text.find("{"), text.rfind("}")
    candidates = [text.strip(), *([block[1]] if block else []), *([text[start : end + 1]] if start >= 0 else [])]
    last_error = ValueError("nothing there")
    for candidate in candidates:
        try:
            json_object = parse_json(candidate)
        except ValueError as error:
            last_error = error
            continue
        if nesting(candidate) > _MAX_NESTING:
            raise ValueError(f"nested deeper than {_MAX_NESTING}")
        # Python allows half a surrogate pair in a string, UTF-8 does not.
        json.dumps(json_object, ensure_ascii=False).encode()
        return json_object
    raise last_error


class Counters:
    """Amounts by name, and failures by kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._amounts, self._failures = collections.Counter[str](), collections.Counter[str]()

    def count(self, **amount_by_name: int) -> None:
        with self._lock:
            self._amounts.update(amount_by_name)

    def count_failure(self, kind: FailureKind) -> None:
        with self._lock:
            self._failures[kind] += 1

    @contextlib.contextmanager
    def counting_failures(self) -> Iterator[None]:
        """Counts a ChatFailure that the block raises, and raises it again."""
        try:
            yield
        except ChatFailure as failure:
            self.count_failure(failure.kind)
            raise

    def figures(self, *amount_names: str) -> dict[str, Any]:
        """The amounts of these names, 0 for one that was never counted, and `failures` by kind."""
        with self._lock:
            return {**{name: self._amounts[name] for name in amount_names}, "failures": dict(self._failures)}


def make_key(value: Any) -> str:
    """The key of a record: 32 hex digits of the SHA-256 of `value` as canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:_KEY_LENGTH]


def format_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages in an endpoint's format. A lone surrogate, which UTF-8 cannot encode, is replaced."""
    return [{"role": m.role, "content": m.content.encode("utf-8", "replace").decode()} for m in messages]


def make_record(place: str, model: str, body: Mapping[str, Any], cost: tuple[int, int], **reply: Any) -> dict[str, Any]:
    """The record of a call. `cost` is the tokens and requests that it took, lost attempts included.

    The reply of an answered call is `text`, `truncated` and `usage`, the tokens of prompt and reply. For a call without
    a reply, `text` is None, and `kind` and `reason` describe its failure.
    """
    return {"place": place, "model": model, "sent": body, **reply, "tokens": cost[0], "requests": cost[1]}


def _is_sound(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of `make_record`. May raise ValueError, KeyError or TypeError."""
    amounts, has_reply = [record["tokens"], record["requests"]], record["text"] is not None
    if has_reply:
        tokens_in, tokens_out = record["usage"]
        amounts += [tokens_in, tokens_out]
    texts = [record["text"]] if has_reply else [record["kind"], record["reason"]]
    # A negative cost would let an evolution spend more than its budget.
    return all(type(count) is int and count >= 0 for count in amounts) and all(isinstance(text, str) for text in texts)


class Journal:
    """Records by key, in one JSONL file; `path` None keeps them in memory. Any thread may use it.

    A record holds `key`, `place` (what the call was for), `model`, `sent` (the request as the endpoint took it),
    `text`, `truncated`, `usage`, `tokens` and `requests` (its cost, lost attempts included). The record of a failure
    holds `kind` and `reason` of the failure, no usage, and None for its text. Of several records with one key, the last
    counts. On disk each record contains its own checksum.
    """

    def __init__(self, path: Path | None = None):
        self._log = None if path is None else Log(path)
        self._in_memory: dict[str, dict[str, Any]] = {}
        self._positions: dict[str, tuple[int, int]] = {}  # key → where its record begins in the file, and its number
        self.length = 0  # the number of records
        self._lock = threading.Lock()
        if path is not None and path.exists():
            with open_file(path) as file:
                line_start = 0
                for line in read_lines(file):
                    if line.startswith(_LINE_HEAD) and line.endswith(b"\n"):
                        journal_key = line[len(_LINE_HEAD) : len(_LINE_HEAD) + _KEY_LENGTH].decode("ascii", "replace")
                        self.length += 1
                        self._positions[journal_key] = line_start, self.length
                    line_start += len(line)

    def last_record_number(self, key: str) -> int:
        """The position, counted from 1, of the last record with that key; 0 if there is none."""
        return self._positions.get(key, (0, 0))[1]

    def find(self, key: str) -> dict[str, Any] | None:
        """The record of that key, or None. A damaged record counts as missing: its call is made again."""
        with self._lock:
            if self._log is None:
                return self._in_memory.get(key)
            if key not in self._positions:
                return None
            with open_file(self._log.path) as file:
                file.seek(self._positions[key][0])
                line = next(read_lines(file), b"")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = parse_record(line)
            has_valid_checksum(record)
            if record["key"] == key and _is_sound(record):
                return {name: value for name, value in record.items() if name != CHECKSUM_KEY}
        _LOG.warning("%s holds a damaged record of call %s; the call is made again", self._log.path, key)
        return None

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Adds the record of a call. Raises StorageError if it cannot be written."""
        keyed_record, line_start = {"key": key, **record}, 0
        with self._lock:
            if self._log is None:
                self._in_memory[key] = keyed_record
            else:
                checked_record = add_checksum(keyed_record)
                record_length = len(canonical(checked_record))  # JSON with ASCII alone: as many bytes as characters
                line_start = self._log.append([checked_record]) - record_length - 1
            self.length += 1
            self._positions[key] = line_start, self.length

    def read(self, place: str = "") -> Iterator[dict[str, Any]]:
        """The records whose place begins with `place`, oldest first."""
        records = list(self._in_memory.values()) if self._log is None else self._log.read()
        return (record for record in records if record["place"].startswith(place))

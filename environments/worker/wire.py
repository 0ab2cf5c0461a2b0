"""The wire format between client, supervisor and child: one JSON object a line, over an unnamed socket pair.

client → supervisor   {"id", "episode", "op", "arguments", "deadline"}   episode 0 is the environment itself
supervisor → client   {"id", "counted": seconds, "reply": {"value"} or {"failure", "message"}}
                      {"counted": {id: seconds}}   now and then
supervisor ⇄ child    {"n", "op", "arguments"} and {"n", "value"} or {"n", "failure", "message"}

A child is not trusted: its replies are bounded before they are parsed, and a value must match its record exactly.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

from cojax.environment import EpisodeFailure
from cojax.types import Message, from_json, parse_json

# The reasons why a call has no value.
TIMEOUT = "TIMEOUT"  # its deadline passed; the child was killed
WORKER_DIED = "WORKER_DIED"  # the child ended while the call was under way
LIMIT_EXCEEDED = "LIMIT"  # the child ran out of memory, or its reply was too long
LOST = "LOST"  # the child was gone before the call
ENVIRONMENT = "ENVIRONMENT"  # the environment raised
HOST = "HOST"  # the supervisor, the fork server or the host failed
START = "START"  # the environment could not be imported or made

# Failures that the current action may have caused, and other failures of the child.
CALL_FAILURES = frozenset({TIMEOUT, WORKER_DIED, LIMIT_EXCEEDED})
CHILD_FAILURES = frozenset({LOST, ENVIRONMENT})

# Longest message of a failure, in characters.
_MAX_MESSAGE_CHARS = 2_000
# Longest request, in bytes: a task or an action, which nothing has checked yet.
MAX_REQUEST_BYTES = 256 * 2**20
# The bounds of a reply about the whole environment, in bytes and values: it may hold thousands of tasks.
MAX_SERVICE_BYTES, SERVICE_VALUES = 512 * 2**20, 64_000_000
# Bytes of a reply that are read, or examined, at a time.
CHUNK_BYTES = 64 * 2**10
# The deepest nesting of a reply.
_MAX_REPLY_DEPTH = 256
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def encode(message: dict[str, Any]) -> bytes:
    """The message as one line. Raises ValueError for a message that is not JSON."""
    return json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises ValueError if it is not a JSON object in ASCII, or names a key twice."""
    message = parse_json(line.decode("ascii"), hook=_reject_duplicates)
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}; expected an object")
    return message


def explain(code: str, message: str) -> dict[str, str]:
    """The part of a reply that says why there is no value."""
    return {"failure": code, "message": message[:_MAX_MESSAGE_CHARS].encode("utf-8", "replace").decode()}


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object names a key twice")
    return members


class Scan:
    """Counts the values and nesting levels of JSON text, chunk by chunk; the contents of strings do not count.

    A reply made of empty lists takes 30 times its bytes once it is parsed, so values are counted before parsing.
    """

    def __init__(self, max_values: int, max_depth: int = _MAX_REPLY_DEPTH) -> None:
        self.max_values, self.max_depth = max_values, max_depth
        self.value_count = self.depth = 0
        self.in_string = self.after_backslash = False

    def count_chunk(self, chunk: bytes) -> None:
        """Counts one chunk. Raises ValueError if the text so far has too many values or levels, or is not ASCII."""
        if not chunk.isascii():
            raise ValueError("it is not ASCII")
        if self.after_backslash and chunk:
            chunk = chunk[1:]
            self.after_backslash = False
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:
            chunk, self.after_backslash = chunk[:-1], True
        chunk = chunk.replace(b"\\\\", b"").replace(b'\\"', b"")
        self.value_count += (chunk.count(b'"') + self.in_string) // 2
        self._check_count()
        quoted_parts = chunk.split(b'"')
        outside_strings = b"".join(quoted_parts[self.in_string :: 2])
        self.in_string ^= len(quoted_parts) % 2 == 0
        self.value_count += sum(map(outside_strings.count, (b",", b":", b"[", b"{")))
        self._check_count()
        for bracket in outside_strings.translate(None, _NOT_BRACKETS):
            self.depth += 1 if bracket in b"[{" else -1
            if not 0 <= self.depth <= self.max_depth:
                raise ValueError(f"it nests deeper than {self.max_depth} levels, or ends what it did not begin")

    def _check_count(self) -> None:
        if self.value_count > self.max_values:
            raise ValueError(f"it holds more than {self.max_values:,} values")


class OutOfMemory(Exception):
    """The child reports that it ran out of memory."""


def filter_reply(line: bytes, call_number: int) -> bytes:
    """The reply to pass on to the client. Raises ValueError if it is not a reply to this call, and OutOfMemory."""
    reply = decode(line)
    if type(reply.get("n")) is not int or reply["n"] != call_number:
        raise ValueError("it lacks the number of the call")
    if reply.keys() == {"n", "value"}:
        return line
    if reply.keys() != {"n", "failure", "message"} or not isinstance(reply["message"], str):
        raise ValueError("it has neither a value nor a failure")
    if reply["failure"] == LIMIT_EXCEEDED:
        raise OutOfMemory(reply["message"])
    return encode_failure(ENVIRONMENT, reply["message"])


def encode_failure(failure_code: str, message: str) -> bytes:
    """A reply that says why there is no value."""
    return encode(explain(failure_code, message)).rstrip()


class Malformed(EpisodeFailure):
    """A reply is not a record of the expected kind."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """The reply to `reset`."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


def read(record_type: Any, value: Any) -> Any:
    """The JSON value of a worker as a record of type `record_type`. Raises Malformed if it is not one."""
    try:
        return from_json(record_type, value, _require_type)
    except TypeError as error:
        raise Malformed(str(error)[:200]) from error


def _require_type(target_type: Any, value: Any) -> Any:
    """The value, if it has exactly that type: nothing is converted. Raises TypeError."""
    type_origin = typing.get_origin(target_type)
    if type_origin is typing.Literal:
        if not isinstance(value, str) or value not in typing.get_args(target_type):
            raise TypeError(f"found {value!r:.50}, expected one of {', '.join(map(str, typing.get_args(target_type)))}")
        return value
    json_type = target_type if type_origin is None else dict
    if target_type is not Any and type(value) is not json_type and not (json_type is float and type(value) is int):
        raise TypeError(f"found {type(value).__name__}, expected {json_type.__name__}")
    return value

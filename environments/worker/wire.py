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
LIMIT = "LIMIT"  # the child ran out of memory, or its reply was too long
LOST = "LOST"  # the child was gone before the call
ENVIRONMENT = "ENVIRONMENT"  # the environment raised
HOST = "HOST"  # the supervisor, the fork server or the host failed
START = "START"  # the environment could not be imported or made

# Failures that the current action may have caused, and other failures of the child.
OF_THE_CALL = frozenset({TIMEOUT, WORKER_DIED, LIMIT})
OF_THE_CHILD = frozenset({LOST, ENVIRONMENT})

# Longest message of a failure, in characters.
_MESSAGE = 2_000
# Longest request, in bytes: a task or an action, which nothing has checked yet.
REQUEST = 256 * 2**20
# The bounds of a reply about the whole environment, in bytes and values: it may hold thousands of tasks.
SERVICE_OUTPUT, SERVICE_VALUES = 512 * 2**20, 64_000_000
# Bytes of a reply that are read, or examined, at a time.
PART = 64 * 2**10
# The deepest nesting of a reply.
_DEPTH = 256
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def encode(message: dict[str, Any]) -> bytes:
    """The message as one line. Raises ValueError for a message that is not JSON."""
    return json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises ValueError if it is not a JSON object in ASCII, or names a key twice."""
    message = parse_json(line.decode("ascii"), hook=_unique)
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}; expected an object")
    return message


def explain(code: str, message: str) -> dict[str, str]:
    """The part of a reply that says why there is no value."""
    return {"failure": code, "message": message[:_MESSAGE].encode("utf-8", "replace").decode()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object names a key twice")
    return members


class Scan:
    """Counts the values and nesting levels of JSON text, part by part; the contents of strings do not count.

    A reply made of empty lists takes 30 times its bytes once it is parsed, so values are counted before parsing.
    """

    def __init__(self, values: int, depth: int = _DEPTH) -> None:
        self.most, self.deepest = values, depth
        self.values = self.depth = 0
        self.in_string = self.after_backslash = False

    def take(self, part: bytes) -> None:
        """Counts one part. Raises ValueError if the text so far has too many values or levels, or is not ASCII."""
        if not part.isascii():
            raise ValueError("it is not ASCII")
        if self.after_backslash and part:
            part = part[1:]
            self.after_backslash = False
        if (len(part) - len(part.rstrip(b"\\"))) % 2:
            part, self.after_backslash = part[:-1], True
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        self.values += (part.count(b'"') + self.in_string) // 2
        self._bound()
        pieces = part.split(b'"')
        outside = b"".join(pieces[self.in_string :: 2])
        self.in_string ^= len(pieces) % 2 == 0
        self.values += sum(map(outside.count, (b",", b":", b"[", b"{")))
        self._bound()
        for bracket in outside.translate(None, _NOT_BRACKETS):
            self.depth += 1 if bracket in b"[{" else -1
            if not 0 <= self.depth <= self.deepest:
                raise ValueError(f"it nests deeper than {self.deepest} levels, or ends what it did not begin")

    def _bound(self) -> None:
        if self.values > self.most:
            raise ValueError(f"it holds more than {self.most:,} values")


class OutOfMemory(Exception):
    """The child reports that it ran out of memory."""


def check_reply(line: bytes, call: int) -> bytes:
    """The reply to pass on to the client. Raises ValueError if it is not a reply to this call, and OutOfMemory."""
    answer = decode(line)
    if type(answer.get("n")) is not int or answer["n"] != call:
        raise ValueError("it lacks the number of the call")
    if answer.keys() == {"n", "value"}:
        return line
    if answer.keys() != {"n", "failure", "message"} or not isinstance(answer["message"], str):
        raise ValueError("it has neither a value nor a failure")
    if answer["failure"] == LIMIT:
        raise OutOfMemory(answer["message"])
    return failure(ENVIRONMENT, answer["message"])


def failure(code: str, message: str) -> bytes:
    """A reply that says why there is no value."""
    return encode(explain(code, message)).rstrip()


class Malformed(EpisodeFailure):
    """A reply is not a record of the expected kind."""


@dataclasses.dataclass(frozen=True)
class Opening:
    """The reply to `reset`."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]


def read(kind: Any, value: Any) -> Any:
    """The JSON value of a worker as a record of type `kind`. Raises Malformed if it is not one."""
    try:
        return from_json(kind, value, _require_type)
    except TypeError as error:
        raise Malformed(str(error)[:200]) from error


def _require_type(kind: Any, value: Any) -> Any:
    """The value, if it has exactly that type: nothing is converted. Raises TypeError."""
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        if not isinstance(value, str) or value not in typing.get_args(kind):
            raise TypeError(f"found {value!r:.50}, expected one of {', '.join(map(str, typing.get_args(kind)))}")
        return value
    expected_type = kind if origin is None else dict
    if kind is not Any and type(value) is not expected_type and not (expected_type is float and type(value) is int):
        raise TypeError(f"found {type(value).__name__}, expected {expected_type.__name__}")
    return value

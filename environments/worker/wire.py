"""The wire format between client, supervisor and child: one JSON object a line, over an unnamed socket pair.

client → supervisor   {"id", "episode", "op", "arguments", "deadline"}   episode 0 is the environment itself
supervisor → client   {"id", "counted": seconds, "reply": {"value"} or {"failure", "message"}}
                      {"counted": {id: seconds}}   now and then
supervisor ⇄ child    {"n", "op", "arguments"} and {"n", "value"} or {"n", "failure", "message"}
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

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


def encode(message: dict[str, Any]) -> bytes:
    """The message as one line. Raises ValueError for a message that is not JSON."""
    return json.dumps(message, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of a line. Raises ValueError where it is not a JSON object in ASCII, or names a key twice."""
    try:
        text = line.decode("ascii")
        message = json.loads(text, parse_constant=_reject, parse_float=_finite, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError(f"a message is {type(message).__name__}; expected an object")
    return message


def failed(code: str, message: str) -> dict[str, str]:
    """The part of a reply that says why there is no value."""
    return {"failure": code, "message": message[:_MESSAGE].encode("utf-8", "replace").decode()}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object names a key twice")
    return made


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    """JSON has no infinity, though 1e999 reads as one."""
    value = float(number)
    return value if math.isfinite(value) else _reject(number)

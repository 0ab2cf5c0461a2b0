"""Reads the reports of the worker in which a model's code runs; refuses what no honest worker could report."""

import json
import math
import re
from typing import Any

from cojax.environment import LimitExceeded
from cojax.types import Call, Observation

# The most bytes of an episode's reported calls; the worker's own limit is lower.
MOST_BYTES = 4 * 2**20
# The most values in the report of one step: small values take far more memory than bytes.
_MOST_VALUES = 400_000
# The deepest nesting of a call's arguments.
_DEPTH = 32
# Names of apps and APIs.
_NAME = re.compile(r"[A-Za-z_]{1,60}")


def read(observation: Observation) -> tuple[str, list[Call], int]:
    """The output of a step, the calls it made, and the bytes of their report.

    Raises LimitExceeded for a reply that no honest child sends.
    """
    try:
        printed, reported = (message.content for message in observation.messages)
        if not (isinstance(printed, str) and isinstance(observation.ok, bool) and isinstance(observation.done, bool)):
            raise TypeError("an observation is text, and says by true or false whether it is good and the last")
        if len(reported) > MOST_BYTES or sum(map(reported.count, ",[{")) > _MOST_VALUES:
            raise ValueError(f"a report holds at most {MOST_BYTES:,} bytes and {_MOST_VALUES:,} values")
        records = json.loads(reported, parse_constant=str, parse_float=_finite)
        return printed, [_call(record) for record in records], len(reported)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LimitExceeded(f"the reply to step is none: {error}"[:300]) from error


def _call(record: Any) -> Call:
    """A call in the judge's form. Raises TypeError or KeyError where the record is no call."""
    app, api, arguments, digest = (record[name] for name in ("app", "api", "arguments", "digest"))
    if not (isinstance(app, str) and isinstance(api, str) and isinstance(arguments, dict) and isinstance(digest, str)):
        raise TypeError("a call is made of app, api, arguments and digest")
    if not (_NAME.fullmatch(app) and _NAME.fullmatch(api)):
        raise TypeError("apps and APIs are named by letters")
    if _deep(arguments, _DEPTH):
        raise TypeError(f"arguments nest deeper than {_DEPTH} levels")
    return Call(f"{app}.{api}", {"arguments": arguments, "digest": digest[:32]})


def _finite(number: str) -> float | str:
    """JSON has no infinity, though 1e999 reads as one."""
    value = float(number)
    return value if math.isfinite(value) else number


def _deep(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deep(one, levels - 1) for one in inner)

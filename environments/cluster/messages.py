"""What crosses between the trainer and a node: bytes, one JSON object in ASCII each, of bounded size.

trainer → node   {"id", "episode", "op", "arguments"}   episode 0 is the environment itself
node → trainer   {"id", "counted": seconds, "value"} or {"id", "counted", "failure": type, "message"}
                 {"counted": {id: seconds}}   when asked for it

`counted` is how much of a call's time counts against its deadlines.
"""

from typing import Any

from cojax.environment import EnvironmentFailure, EpisodeFailure, LimitExceeded, PolicyLoss
from ..worker import wire
from ..worker.wire import Malformed, Scan, read

# The failures that cross as they are, the narrowest first.
FAILURES: dict[str, type[EnvironmentFailure]] = {
    one.__name__: one for one in (PolicyLoss, LimitExceeded, EpisodeFailure, EnvironmentFailure)
}
# The most bytes of a request.
REQUEST = 64 * 2**20
# The bounds of an episode's reply, in bytes and values.
_OUTPUT, _VALUES = 32 * 2**20, 1_000_000


def request(number: int, episode: int, op: str, arguments: list[Any]) -> bytes:
    """A call. Raises EnvironmentFailure for one that is too long."""
    line = wire.encode({"id": number, "episode": episode, "op": op, "arguments": arguments})
    if len(line) > REQUEST:
        raise EnvironmentFailure(f"{op} has {len(line):,} bytes, more than the {REQUEST:,} that can be sent to a node")
    return line


def answer(number: int, episode: int, value: Any, counted: float) -> bytes:
    """The reply with a value. Raises LimitExceeded for one that is too long, ValueError for one that is not JSON."""
    line = wire.encode({"id": number, "counted": counted, "value": value})
    if len(line) > (most := _bounds(episode)[0]):
        raise LimitExceeded(f"the reply has {len(line):,} bytes, more than the {most:,} that a node may send")
    return line


def failed(number: int, error: EnvironmentFailure, counted: float) -> bytes:
    """The reply that says why there is no value."""
    name = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
    return wire.encode({"id": number, "counted": counted, **wire.failed(name, str(error))})


def reply(line: object, number: int, episode: int) -> tuple[float, Any, EnvironmentFailure | None]:
    """(seconds counted, value, failure) of a reply to that call. Raises Malformed where it is none."""
    found = decoded(line, *_bounds(episode))
    counted = read(float, found.get("counted"))
    if found.get("id") != number:
        raise Malformed(f"found a reply to call {found.get('id')!r:.50}, expected one to {number}")
    if found.keys() == {"id", "counted", "value"}:
        return counted, found["value"], None
    if found.keys() != {"id", "counted", "failure", "message"} or found["failure"] not in FAILURES:
        raise Malformed("a reply has neither a value nor a known failure")
    return counted, None, FAILURES[found["failure"]](read(str, found["message"]))


def progress(line: object) -> dict[str, float]:
    """Call → seconds that it has counted so far. Raises Malformed."""
    found = read(dict, decoded(line, _OUTPUT, _VALUES).get("counted"))
    return {number: read(float, seconds) for number, seconds in found.items()}


def decoded(line: object, most: int = _OUTPUT, values: int = _VALUES) -> dict[str, Any]:
    """The JSON object of a reply, whose size and depth are bounded before it is parsed. Raises Malformed."""
    if not isinstance(line, bytes) or len(line) > most:
        raise Malformed(f"a reply is no text of at most {most:,} bytes")
    scan = Scan(values)
    try:
        for start in range(0, len(line), wire.PART):
            scan.take(line[start : start + wire.PART])
        return wire.decode(line)
    except ValueError as error:
        raise Malformed(f"a reply cannot be read: {error}") from error


def _bounds(episode: int) -> tuple[int, int]:
    return (_OUTPUT, _VALUES) if episode else (wire.SERVICE_OUTPUT, wire.SERVICE_VALUES)

"""The actor of a node: makes the environment there and serves its episodes, each on its own thread.

What crosses between the trainer and a node are bytes, one JSON object in ASCII each, of bounded size:

trainer → node   {"id", "episode", "op", "arguments"}   episode 0 is the environment itself
node → trainer   {"id", "counted": seconds, "value"} or {"id", "counted", "failure": type, "message"}
                 {"counted": {id: seconds}}   when asked for it

`counted` is how much of a call's time counts against its deadlines.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cojax import worlds
from cojax.environment import (
    PLAYING,
    EnvironmentFailure,
    EpisodeFailure,
    LimitExceeded,
    PolicyLoss,
    Progress,
    ask,
    running,
    runs_policy_code,
)
from cojax.types import to_json
from ..worker import wire
from ..worker.served import Operations, describe, environment_operations, episode_operations
from ..worker.venv import ROOT
from ..worker.wire import Malformed, Scan, read

# Calls in which a policy's code may have caused what an environment raises; as `cojax.environment.play` attributes it.
_OF_THE_POLICY = ("step", "evaluate")
# The calls of one episode that wait for its thread; None ends it.
_Calls = queue.SimpleQueue[tuple[dict[str, Any], concurrent.futures.Future[bytes]] | None]


class Host:
    """One environment and its episodes, by the numbers that the trainer gives them. What crosses are bytes."""

    def __init__(self) -> None:
        self._episodes: dict[int, _Calls] = {}
        self._current: dict[int, Progress] = {}
        self._service: Operations = {}
        self._operations: Callable[[], Operations] = dict
        self._failure: type[EnvironmentFailure] = EnvironmentFailure

    async def make(self, order: bytes) -> bytes:
        """Makes the environment; returns what the trainer must know of it, or why it cannot be made."""
        return await asyncio.to_thread(self._make, order)

    async def call(self, line: bytes) -> bytes:
        """Carries out one call of an episode, or of the environment."""
        request = wire.decode(line)
        episode = request["episode"]
        if episode not in self._episodes:
            if episode and request["op"] != "reset":
                return encode_failure(request["id"], EnvironmentFailure("the episode is closed"), 0.0)
            calls = self._episodes[episode] = queue.SimpleQueue()
            operations = self._operations() if episode else self._service
            threading.Thread(target=self._serve, args=(calls, operations), name="episode", daemon=True).start()
        # A call counts from now on, also while it waits behind another: so its deadline holds if that one hangs.
        self._current[request["id"]] = Progress(since=running())
        future: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        self._episodes[episode].put((request, future))
        return await asyncio.wrap_future(future)

    async def beat(self) -> bytes:
        """Says that the node lives, and how much time each call under way has counted."""
        now = running()
        seconds = {str(number): max(0.0, now - progress.since) for number, progress in list(self._current.items())}
        return wire.encode({"counted": seconds, "process": os.getpid()})

    async def end(self, episode: int) -> None:
        """Closes an episode once its current call is over."""
        if calls := self._episodes.pop(episode, None):
            calls.put(None)

    def _make(self, order: bytes) -> bytes:
        try:
            details = wire.decode(order)
            if (own_code := code_of(details["name"])) != details["code"]:
                raise RuntimeError(
                    f"its code ({own_code[:12]}, in {ROOT}) is not the trainer's ({details['code'][:12]}); install the "
                    "same commit there"
                )
            environment = worlds.load_plain(details["name"], details["settings"])
            self._service = environment_operations(environment)
            self._operations = functools.partial(episode_operations, environment)
            self._failure = PolicyLoss if runs_policy_code(environment) else EpisodeFailure
            extras = {
                "runs_policy_code": runs_policy_code(environment),
                "layers": dict(vars(environment).get("layers", {})),
            }
            return wire.encode({"described": describe(environment) | extras})
        except (Exception, SystemExit) as error:
            return wire.encode(wire.explain(wire.START, f"{type(error).__name__}: {error}"))

    def _serve(self, calls: _Calls, operations: Operations) -> None:
        """Makes the calls of one episode one after another, and then closes it."""
        while (item := calls.get()) is not None:
            request, future = item
            try:
                future.set_result(self._answer(request, operations))
            except BaseException as error:
                future.set_exception(error)
        with contextlib.suppress(Exception):
            operations["close"]()

    def _answer(self, request: dict[str, Any], operations: Operations) -> bytes:
        number, episode, op = request["id"], request["episode"], request["op"]
        # The wait is over and is not charged. What the environment excuses is taken off `since`, as on a thread of the
        # trainer.
        progress = self._current[number] = Progress(since=running())
        playing = PLAYING.set(progress)
        failure = self._failure if episode and op in _OF_THE_POLICY else EnvironmentFailure

        def run() -> bytes:
            value = to_json(operations[op](*request["arguments"]))
            return encode_answer(number, episode, value, _count(progress))

        try:
            return ask(run, failure=failure)
        except EnvironmentFailure as error:
            return encode_failure(number, error, _count(progress))
        finally:
            PLAYING.reset(playing)
            self._current.pop(number, None)


def code_of(name: str) -> str:
    """A hash of the code that an environment of that name runs: our packages, and its own module if that is not ours.

    Nodes must have the trainer's code: otherwise a verdict could depend on where an episode is played.
    """
    files = {
        f"{package}/{path.relative_to(ROOT / package)}": path
        for package in {"cojax", __name__.partition(".")[0]}
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".md", ".txt", ".toml", ".json", ".jinja")
    }
    if name not in worlds.available():
        module_name = worlds.full_name(name).partition(":")[0]
        modules = [worlds.module(name), sys.modules[module_name]]
        files |= {module.__name__: Path(str(module.__file__)) for module in modules}
    digest = hashlib.sha256()
    for relative, path in sorted(files.items()):
        digest.update(f"{relative}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _count(progress: Progress) -> float:
    return max(0.0, running() - progress.since)


# The failures that cross as they are, the narrowest first.
FAILURES: dict[str, type[EnvironmentFailure]] = {
    one.__name__: one for one in (PolicyLoss, LimitExceeded, EpisodeFailure, EnvironmentFailure)
}
# The most bytes of a request.
REQUEST = 64 * 2**20
# The bounds of an episode's reply, in bytes and values.
_OUTPUT, _VALUES = 32 * 2**20, 1_000_000


def encode_request(number: int, episode: int, op: str, arguments: list[Any]) -> bytes:
    """A call. Raises EnvironmentFailure for one that is too long."""
    line = wire.encode({"id": number, "episode": episode, "op": op, "arguments": arguments})
    if len(line) > REQUEST:
        raise EnvironmentFailure(f"{op} has {len(line):,} bytes, more than the {REQUEST:,} that can be sent to a node")
    return line


def encode_answer(number: int, episode: int, value: Any, counted_s: float) -> bytes:
    """The reply with a value. Raises LimitExceeded for one that is too long, ValueError for one that is not JSON."""
    line = wire.encode({"id": number, "counted": counted_s, "value": value})
    if len(line) > (limit := _bounds(episode)[0]):
        raise LimitExceeded(f"the reply has {len(line):,} bytes, more than the {limit:,} that a node may send")
    return line


def encode_failure(number: int, error: EnvironmentFailure, counted_s: float) -> bytes:
    """The reply that says why there is no value."""
    name = next(name for name, kind in FAILURES.items() if isinstance(error, kind))
    return wire.encode({"id": number, "counted": counted_s, **wire.explain(name, str(error))})


def decode_reply(line: object, number: int, episode: int) -> tuple[float, Any, EnvironmentFailure | None]:
    """(seconds counted, value, failure) of a reply to that call. Raises Malformed if it is not one."""
    message = decode(line, *_bounds(episode))
    counted_s = read(float, message.get("counted"))
    if message.get("id") != number:
        raise Malformed(f"found a reply to call {message.get('id')!r:.50}, expected one to {number}")
    if message.keys() == {"id", "counted", "value"}:
        return counted_s, message["value"], None
    if message.keys() != {"id", "counted", "failure", "message"} or message["failure"] not in FAILURES:
        raise Malformed("a reply has neither a value nor a known failure")
    return counted_s, None, FAILURES[message["failure"]](read(str, message["message"]))


def decode_progress(line: object) -> dict[str, float]:
    """Call → seconds that it has counted so far. Raises Malformed."""
    counts = read(dict, decode(line, _OUTPUT, _VALUES).get("counted"))
    return {number: read(float, seconds) for number, seconds in counts.items()}


def decode(line: object, most: int = _OUTPUT, values: int = _VALUES) -> dict[str, Any]:
    """The JSON object of a reply, whose size and depth are bounded before it is parsed. Raises Malformed."""
    if not isinstance(line, bytes) or len(line) > most:
        raise Malformed(f"a reply is not text of at most {most:,} bytes")
    scan = Scan(values)
    try:
        for start in range(0, len(line), wire.PART):
            scan.take(line[start : start + wire.PART])
        return wire.decode(line)
    except ValueError as error:
        raise Malformed(f"a reply cannot be read: {error}") from error


def _bounds(episode: int) -> tuple[int, int]:
    return (_OUTPUT, _VALUES) if episode else (wire.SERVICE_OUTPUT, wire.SERVICE_VALUES)

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
    Progress,
    SandboxLost,
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
_POLICY_OPS = ("step", "evaluate")
# The calls of one episode that wait for its thread; None ends it.
_CallQueue = queue.SimpleQueue[tuple[dict[str, Any], concurrent.futures.Future[bytes]] | None]


class Host:
    """One environment and its episodes, by the numbers that the trainer gives them. What crosses are bytes."""

    def __init__(self) -> None:
        self._call_queues: dict[int, _CallQueue] = {}
        self._calls: dict[int, Progress] = {}
        self._service_operations: Operations = {}
        self._make_operations: Callable[[], Operations] = dict
        self._failure_type: type[EnvironmentFailure] = EnvironmentFailure

    async def make(self, order_line: bytes) -> bytes:
        """Makes the environment; returns what the trainer must know of it, or why it cannot be made."""
        return await asyncio.to_thread(self._make_environment, order_line)

    async def call(self, request_line: bytes) -> bytes:
        """Carries out one call of an episode, or of the environment."""
        request = wire.decode(request_line)
        episode_id = request["episode"]
        if episode_id not in self._call_queues:
            if episode_id and request["op"] != "reset":
                return encode_failure(request["id"], EnvironmentFailure("the episode is closed"), 0.0)
            call_queue = self._call_queues[episode_id] = queue.SimpleQueue()
            operations = self._make_operations() if episode_id else self._service_operations
            threading.Thread(target=self._serve, args=(call_queue, operations), name="episode", daemon=True).start()
        # A call counts from now on, also while it waits behind another: so its deadline holds if that one hangs.
        self._calls[request["id"]] = Progress(since=running())
        future: concurrent.futures.Future[bytes] = concurrent.futures.Future()
        self._call_queues[episode_id].put((request, future))
        return await asyncio.wrap_future(future)

    async def beat(self) -> bytes:
        """Says that the node lives, and how much time each call under way has counted."""
        now = running()
        counted_s = {str(call_id): max(0.0, now - progress.since) for call_id, progress in list(self._calls.items())}
        return wire.encode({"counted": counted_s, "process": os.getpid()})

    async def end(self, episode_id: int) -> None:
        """Closes an episode once its current call is over."""
        if call_queue := self._call_queues.pop(episode_id, None):
            call_queue.put(None)

    def _make_environment(self, order_line: bytes) -> bytes:
        try:
            order = wire.decode(order_line)
            if (own_hash := hash_code(order["name"])) != order["code"]:
                raise RuntimeError(
                    f"its code ({own_hash[:12]}, in {ROOT}) is not the trainer's ({order['code'][:12]}); install the "
                    "same commit there"
                )
            environment = worlds.load_from_json(order["name"], order["settings"])
            self._service_operations = environment_operations(environment)
            self._make_operations = functools.partial(episode_operations, environment)
            self._failure_type = SandboxLost if runs_policy_code(environment) else EpisodeFailure
            extra_facts = {
                "runs_policy_code": runs_policy_code(environment),
                "layers": dict(vars(environment).get("layers", {})),
            }
            return wire.encode({"described": describe(environment) | extra_facts})
        except (Exception, SystemExit) as error:
            return wire.encode(wire.explain(wire.START, f"{type(error).__name__}: {error}"))

    def _serve(self, call_queue: _CallQueue, operations: Operations) -> None:
        """Makes the calls of one episode one after another, and then closes it."""
        while (queued_call := call_queue.get()) is not None:
            request, future = queued_call
            try:
                future.set_result(self._answer_request(request, operations))
            except BaseException as error:
                future.set_exception(error)
        with contextlib.suppress(Exception):
            operations["close"]()

    def _answer_request(self, request: dict[str, Any], operations: Operations) -> bytes:
        call_id, episode_id, op = request["id"], request["episode"], request["op"]
        # The wait is over and is not charged. What the environment excuses is taken off `since`, as on a thread of the
        # trainer.
        progress = self._calls[call_id] = Progress(since=running())
        token = PLAYING.set(progress)
        failure_type = self._failure_type if episode_id and op in _POLICY_OPS else EnvironmentFailure

        def make_call() -> bytes:
            value = to_json(operations[op](*request["arguments"]))
            return encode_answer(call_id, episode_id, value, _count_seconds(progress))

        try:
            return ask(make_call, failure_type=failure_type)
        except EnvironmentFailure as error:
            return encode_failure(call_id, error, _count_seconds(progress))
        finally:
            PLAYING.reset(token)
            self._calls.pop(call_id, None)


def hash_code(environment_name: str) -> str:
    """A hash of the code that an environment of that name runs: our packages, and its own module if that is not ours.

    Nodes must have the trainer's code: otherwise a verdict could depend on where an episode is played.
    """
    path_by_name = {
        f"{package}/{path.relative_to(ROOT / package)}": path
        for package in {"cojax", __name__.partition(".")[0]}
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".md", ".txt", ".toml", ".json", ".jinja")
    }
    if environment_name not in worlds.available():
        module_name = worlds.complete_name(environment_name).partition(":")[0]
        own_modules = [worlds.module(environment_name), sys.modules[module_name]]
        path_by_name |= {module.__name__: Path(str(module.__file__)) for module in own_modules}
    digest = hashlib.sha256()
    for relative_path, path in sorted(path_by_name.items()):
        digest.update(f"{relative_path}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def _count_seconds(progress: Progress) -> float:
    return max(0.0, running() - progress.since)


# The failures that cross as they are, the narrowest first.
FAILURE_TYPES: dict[str, type[EnvironmentFailure]] = {
    failure.__name__: failure for failure in (SandboxLost, LimitExceeded, EpisodeFailure, EnvironmentFailure)
}
# The most bytes of a request.
MAX_REQUEST_BYTES = 64 * 2**20
# The bounds of an episode's reply, in bytes and values.
_MAX_REPLY_BYTES, _MAX_REPLY_VALUES = 32 * 2**20, 1_000_000


def encode_request(call_id: int, episode_id: int, op: str, arguments: list[Any]) -> bytes:
    """A call. Raises EnvironmentFailure for one that is too long."""
    line = wire.encode({"id": call_id, "episode": episode_id, "op": op, "arguments": arguments})
    if len(line) > MAX_REQUEST_BYTES:
        raise EnvironmentFailure(
            f"{op} has {len(line):,} bytes, more than the {MAX_REQUEST_BYTES:,} that can be sent to a node"
        )
    return line


def encode_answer(call_id: int, episode_id: int, value: Any, counted_s: float) -> bytes:
    """The reply with a value. Raises LimitExceeded for one that is too long, ValueError for one that is not JSON."""
    line = wire.encode({"id": call_id, "counted": counted_s, "value": value})
    if len(line) > (max_bytes := _reply_bounds(episode_id)[0]):
        raise LimitExceeded(f"the reply has {len(line):,} bytes, more than the {max_bytes:,} that a node may send")
    return line


def encode_failure(call_id: int, error: EnvironmentFailure, counted_s: float) -> bytes:
    """The reply that says why there is no value."""
    code = next(code for code, failure_type in FAILURE_TYPES.items() if isinstance(error, failure_type))
    return wire.encode({"id": call_id, "counted": counted_s, **wire.explain(code, str(error))})


def decode_reply(reply_line: object, call_id: int, episode_id: int) -> tuple[float, Any, EnvironmentFailure | None]:
    """(seconds counted, value, failure) of a reply to that call. Raises Malformed if it is not one."""
    message = decode(reply_line, *_reply_bounds(episode_id))
    counted_s = read(float, message.get("counted"))
    if message.get("id") != call_id:
        raise Malformed(f"found a reply to call {message.get('id')!r:.50}, expected one to {call_id}")
    if message.keys() == {"id", "counted", "value"}:
        return counted_s, message["value"], None
    if message.keys() != {"id", "counted", "failure", "message"} or message["failure"] not in FAILURE_TYPES:
        raise Malformed("a reply has neither a value nor a known failure")
    return counted_s, None, FAILURE_TYPES[message["failure"]](read(str, message["message"]))


def decode_progress(reply_line: object) -> dict[str, float]:
    """Call → seconds that it has counted so far. Raises Malformed."""
    seconds_by_call = read(dict, decode(reply_line, _MAX_REPLY_BYTES, _MAX_REPLY_VALUES).get("counted"))
    return {call_id: read(float, counted_s) for call_id, counted_s in seconds_by_call.items()}


def decode(reply: object, max_bytes: int = _MAX_REPLY_BYTES, max_values: int = _MAX_REPLY_VALUES) -> dict[str, Any]:
    """The JSON object of a reply, whose size and depth are bounded before it is parsed. Raises Malformed."""
    if not isinstance(reply, bytes) or len(reply) > max_bytes:
        raise Malformed(f"a reply is not text of at most {max_bytes:,} bytes")
    scan = Scan(max_values)
    try:
        for chunk_start in range(0, len(reply), wire.CHUNK_BYTES):
            scan.count_chunk(reply[chunk_start : chunk_start + wire.CHUNK_BYTES])
        return wire.decode(reply)
    except ValueError as error:
        raise Malformed(f"a reply cannot be read: {error}") from error


def _reply_bounds(episode_id: int) -> tuple[int, int]:
    return (_MAX_REPLY_BYTES, _MAX_REPLY_VALUES) if episode_id else (wire.MAX_SERVICE_BYTES, wire.SERVICE_VALUES)

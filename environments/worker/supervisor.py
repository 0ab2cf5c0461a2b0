"""The supervisor: relays calls between the client and the children, and enforces every limit from outside.

Started by exec, on one end of a socket pair whose other end is the client's. It never opens an episode. When the client
is gone, however it went, or the fork server is, it ends and no child stays behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
import os
import resource
import socket
import subprocess
import traceback
from collections.abc import Coroutine
from typing import Any

from environments.worker import wire
from environments.worker.bounds import Bounds
from environments.worker.forkserver import PACKET

# Seconds that the fork server gets to end by itself.
_GRACE = 5.0
# What a process that may run a model's code learns of the outside: no keys, no tokens.
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ")
# A reply about the whole environment, in bytes: thousands of tasks.
_SERVICE_OUTPUT = 512 * 2**20
# The episode that stands for the environment itself.
_SERVICE = 0


def main(descriptor: int) -> None:
    # As many sockets as the system lets us have: one a child.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve(socket.socket(fileno=descriptor), _watched(os.getppid())))


def _watched(trainer: int) -> int | None:
    """A descriptor that turns readable when the trainer ends; an inherited copy of its socket would hide that."""
    try:
        return os.pidfd_open(trainer)
    except (OSError, AttributeError):
        return None


async def _serve(connection: socket.socket, trainer: int | None) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=wire.REQUEST)
    over = asyncio.Event()
    if trainer is not None:
        asyncio.get_running_loop().add_reader(trainer, over.set)
    line = await reader.readline()
    if not line:
        return
    order = wire.decode(line)
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    with theirs:
        try:
            server = _launch(order, theirs)
        except OSError as error:
            writer.write(wire.encode({"id": 0, **wire.failed(wire.START, f"cannot run {order['python']}: {error}")}))
            await writer.drain()
            return
    ready: dict[str, Any] = {"failure": wire.START}
    try:
        starting = asyncio.create_task(_first_word(control, order))
        while not starting.done() and not over.is_set() and not reader.at_eof():
            await asyncio.wait({starting}, timeout=0.1)
        if not starting.done():
            return
        ready = starting.result()
        writer.write(wire.encode({"id": 0, **ready}))
        if "failure" not in ready:
            await _Ward(reader, writer, control, Bounds(**order["bounds"])).serve(over)
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        control.close()
        if "failure" in ready:
            server.kill()
        try:
            await asyncio.to_thread(server.wait, _GRACE)
        except subprocess.TimeoutExpired:
            server.kill()


def _launch(order: dict[str, Any], control: socket.socket) -> subprocess.Popen[bytes]:
    """The fork server, by the environment's own interpreter and with next to nothing of our surroundings."""
    surroundings = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return subprocess.Popen(
        [order["python"], "-s", "-P", "-c", order["boot"], "forkserver", str(control.fileno())],
        pass_fds=(control.fileno(),),
        # Sets have one order in every child of every fork server.
        env={**surroundings, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _first_word(control: socket.socket, order: dict[str, Any]) -> dict[str, Any]:
    """Gives the order and waits until the environment is made; the reply to the client."""
    loop = asyncio.get_running_loop()
    names = ("module", "settings", "visible", "hidden", "enclosed", "bounds")
    deadline = order["bounds"]["start_deadline"]
    packet = wire.encode({name: order[name] for name in names})
    if len(packet) > PACKET:
        return wire.failed(wire.START, f"the settings have {len(packet):,} bytes; at most {PACKET:,} can be passed on")
    try:
        async with asyncio.timeout(deadline):
            await loop.sock_sendall(control, packet)
            word = await loop.sock_recv(control, PACKET)
    except TimeoutError:
        return wire.failed(wire.START, f"importing and making the environment took longer than {deadline:g} s")
    except ConnectionError:
        word = b""
    if not word:
        return wire.failed(wire.START, f"{order['python']} ended before the environment was made; see its last words")
    said = wire.decode(word)
    return said if "failure" in said else {"value": said["ready"]}


@dataclasses.dataclass
class _Child:
    """A child by its number: our end of its socket pair, and why it answers no more."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    calls: int = 0
    gone: str = ""


class _Ward:
    """The children of one environment by episode, and the free slots."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, control: socket.socket, bounds: Bounds
    ) -> None:
        self.reader, self.writer, self.control, self.bounds = reader, writer, control, bounds
        self.children: dict[int, _Child] = {}
        self.free: list[int] = list(range(bounds.children))
        self.tasks: set[asyncio.Task[None]] = set()
        self.numbers = itertools.count(1)
        self.birth = asyncio.Lock()

    async def serve(self, over: asyncio.Event) -> None:
        """Until the client or the fork server is gone, or `over` is set."""
        watches = [asyncio.create_task(watch) for watch in (self._take_orders(), self._watch(), over.wait())]
        await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        left = [*watches, *self.tasks]
        for task in left:
            task.cancel()
        for ended in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, ConnectionError):
                traceback.print_exception(ended)

    async def _take_orders(self) -> None:
        while line := await self.reader.readline():
            request = wire.decode(line)
            if request["op"] == "close":
                self._dismiss(request["episode"])
                continue
            self._begin(self._answer(request))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _watch(self) -> None:
        """A slot is free again, and its user id with it, once nothing of the child is left."""
        loop = asyncio.get_running_loop()
        while packet := await loop.sock_recv(self.control, PACKET):
            message = wire.decode(packet)
            for child in self.children.values():
                if child.number == message["exited"]:
                    child.gone = child.gone or message["reason"]
            heapq.heappush(self.free, message["slot"])

    async def _answer(self, request: dict[str, Any]) -> None:
        try:
            reply = await self._reply(request["episode"], request["op"], request["arguments"], request["deadline"])
            line = wire.encode({"id": request["id"], **reply})
        except ConnectionError:
            raise
        except Exception as error:
            failed = wire.failed(wire.HOST, f"the supervisor failed: {type(error).__name__}: {error}")
            line = wire.encode({"id": request["id"], **failed})
        self.writer.write(line)
        await self.writer.drain()

    async def _reply(self, episode: int, op: str, arguments: list[Any], deadline: float) -> dict[str, Any]:
        while True:
            try:
                child = await self._child(episode, op)
            except OSError as error:
                return wire.failed(wire.HOST, f"no child could be started: {error}")
            if child is None:
                return wire.failed(wire.HOST, "the episode is closed")
            async with child.turn:
                if child.reader.at_eof():
                    # Its end of the socket is closed; that it has ended too is not taken on trust.
                    self._give_up(child, "the child ended between two calls")
                if child.gone:
                    if episode == _SERVICE:
                        # Lost by another call, while this one waited for its turn.
                        continue
                    return wire.failed(wire.LOST, child.gone)
                reply = await self._ask(child, op, arguments, deadline)
            break
        if reply.get("failure") not in (None, wire.ENVIRONMENT):
            self._give_up(child, f"the child was given up: {reply['message']}")
        return reply

    async def _child(self, episode: int, op: str) -> _Child | None:
        """The episode's child, forked for its first call. Raises OSError where none can be."""
        async with self.birth:
            child = self.children.get(episode)
            if op == "reset" or (episode == _SERVICE and (child is None or child.gone)):
                return await self._bear(episode)
            return child

    async def _ask(self, child: _Child, op: str, arguments: list[Any], deadline: float) -> dict[str, Any]:
        """One call of a child, which is trusted with nothing: not to answer, not to stop, not to answer this call."""
        child.calls += 1
        try:
            async with asyncio.timeout(deadline):
                child.writer.write(wire.encode({"n": child.calls, "op": op, "arguments": arguments}))
                await child.writer.drain()
                line = await child.reader.readline()
            answer = wire.decode(line) if line else None
        except TimeoutError:
            return wire.failed(wire.TIMEOUT, f"{op} took longer than {deadline:g} s")
        except (ConnectionError, asyncio.IncompleteReadError):
            answer = None
        except ValueError as error:  # too long, or no JSON
            return wire.failed(wire.LIMIT, f"the reply to {op} is no reply: {error}"[:300])
        if answer is None:
            # Where the fork server died, everything ends now, and this call is not to blame.
            await asyncio.sleep(0.1)
            return wire.failed(wire.WORKER_DIED, f"the child died during {op}")
        if answer.pop("n", None) != child.calls or not (answer.keys() == {"value"} or "failure" in answer):
            return wire.failed(wire.LIMIT, f"the reply to {op} is no reply to this call")
        if "failure" in answer:
            code = wire.LIMIT if answer["failure"] == wire.LIMIT else wire.ENVIRONMENT
            return wire.failed(code, str(answer.get("message")))
        return answer

    async def _bear(self, episode: int) -> _Child:
        """Has a child forked for the episode. Raises OSError where there is no room."""
        if not self.free:
            raise OSError(f"{self.bounds.children} children are alive; raise the bound `children`")
        self._dismiss(episode)
        limit = _SERVICE_OUTPUT if episode == _SERVICE else self.bounds.output
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=limit)
        except OSError:
            ours.close()
            theirs.close()
            raise
        slot, number = heapq.heappop(self.free), next(self.numbers)
        child = self.children[episode] = _Child(number, reader, writer)
        kind = "environment" if episode == _SERVICE else "episode"
        with theirs:
            await self._order({"spawn": child.number, "slot": slot, "kind": kind}, [theirs.fileno()])
        return child

    async def _order(self, order: dict[str, Any], descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self.control, [wire.encode(order)], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)

    def _give_up(self, child: _Child, reason: str) -> None:
        if not child.gone:
            child.gone = reason
            self._begin(self._order({"kill": child.number}, []))
        child.writer.close()

    def _dismiss(self, episode: int) -> None:
        if child := self.children.pop(episode, None):
            self._give_up(child, "the episode is closed")

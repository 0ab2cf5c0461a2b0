"""The children of one environment as the supervisor sees them: calls, deadlines, bounds, and whose fault a loss is.

A loss is the child's own (TIMEOUT, WORKER_DIED, LIMIT, LOST, ENVIRONMENT) where the fork server is alive to say so, and
HOST otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
import socket
import sys
import traceback
from collections.abc import Coroutine
from typing import Any

from cojax.environment import running
from environments.worker import wire
from environments.worker.bounds import Bounds
from environments.worker.forkserver import PACKET
from environments.worker.replies import OutOfMemory, Room, Scan, examined, failure, receive, spoken
from environments.worker.timer import Timer

# Seconds between two words to the client that calls are under way.
BEAT = 0.5
# A reply about the whole environment, in bytes and values: thousands of tasks.
_SERVICE_OUTPUT, _SERVICE_VALUES = 512 * 2**20, 64_000_000
# The episode that stands for the environment itself.
_SERVICE = 0
# Seconds between two looks at a call that is under way, and before the first.
_LOOK, _FIRST_LOOK = 0.25, 0.1


@dataclasses.dataclass
class _Child:
    """A child by its number: our end of its socket pair, and why it answers no more."""

    number: int
    socket: socket.socket
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    born: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    pid: int = 0
    calls: int = 0
    gone: str = ""

    def hang_up(self) -> None:
        """Closes the socket; a call that reads from it ends first."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if not self.turn.locked():
            self.socket.close()


class Ward:
    """The children of one environment by episode, and the free slots. `over` ends it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        control: socket.socket,
        bounds: Bounds,
        over: asyncio.Event,
    ) -> None:
        self.reader, self.writer, self.control, self.bounds, self.over = reader, writer, control, bounds, over
        self.children: dict[int, _Child] = {}
        self.known: dict[int, _Child] = {}  # by number, until the fork server has buried them
        self.free: list[int] = list(range(bounds.children))
        self.tasks: set[asyncio.Task[None]] = set()
        self.timers: dict[int, Timer] = {}  # by request
        self.numbers = itertools.count(1)
        self.birth = asyncio.Lock()
        self.room = Room(bounds.output)

    async def serve(self) -> None:
        """Until the client or the fork server is gone, or `over` is set."""
        works = (self._take_orders(), self._watch(), self._beat(), self.over.wait())
        watches = [asyncio.create_task(work) for work in works]
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
            if "born" in message:
                child = self.known[message["born"]]
                child.pid = message["pid"]
                child.born.set()
                continue
            child = self.known.pop(message["exited"])
            child.gone = child.gone or message["reason"]
            child.born.set()
            child.ended.set()
            heapq.heappush(self.free, message["slot"])

    async def _beat(self) -> None:
        """Tells the client now and then that its calls are under way, and what each has counted."""
        while True:
            await asyncio.sleep(BEAT)
            # A client that was stopped reads nothing.
            if self.timers and self.writer.transport.get_write_buffer_size() < PACKET:
                self.writer.write(wire.encode({"counted": {str(n): t.counted() for n, t in self.timers.items()}}))

    async def _answer(self, request: dict[str, Any]) -> None:
        number = request["id"]
        timer = self.timers[number] = Timer(request["deadline"])
        async with contextlib.AsyncExitStack() as held:
            try:
                reply = await self._reply(request["episode"], request["op"], request["arguments"], timer, held)
            except ConnectionError:
                raise
            except Exception as error:
                reply = failure(wire.HOST, f"the supervisor failed: {type(error).__name__}: {error}")
            finally:
                del self.timers[number]
            # What the child sent was read here, so that it can be passed on as it is.
            self.writer.write(b'{"id":%d,"counted":%.3f,"reply":%b}\n' % (number, timer.total(), reply))
            await self.writer.drain()

    async def _reply(
        self, episode: int, op: str, arguments: list[Any], timer: Timer, held: contextlib.AsyncExitStack
    ) -> bytes:
        while True:
            try:
                with timer.excused():
                    child = await self._child(episode, op)
            except OSError as error:
                return failure(wire.HOST, f"no child could be started: {error}")
            if child is None:
                return failure(wire.HOST, "the episode is closed")
            with timer.excused():
                await child.turn.acquire()
            try:
                if not child.gone:
                    self._overheard(child)
                if child.gone:
                    if episode == _SERVICE:
                        # Lost by another call, while this one waited for its turn.
                        continue
                    return await self._lost(child, wire.LOST, child.gone, timer)
                return await self._call(child, op, arguments, timer, held)
            finally:
                child.turn.release()
                if child.gone:
                    child.hang_up()

    def _overheard(self, child: _Child) -> None:
        """Gives up a child that hung up or spoke since its last call."""
        unasked = spoken(child.socket)
        if unasked is not None:
            # That it has ended is not taken on trust.
            self._give_up(child, "the child spoke unasked" if unasked else "the child ended between two calls")

    async def _child(self, episode: int, op: str) -> _Child | None:
        """The episode's child, forked for its first call. Raises OSError where none can be."""
        async with self.birth:
            child = self.children.get(episode)
            if op == "reset" or (episode == _SERVICE and (child is None or child.gone)):
                child = await self._bear(episode)
        if child is not None and not child.born.is_set():
            await self._within(child.born, "fork")
        return child

    async def _call(
        self, child: _Child, op: str, arguments: list[Any], timer: Timer, held: contextlib.AsyncExitStack
    ) -> bytes:
        """One call of a child, which is trusted with nothing: not to answer, not to stop, not to answer this call."""
        child.calls += 1
        deadline = timer.deadline
        service = child is self.children.get(_SERVICE)
        scan = Scan(_SERVICE_VALUES if service else self.bounds.values)
        limit = _SERVICE_OUTPUT if service else self.bounds.output

        async def admit() -> None:
            with timer.excused():
                await self.room.admit(held)
            timer.admitted()

        async def exchange() -> bytes:
            message = wire.encode({"n": child.calls, "op": op, "arguments": arguments})
            await asyncio.get_running_loop().sock_sendall(child.socket, message)
            return await receive(child.socket, scan, limit, admit, timer.begin)

        work = asyncio.create_task(exchange())
        try:
            if not await self._finished(work, child, timer):
                return await self._lost(child, wire.TIMEOUT, f"{op} took longer than {deadline:g} s", timer)
            return examined(work.result(), child.calls)
        except OSError:
            return await self._lost(child, wire.WORKER_DIED, f"the child died during {op}", timer)
        except ValueError as error:  # too much, or no JSON
            return await self._lost(
                child, wire.LIMIT, f"the reply to {op} is no reply to this call: {error}"[:300], timer
            )
        except OutOfMemory as error:
            return await self._lost(child, wire.LIMIT, str(error), timer)
        finally:
            work.cancel()
            # Until it has ended, its descriptor is not to be closed, and be another's.
            await asyncio.gather(work, return_exceptions=True)

    async def _finished(self, work: asyncio.Task[bytes], child: _Child, timer: Timer) -> bool:
        """Whether the call ends before its deadline."""
        wait = min(_FIRST_LOOK, timer.deadline)
        while not (await asyncio.wait({work}, timeout=wait))[0]:
            if wait == _FIRST_LOOK:
                timer.follow(child.pid)
            left = timer.deadline - timer.counted()
            # What it has sent and nobody has read yet is not late.
            if left <= 0 and not spoken(child.socket):
                return False
            wait = max(0.01, left) if timer.wall < timer.deadline else _LOOK
        return True

    async def _lost(self, child: _Child, code: str, reason: str, timer: Timer) -> bytes:
        """The failure, once the fork server, which may have taken the child with it, has buried the child."""
        self._give_up(child, f"the child was given up: {reason}" if code != wire.LOST else reason)
        with timer.excused():
            buried = await self._within(child.ended, "bury")
        return failure(code if buried else wire.HOST, reason)

    async def _within(self, event: asyncio.Event, what: str) -> bool:
        """Waits for what the fork server must do; where it does not within `start_deadline`, all ends here."""
        waiting = asyncio.create_task(event.wait())
        until = running() + self.bounds.start_deadline
        while running() < until:
            if (await asyncio.wait({waiting}, timeout=1.0))[0]:
                return True
        waiting.cancel()
        print(f"the fork server did not {what} within {self.bounds.start_deadline:g} s", file=sys.stderr, flush=True)
        self.over.set()
        return False

    async def _bear(self, episode: int) -> _Child:
        """Has a child forked for the episode. Raises OSError where there is no room."""
        if not self.free:
            raise OSError(f"{self.bounds.children} children are alive; raise the bound `children`")
        self._dismiss(episode)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        slot, number = heapq.heappop(self.free), next(self.numbers)
        child = self.children[episode] = self.known[number] = _Child(number, ours)
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
        child.hang_up()

    def _dismiss(self, episode: int) -> None:
        if child := self.children.pop(episode, None):
            self._give_up(child, "the episode is closed")

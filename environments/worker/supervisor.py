"""The supervisor: relays calls between the client and the children, and enforces every limit from outside.

It is started by exec, on one end of a socket pair whose other end is the client's. It never opens an episode. When the
client or the fork server is gone, for whatever reason, it ends and leaves no child behind.

A loss is the child's own (TIMEOUT, WORKER_DIED, LIMIT, LOST, ENVIRONMENT) where a living fork server confirms it, else
HOST.
"""

import asyncio
import contextlib
import ctypes
import dataclasses
import heapq
import itertools
import math
import os
import resource
import socket
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from cojax.environment import running
from . import wire
from .bounds import Bounds
from .client import start_process
from .forkserver import PACKET

# Seconds that the fork server gets to end by itself.
_GRACE = 5.0
# Allocations of at least this many bytes go back to the system when they are freed. Left alone, glibc raises this
# threshold with each larger block that is freed, and keeps the blocks below it.
_MMAP_THRESHOLD, _RETURNED = -3, 2**17
# The environment variables of a process that may run a model's code: no keys, no tokens.
_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ")
# Seconds between two reports of progress to the client.
_BEAT = 0.5
# The episode that stands for the environment itself.
_SERVICE = 0
# Seconds between two looks at a current call, and before the first look.
_LOOK, _FIRST_LOOK = 0.25, 0.1
# Bytes that the large replies of all children may take together, and how many copies there are of each: as read, as
# examined, as sent on, and as kept by the allocator.
_ROOM, _COPIES = 96 * 2**20, 4
# A reply must end within this many seconds of its first byte; a large one, within this many of getting room.
_SENDING = 2.0
# A call ends after this multiple of its deadline in wall time, however little processor time the child got.
_PATIENCE = 5
_TICK = os.sysconf("SC_CLK_TCK")


def main(descriptor: int) -> None:
    with contextlib.suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _RETURNED)
    # As many sockets as the system allows: one for each child.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    trainer = None
    # Readable once the trainer has ended; an inherited copy of its socket could hide the end.
    with contextlib.suppress(OSError, AttributeError):
        trainer = os.pidfd_open(os.getppid())
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve(socket.socket(fileno=descriptor), trainer))


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
            failure = wire.explain(wire.START, f"cannot run {order['python']}: {error}")
            writer.write(wire.encode({"id": 0, "counted": 0.0, "reply": failure}))
            await writer.drain()
            return
    ready: dict[str, Any] = {"failure": wire.START}
    try:
        starting = asyncio.create_task(_first_word(control, order))
        timer, last_beat = Timer(order["bounds"]["start_deadline"]), running()
        timer.follow(server.pid)
        while not starting.done() and not over.is_set() and not reader.at_eof():
            await asyncio.wait({starting}, timeout=0.1)
            if running() - last_beat > _BEAT:
                last_beat = running()
                writer.write(wire.encode({"counted": {}}))
            if not starting.done() and timer.count() > timer.deadline:
                starting.cancel()
                message = f"importing and making the environment took longer than {timer.deadline:g} s"
                starting = asyncio.create_task(asyncio.sleep(0, wire.explain(wire.START, message)))
        if not starting.done():
            return
        ready = starting.result()
        writer.write(wire.encode({"id": 0, "counted": 0.0, "reply": ready}))
        if "failure" not in ready:
            await Children(reader, writer, control, Bounds(**order["bounds"]), over).serve()
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
    """Starts the fork server with the environment's own interpreter and almost none of our environment variables."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    # Sets have one order in every child of every fork server.
    variables |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    return start_process(order["python"], order["boot"], "forkserver", control, variables)


async def _first_word(control: socket.socket, order: dict[str, Any]) -> dict[str, Any]:
    """Has the environment made and waits for it; returns the reply to the client."""
    loop = asyncio.get_running_loop()
    names = ("module", "roots", "settings", "visible", "hidden", "enclosed", "bounds")
    packet = wire.encode({name: order[name] for name in names})
    if len(packet) > PACKET:
        return wire.explain(wire.START, f"the settings have {len(packet):,} bytes; at most {PACKET:,} can be passed on")
    try:
        await loop.sock_sendall(control, packet)
        word = await loop.sock_recv(control, PACKET)
    except ConnectionError:
        word = b""
    if not word:
        return wire.explain(wire.START, f"{order['python']} ended before the environment was made; see its last words")
    reply = wire.decode(word)
    return reply if "failure" in reply else {"value": reply["ready"]}


class Timer:
    """The seconds of one call that count against `deadline`: min(wall, max(work_s, wall - wait_s)).

    `wall` is the time that passed while this process ran, less the time that the host is known to have taken. `work_s`
    and `wait_s` are those of the child and its descendants. A sleeping child is over after `deadline` seconds of wall
    time, a working one after as many of processor time, and any child after five times as many of wall time.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline, self._has_begun = deadline, False
        self._start = running()
        self._pid, self._before = 0, (0.0, 0.0)
        # Seconds excused so far, and since when it has been excused now.
        self._excused_s, self._away = 0.0, math.inf

    def follow(self, pid: int) -> None:
        """Measures this process and its descendants from now on, unless it already measures another."""
        if self._pid:
            return
        self._pid, self._before = pid, usage(pid)

    @property
    def wall(self) -> float:
        now = running()
        return now - self._start - self._excused_s - max(0.0, now - self._away)

    def count(self) -> float:
        """Seconds that count so far; before the deadline that is all wall time, which is cheap to read."""
        wall = self.wall
        return wall if wall < self.deadline else self.total()

    def total(self) -> float:
        """Seconds that count so far, without those in which the child waited for a processor."""
        wall = self.wall
        if not self._pid:
            return wall
        work_s, wait_s = (now - before for now, before in zip(usage(self._pid), self._before, strict=True))
        return min(wall, max(work_s, wall - wait_s, wall / _PATIENCE))

    def begin(self) -> None:
        """Notes that the reply has begun: one that begins late may still end."""
        if not self._has_begun:
            self._has_begun = True
            self.deadline = max(self.deadline, self.wall + _SENDING)

    def admit(self) -> None:
        """Notes that a large reply has room: it must end soon, because others wait for the room."""
        self.deadline = self.wall + _SENDING

    @contextlib.contextmanager
    def excuse(self) -> Iterator[None]:
        """Time within the block is the host's and does not count."""
        self._away = running()
        try:
            yield
        finally:
            self._excused_s, self._away = self._excused_s + running() - self._away, math.inf


def usage(pid: int) -> tuple[float, float]:
    """The seconds of processor time of the process and its descendants, as far as they still exist, and the seconds in
    which a thread of theirs was ready to run but had no processor."""
    work_s = wait_s = 0.0
    pids, visited_pids = [pid], set()
    while pids:
        if (process := pids.pop()) in visited_pids:
            continue
        visited_pids.add(process)
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            work_s += sum(map(int, fields[11:15])) / _TICK
            for thread in os.listdir(f"/proc/{process}/task"):
                wait_s += int(Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()[1]) / 1e9
                pids += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
    return work_s, wait_s


@dataclasses.dataclass
class _Child:
    """A child: its number, our end of its socket pair, and the reason why it is gone, "" while it is there."""

    number: int
    socket: socket.socket
    turn: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    born: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    exit: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    pid: int = 0
    calls: int = 0
    loss: str = ""

    def hang_up(self) -> None:
        """Closes the socket; a call that reads from it ends first."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if not self.turn.locked():
            self.socket.close()


@dataclasses.dataclass(eq=False)
class Children:
    """The children of one environment by episode, and the free slots. Setting `over` ends the service."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    control: socket.socket
    bounds: Bounds
    over: asyncio.Event

    def __post_init__(self) -> None:
        self.children: dict[int, _Child] = {}
        self.by_number: dict[int, _Child] = {}  # until the fork server has cleaned up after them
        self.free: list[int] = list(range(self.bounds.children))
        self.tasks: set[asyncio.Task[None]] = set()
        self.timers: dict[int, Timer] = {}  # by request
        self.numbers = itertools.count(1)
        self.birth = asyncio.Lock()
        # Memory has room for this many large replies at a time, at least one; the others wait.
        self.room = asyncio.Semaphore(max(1, _ROOM // (_COPIES * self.bounds.output)))

    async def serve(self) -> None:
        """Serves until the client or the fork server is gone, or `over` is set."""
        works = (self._read_requests(), self._read_fork_server(), self._report_progress(), self.over.wait())
        watches = [asyncio.create_task(work) for work in works]
        await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        all_tasks = [*watches, *self.tasks]
        for task in all_tasks:
            task.cancel()
        for outcome in await asyncio.gather(*all_tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
                traceback.print_exception(outcome)

    async def _read_requests(self) -> None:
        while line := await self.reader.readline():
            request = wire.decode(line)
            if request["op"] == "close":
                self._end_episode(request["episode"])
                continue
            self._run(self._answer(request))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _read_fork_server(self) -> None:
        """Notes which children were forked and which are gone. A gone child's slot, with its user id, is free again."""
        loop = asyncio.get_running_loop()
        while packet := await loop.sock_recv(self.control, PACKET):
            message = wire.decode(packet)
            if "born" in message:
                child = self.by_number[message["born"]]
                child.pid = message["pid"]
                child.born.set()
                continue
            child = self.by_number.pop(message["exited"])
            child.loss = child.loss or message["reason"]
            child.born.set()
            child.exit.set()
            heapq.heappush(self.free, message["slot"])

    async def _report_progress(self) -> None:
        """Tells the client every `_BEAT` seconds how much time each of its calls has counted."""
        while True:
            await asyncio.sleep(_BEAT)
            # A stopped client reads nothing.
            if self.timers and self.writer.transport.get_write_buffer_size() < PACKET:
                self.writer.write(wire.encode({"counted": {str(n): t.count() for n, t in self.timers.items()}}))

    async def _answer(self, request: dict[str, Any]) -> None:
        number = request["id"]
        timer = self.timers[number] = Timer(request["deadline"])
        async with contextlib.AsyncExitStack() as stack:
            try:
                reply = await self._reply(request["episode"], request["op"], request["arguments"], timer, stack)
            except ConnectionError:
                raise
            except Exception as error:
                reply = wire.failure(wire.HOST, f"the supervisor failed: {type(error).__name__}: {error}")
            finally:
                del self.timers[number]
            # The child's reply was checked here, so it can be passed on unchanged.
            self.writer.write(b'{"id":%d,"counted":%.3f,"reply":%b}\n' % (number, timer.total(), reply))
            await self.writer.drain()

    async def _reply(
        self, episode: int, op: str, arguments: list[Any], timer: Timer, stack: contextlib.AsyncExitStack
    ) -> bytes:
        while True:
            try:
                with timer.excuse():
                    child = await self._get_child(episode, op)
            except OSError as error:
                return wire.failure(wire.HOST, f"no child could be started: {error}")
            if child is None:
                return wire.failure(wire.HOST, "the episode is closed")
            with timer.excuse():
                await child.turn.acquire()
            try:
                # A child that hung up or sent something since its last call is given up.
                if not child.loss and (byte := peek(child.socket)) is not None:
                    # A closed socket does not prove that the child has ended.
                    self._give_up(child, "the child spoke unasked" if byte else "the child ended between two calls")
                if child.loss:
                    if episode == _SERVICE:
                        # Another call lost the child while this one waited for its turn.
                        continue
                    return await self._fail(child, wire.LOST, child.loss, timer)
                return await self._call(child, op, arguments, timer, stack)
            finally:
                child.turn.release()
                if child.loss:
                    child.hang_up()

    async def _get_child(self, episode: int, op: str) -> _Child | None:
        """The episode's child, forked for its first call; None if the episode is closed. Raises OSError."""
        async with self.birth:
            child = self.children.get(episode)
            if op == "reset" or (episode == _SERVICE and (child is None or child.loss)):
                child = await self._fork_child(episode)
        if child is not None and not child.born.is_set():
            await self._wait_for(child.born, "fork")
        return child

    async def _call(
        self, child: _Child, op: str, arguments: list[Any], timer: Timer, stack: contextlib.AsyncExitStack
    ) -> bytes:
        """One call of a child, which is not trusted: it may not answer, not stop, or not answer this call."""
        child.calls += 1
        deadline = timer.deadline
        service = child is self.children.get(_SERVICE)
        scan = wire.Scan(wire.SERVICE_VALUES if service else self.bounds.values)
        limit = wire.SERVICE_OUTPUT if service else self.bounds.output

        async def admit() -> None:
            with timer.excuse():
                await stack.enter_async_context(self.room)
            timer.admit()

        async def exchange() -> bytes:
            message = wire.encode({"n": child.calls, "op": op, "arguments": arguments})
            await asyncio.get_running_loop().sock_sendall(child.socket, message)
            return await receive(child.socket, scan, limit, admit, timer.begin)

        work = asyncio.create_task(exchange())
        try:
            if not await self._ends_in_time(work, child, timer):
                return await self._fail(child, wire.TIMEOUT, f"{op} took longer than {deadline:g} s", timer)
            return wire.check_reply(work.result(), child.calls)
        except OSError:
            return await self._fail(child, wire.WORKER_DIED, f"the child died during {op}", timer)
        except ValueError as error:  # beyond a bound, or not JSON
            return await self._fail(
                child, wire.LIMIT, f"the reply to {op} is no reply to this call: {error}"[:300], timer
            )
        except wire.OutOfMemory as error:
            return await self._fail(child, wire.LIMIT, str(error), timer)
        finally:
            work.cancel()
            # Its descriptor must stay open until it has ended: the number could be reused for another socket.
            await asyncio.gather(work, return_exceptions=True)

    async def _ends_in_time(self, work: asyncio.Task[bytes], child: _Child, timer: Timer) -> bool:
        """Whether the call ends before its deadline."""
        wait = min(_FIRST_LOOK, timer.deadline)
        while not (await asyncio.wait({work}, timeout=wait))[0]:
            if wait == _FIRST_LOOK:
                timer.follow(child.pid)
            remaining_s = timer.deadline - timer.count()
            # A reply that was sent but not yet read is not late.
            if remaining_s <= 0 and not peek(child.socket):
                return False
            wait = max(0.01, remaining_s) if timer.wall < timer.deadline else _LOOK
        return True

    async def _fail(self, child: _Child, code: str, reason: str, timer: Timer) -> bytes:
        """The failure, once the fork server has cleaned up after the child; HOST if that does not happen."""
        self._give_up(child, f"the child was given up: {reason}" if code != wire.LOST else reason)
        with timer.excuse():
            in_time = await self._wait_for(child.exit, "bury")
        return wire.failure(code if in_time else wire.HOST, reason)

    async def _wait_for(self, event: asyncio.Event, action: str) -> bool:
        """Waits for an action of the fork server; ends the service if it takes longer than `start_deadline`."""
        waiting = asyncio.create_task(event.wait())
        until = running() + self.bounds.start_deadline
        while running() < until:
            if (await asyncio.wait({waiting}, timeout=1.0))[0]:
                return True
        waiting.cancel()
        print(f"the fork server did not {action} within {self.bounds.start_deadline:g} s", file=sys.stderr, flush=True)
        self.over.set()
        return False

    async def _fork_child(self, episode: int) -> _Child:
        """Has a child forked for the episode. Raises OSError if no slot is free."""
        if not self.free:
            raise OSError(f"{self.bounds.children} children are alive; raise the bound `children`")
        self._end_episode(episode)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        slot, number = heapq.heappop(self.free), next(self.numbers)
        child = self.children[episode] = self.by_number[number] = _Child(number, ours)
        kind = "environment" if episode == _SERVICE else "episode"
        with theirs:
            await self._send_order({"spawn": child.number, "slot": slot, "kind": kind}, [theirs.fileno()])
        return child

    async def _send_order(self, order: dict[str, Any], descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self.control, [wire.encode(order)], descriptors)
                return
            except BlockingIOError:
                await asyncio.sleep(0.001)

    def _give_up(self, child: _Child, reason: str) -> None:
        if not child.loss:
            child.loss = reason
            self._run(self._send_order({"kill": child.number}, []))
        child.hang_up()

    def _end_episode(self, episode: int) -> None:
        if child := self.children.pop(episode, None):
            self._give_up(child, "the episode is closed")


async def receive(
    source: socket.socket, scan: wire.Scan, limit: int, admit: Callable[[], Awaitable[None]], begin: Callable[[], None]
) -> bytes:
    """Reads one line of at most `limit` bytes. Calls `begin` when bytes arrive; awaits `admit` once for a large line.

    Raises ConnectionError if the child hangs up, and ValueError if the line exceeds a bound or more follows it.
    """
    loop = asyncio.get_running_loop()
    line = bytearray()
    large = False
    while True:
        part = await loop.sock_recv(source, wire.PART)
        if not part:
            raise ConnectionError("the child hung up")
        begin()
        head, newline, excess = part.partition(b"\n")
        scan.take(head)
        line += head
        if len(line) > limit:
            raise ValueError(f"it is longer than {limit:,} bytes")
        if excess:
            raise ValueError("more follows it")
        if newline:
            return bytes(line)
        if len(line) > wire.PART:  # a reply of more than one part asks for room
            if not large:
                large = True
                await admit()
            await asyncio.sleep(0)  # others have their turn


def peek(source: socket.socket) -> bytes | None:
    """The first byte that waits to be read: None if there is none, b"" if the child hung up."""
    try:
        return source.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""

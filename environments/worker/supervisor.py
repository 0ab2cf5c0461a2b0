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
from .forkserver import MAX_PACKET_BYTES

# Seconds that the fork server gets to end by itself.
_EXIT_GRACE_S = 5.0
# Allocations of at least this many bytes go back to the system when they are freed. Left alone, glibc raises this
# threshold with each larger block that is freed, and keeps the blocks below it.
_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 2**17
# The environment variables of a process that may run a model's code: no keys, no tokens.
_PASSED_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ")
# Seconds between two reports of progress to the client.
_HEARTBEAT_PERIOD_S = 0.5
# The episode that stands for the environment itself.
_SERVICE_EPISODE = 0
# A call is first checked after _FIRST_LOOK_AFTER_S seconds, and then every _LOOK_PERIOD_S.
_LOOK_PERIOD_S, _FIRST_LOOK_AFTER_S = 0.25, 0.1
# Bytes that the large replies of all children may take together, and how many copies there are of each: as read, as
# examined, as sent on, and as kept by the allocator.
_REPLY_ROOM_BYTES, _COPIES_PER_REPLY = 96 * 2**20, 4
# A reply must end within this many seconds of its first byte; a large one, within this many of getting room.
_SEND_TIMEOUT_S = 2.0
# A call ends after this multiple of its deadline in wall time, however little processor time the child got.
_MAX_WALL_MULTIPLE = 5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main(client_descriptor: int) -> None:
    with contextlib.suppress(AttributeError):  # of another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
    # As many sockets as the system allows: one for each child.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    trainer_pidfd = None
    # Readable once the trainer has ended; an inherited copy of its socket could hide the end.
    with contextlib.suppress(OSError, AttributeError):
        trainer_pidfd = os.pidfd_open(os.getppid())
    with contextlib.suppress(ConnectionError):
        asyncio.run(_serve_client(socket.socket(fileno=client_descriptor), trainer_pidfd))


async def _serve_client(connection: socket.socket, trainer_pidfd: int | None) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=wire.MAX_REQUEST_BYTES)
    stop_event = asyncio.Event()
    if trainer_pidfd is not None:
        asyncio.get_running_loop().add_reader(trainer_pidfd, stop_event.set)
    order_line = await reader.readline()
    if not order_line:
        return
    start_order = wire.decode(order_line)
    control, their_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.setblocking(False)
    with their_end:
        try:
            fork_server = _start_fork_server(start_order, their_end)
        except OSError as error:
            failure = wire.explain(wire.START, f"cannot run {start_order['python']}: {error}")
            writer.write(wire.encode({"id": 0, "counted": 0.0, "reply": failure}))
            await writer.drain()
            return
    first_reply: dict[str, Any] = {"failure": wire.START}
    try:
        start_task = asyncio.create_task(_await_start(control, start_order))
        timer, last_beat = Timer(start_order["bounds"]["start_deadline"]), running()
        timer.follow(fork_server.pid)
        while not start_task.done() and not stop_event.is_set() and not reader.at_eof():
            await asyncio.wait({start_task}, timeout=0.1)
            if running() - last_beat > _HEARTBEAT_PERIOD_S:
                last_beat = running()
                writer.write(wire.encode({"counted": {}}))
            if not start_task.done() and timer.count_seconds() > timer.timeout_s:
                start_task.cancel()
                reason = f"importing and making the environment took longer than {timer.timeout_s:g} s"
                start_task = asyncio.create_task(asyncio.sleep(0, wire.explain(wire.START, reason)))
        if not start_task.done():
            return
        first_reply = start_task.result()
        writer.write(wire.encode({"id": 0, "counted": 0.0, "reply": first_reply}))
        if "failure" not in first_reply:
            await Children(reader, writer, control, Bounds(**start_order["bounds"]), stop_event).serve()
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        control.close()
        if "failure" in first_reply:
            fork_server.kill()
        try:
            await asyncio.to_thread(fork_server.wait, _EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            fork_server.kill()


def _start_fork_server(start_order: dict[str, Any], control: socket.socket) -> subprocess.Popen[bytes]:
    """Starts the fork server with the environment's own interpreter and almost none of our environment variables."""
    variables = {variable: os.environ[variable] for variable in _PASSED_VARIABLES if variable in os.environ}
    # Sets have one order in every child of every fork server.
    variables |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    return start_process(start_order["python"], start_order["boot"], "forkserver", control, variables)


async def _await_start(control: socket.socket, order: dict[str, Any]) -> dict[str, Any]:
    """Has the environment made and waits for it; returns the reply to the client."""
    loop = asyncio.get_running_loop()
    order_keys = ("module", "roots", "settings", "visible", "hidden", "enclosed", "bounds")
    packet = wire.encode({order_key: order[order_key] for order_key in order_keys})
    if len(packet) > MAX_PACKET_BYTES:
        reason = f"the settings have {len(packet):,} bytes; at most {MAX_PACKET_BYTES:,} can be passed on"
        return wire.explain(wire.START, reason)
    try:
        await loop.sock_sendall(control, packet)
        reply_packet = await loop.sock_recv(control, MAX_PACKET_BYTES)
    except ConnectionError:
        reply_packet = b""
    if not reply_packet:
        return wire.explain(wire.START, f"{order['python']} ended before the environment was made; see its last words")
    reply = wire.decode(reply_packet)
    return reply if "failure" in reply else {"value": reply["ready"]}


class Timer:
    """The seconds of one call that count against `timeout_s`: min(wall, max(work_s, wall - wait_s)).

    `wall` is the time that passed while this process ran, less the time that the host is known to have taken. `work_s`
    and `wait_s` are those of the child and its descendants. A sleeping child is over after `timeout_s` seconds of wall
    time, a working one after as many of processor time, and any child after five times as many of wall time.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s, self._has_begun = timeout_s, False
        self._started_at = running()
        self._pid, self._usage_before = 0, (0.0, 0.0)
        # Seconds excused so far, and since when it has been excused now.
        self._excused_s, self._excused_since = 0.0, math.inf

    def follow(self, child_pid: int) -> None:
        """Measures this process and its descendants from now on, unless it already measures another."""
        if self._pid:
            return
        self._pid, self._usage_before = child_pid, read_usage(child_pid)

    @property
    def wall_s(self) -> float:
        now = running()
        return now - self._started_at - self._excused_s - max(0.0, now - self._excused_since)

    def count_seconds(self) -> float:
        """Seconds that count so far; before the deadline that is all wall time, which is cheap to read."""
        wall = self.wall_s
        return wall if wall < self.timeout_s else self.count_without_waits()

    def count_without_waits(self) -> float:
        """Seconds that count so far, without those in which the child waited for a processor."""
        wall = self.wall_s
        if not self._pid:
            return wall
        work_s, wait_s = (now - earlier for now, earlier in zip(read_usage(self._pid), self._usage_before, strict=True))
        return min(wall, max(work_s, wall - wait_s, wall / _MAX_WALL_MULTIPLE))

    def begin(self) -> None:
        """Notes that the reply has begun: one that begins late may still end."""
        if not self._has_begun:
            self._has_begun = True
            self.timeout_s = max(self.timeout_s, self.wall_s + _SEND_TIMEOUT_S)

    def admit(self) -> None:
        """Notes that a large reply has room: it must end soon, because others wait for the room."""
        self.timeout_s = self.wall_s + _SEND_TIMEOUT_S

    @contextlib.contextmanager
    def excuse(self) -> Iterator[None]:
        """Time within the block is the host's and does not count."""
        self._excused_since = running()
        try:
            yield
        finally:
            self._excused_s, self._excused_since = self._excused_s + running() - self._excused_since, math.inf


def read_usage(root_pid: int) -> tuple[float, float]:
    """The seconds of processor time of the process and its descendants, as far as they still exist, and the seconds in
    which a thread of theirs was ready to run but had no processor."""
    work_s = wait_s = 0.0
    queued_pids, visited_pids = [root_pid], set()
    while queued_pids:
        if (current_pid := queued_pids.pop()) in visited_pids:
            continue
        visited_pids.add(current_pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat_fields = Path(f"/proc/{current_pid}/stat").read_text().rpartition(")")[2].split()
            work_s += sum(map(int, stat_fields[11:15])) / _TICKS_PER_S
            for thread_id in os.listdir(f"/proc/{current_pid}/task"):
                wait_s += int(Path(f"/proc/{current_pid}/task/{thread_id}/schedstat").read_text().split()[1]) / 1e9
                queued_pids += map(int, Path(f"/proc/{current_pid}/task/{thread_id}/children").read_text().split())
    return work_s, wait_s


@dataclasses.dataclass
class _Child:
    """A child: its number, our end of its socket pair, and the reason why it is gone, "" while it is there."""

    number: int
    socket: socket.socket
    turn_lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    fork_event: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    exit_event: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    pid: int = 0
    call_count: int = 0
    loss: str = ""

    def hang_up(self) -> None:
        """Closes the socket; a call that reads from it ends first."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        if not self.turn_lock.locked():
            self.socket.close()


@dataclasses.dataclass(eq=False)
class Children:
    """The children of one environment by episode, and the free slots. Setting `stop_event` ends the service."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    control: socket.socket
    bounds: Bounds
    stop_event: asyncio.Event

    def __post_init__(self) -> None:
        self.child_by_episode: dict[int, _Child] = {}
        self.child_by_number: dict[int, _Child] = {}  # until the fork server has cleaned up after them
        self.free_slots: list[int] = list(range(self.bounds.children))
        self.running_tasks: set[asyncio.Task[None]] = set()
        self.timers: dict[int, Timer] = {}  # by request
        self.child_numbers = itertools.count(1)
        self.fork_lock = asyncio.Lock()
        # Memory has room for this many large replies at a time, at least one; the others wait.
        self.reply_room = asyncio.Semaphore(max(1, _REPLY_ROOM_BYTES // (_COPIES_PER_REPLY * self.bounds.output)))

    async def serve(self) -> None:
        """Serves until the client or the fork server is gone, or `stop_event` is set."""
        coroutines = (self._read_requests(), self._read_fork_server(), self._report_progress(), self.stop_event.wait())
        service_tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        await asyncio.wait(service_tasks, return_when=asyncio.FIRST_COMPLETED)
        all_tasks = [*service_tasks, *self.running_tasks]
        for task in all_tasks:
            task.cancel()
        for outcome in await asyncio.gather(*all_tasks, return_exceptions=True):
            if isinstance(outcome, Exception) and not isinstance(outcome, ConnectionError):
                traceback.print_exception(outcome)

    async def _read_requests(self) -> None:
        while request_line := await self.reader.readline():
            request = wire.decode(request_line)
            if request["op"] == "close":
                self._end_episode(request["episode"])
                continue
            self._run_task(self._answer_request(request))

    def _run_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self.running_tasks.add(task)
        task.add_done_callback(self.running_tasks.discard)

    async def _read_fork_server(self) -> None:
        """Notes which children were forked and which are gone. A gone child's slot, with its user id, is free again."""
        loop = asyncio.get_running_loop()
        while packet := await loop.sock_recv(self.control, MAX_PACKET_BYTES):
            message = wire.decode(packet)
            if "born" in message:
                child = self.child_by_number[message["born"]]
                child.pid = message["pid"]
                child.fork_event.set()
                continue
            child = self.child_by_number.pop(message["exited"])
            child.loss = child.loss or message["reason"]
            child.fork_event.set()
            child.exit_event.set()
            heapq.heappush(self.free_slots, message["slot"])

    async def _report_progress(self) -> None:
        """Tells the client every `_HEARTBEAT_PERIOD_S` seconds how much time each of its calls has counted."""
        while True:
            await asyncio.sleep(_HEARTBEAT_PERIOD_S)
            # A stopped client reads nothing.
            if self.timers and self.writer.transport.get_write_buffer_size() < MAX_PACKET_BYTES:
                self.writer.write(
                    wire.encode({"counted": {str(id_): t.count_seconds() for id_, t in self.timers.items()}})
                )

    async def _answer_request(self, request: dict[str, Any]) -> None:
        request_id = request["id"]
        timer = self.timers[request_id] = Timer(request["deadline"])
        async with contextlib.AsyncExitStack() as exit_stack:
            try:
                reply = await self._reply_to(request["episode"], request["op"], request["arguments"], timer, exit_stack)
            except ConnectionError:
                raise
            except Exception as error:
                reply = wire.encode_failure(wire.HOST, f"the supervisor failed: {type(error).__name__}: {error}")
            finally:
                del self.timers[request_id]
            # The child's reply was checked here, so it can be passed on unchanged.
            self.writer.write(
                b'{"id":%d,"counted":%.3f,"reply":%b}\n' % (request_id, timer.count_without_waits(), reply)
            )
            await self.writer.drain()

    async def _reply_to(
        self, episode_id: int, op: str, arguments: list[Any], timer: Timer, exit_stack: contextlib.AsyncExitStack
    ) -> bytes:
        while True:
            try:
                with timer.excuse():
                    child = await self._get_child(episode_id, op)
            except OSError as error:
                return wire.encode_failure(wire.HOST, f"no child could be started: {error}")
            if child is None:
                return wire.encode_failure(wire.HOST, "the episode is closed")
            with timer.excuse():
                await child.turn_lock.acquire()
            try:
                # A child that hung up or sent something since its last call is given up.
                if not child.loss and (byte := peek_byte(child.socket)) is not None:
                    # A closed socket does not prove that the child has ended.
                    self._give_up(child, "the child spoke unasked" if byte else "the child ended between two calls")
                if child.loss:
                    if episode_id == _SERVICE_EPISODE:
                        # Another call lost the child while this one waited for its turn.
                        continue
                    return await self._fail_call(child, wire.LOST, child.loss, timer)
                return await self._call_child(child, op, arguments, timer, exit_stack)
            finally:
                child.turn_lock.release()
                if child.loss:
                    child.hang_up()

    async def _get_child(self, episode_id: int, op: str) -> _Child | None:
        """The episode's child, forked for its first call; None if the episode is closed. Raises OSError."""
        async with self.fork_lock:
            child = self.child_by_episode.get(episode_id)
            if op == "reset" or (episode_id == _SERVICE_EPISODE and (child is None or child.loss)):
                child = await self._fork_child(episode_id)
        if child is not None and not child.fork_event.is_set():
            await self._wait_for(child.fork_event, "fork")
        return child

    async def _call_child(
        self, child: _Child, op: str, arguments: list[Any], timer: Timer, exit_stack: contextlib.AsyncExitStack
    ) -> bytes:
        """One call of a child, which is not trusted: it may not answer, not stop, or not answer this call."""
        child.call_count += 1
        timeout_s = timer.timeout_s
        is_service = child is self.child_by_episode.get(_SERVICE_EPISODE)
        scan = wire.Scan(wire.SERVICE_VALUES if is_service else self.bounds.values)
        max_bytes = wire.MAX_SERVICE_BYTES if is_service else self.bounds.output

        async def admit() -> None:
            with timer.excuse():
                await exit_stack.enter_async_context(self.reply_room)
            timer.admit()

        async def exchange() -> bytes:
            request_line = wire.encode({"n": child.call_count, "op": op, "arguments": arguments})
            await asyncio.get_running_loop().sock_sendall(child.socket, request_line)
            return await receive_line(child.socket, scan, max_bytes, admit, timer.begin)

        exchange_task = asyncio.create_task(exchange())
        try:
            if not await self._ends_in_time(exchange_task, child, timer):
                return await self._fail_call(child, wire.TIMEOUT, f"{op} took longer than {timeout_s:g} s", timer)
            return wire.filter_reply(exchange_task.result(), child.call_count)
        except OSError:
            return await self._fail_call(child, wire.WORKER_DIED, f"the child died during {op}", timer)
        except ValueError as error:  # beyond a bound, or not JSON
            return await self._fail_call(
                child, wire.LIMIT_EXCEEDED, f"the reply to {op} is no reply to this call: {error}"[:300], timer
            )
        except wire.OutOfMemory as error:
            return await self._fail_call(child, wire.LIMIT_EXCEEDED, str(error), timer)
        finally:
            exchange_task.cancel()
            # Its descriptor must stay open until it has ended: the number could be reused for another socket.
            await asyncio.gather(exchange_task, return_exceptions=True)

    async def _ends_in_time(self, exchange_task: asyncio.Task[bytes], child: _Child, timer: Timer) -> bool:
        """Whether the call ends before its deadline."""
        wait_s = min(_FIRST_LOOK_AFTER_S, timer.timeout_s)
        while not (await asyncio.wait({exchange_task}, timeout=wait_s))[0]:
            if wait_s == _FIRST_LOOK_AFTER_S:
                timer.follow(child.pid)
            remaining_s = timer.timeout_s - timer.count_seconds()
            # A reply that was sent but not yet read is not late.
            if remaining_s <= 0 and not peek_byte(child.socket):
                return False
            wait_s = max(0.01, remaining_s) if timer.wall_s < timer.timeout_s else _LOOK_PERIOD_S
        return True

    async def _fail_call(self, child: _Child, code: str, reason: str, timer: Timer) -> bytes:
        """The failure, once the fork server has cleaned up after the child; HOST if that does not happen."""
        self._give_up(child, f"the child was given up: {reason}" if code != wire.LOST else reason)
        with timer.excuse():
            is_gone = await self._wait_for(child.exit_event, "bury")
        return wire.encode_failure(code if is_gone else wire.HOST, reason)

    async def _wait_for(self, event: asyncio.Event, action: str) -> bool:
        """Waits for an action of the fork server; ends the service if it takes longer than `start_deadline`."""
        wait_task = asyncio.create_task(event.wait())
        deadline = running() + self.bounds.start_deadline
        while running() < deadline:
            if (await asyncio.wait({wait_task}, timeout=1.0))[0]:
                return True
        wait_task.cancel()
        print(f"the fork server did not {action} within {self.bounds.start_deadline:g} s", file=sys.stderr, flush=True)
        self.stop_event.set()
        return False

    async def _fork_child(self, episode_id: int) -> _Child:
        """Has a child forked for the episode. Raises OSError if no slot is free."""
        if not self.free_slots:
            raise OSError(f"{self.bounds.children} children are alive; raise the bound `children`")
        self._end_episode(episode_id)
        our_end, their_end = socket.socketpair()
        our_end.setblocking(False)
        slot, child_number = heapq.heappop(self.free_slots), next(self.child_numbers)
        child = self.child_by_episode[episode_id] = self.child_by_number[child_number] = _Child(child_number, our_end)
        child_kind = "environment" if episode_id == _SERVICE_EPISODE else "episode"
        with their_end:
            await self._send_order({"spawn": child.number, "slot": slot, "kind": child_kind}, [their_end.fileno()])
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
            self._run_task(self._send_order({"kill": child.number}, []))
        child.hang_up()

    def _end_episode(self, episode_id: int) -> None:
        if child := self.child_by_episode.pop(episode_id, None):
            self._give_up(child, "the episode is closed")


async def receive_line(
    source: socket.socket,
    scan: wire.Scan,
    max_bytes: int,
    admit: Callable[[], Awaitable[None]],
    begin: Callable[[], None],
) -> bytes:
    """Reads one line of at most `max_bytes` bytes. Calls `begin` when bytes arrive; awaits `admit` once for a
    large line.

    Raises ConnectionError if the child hangs up, and ValueError if the line exceeds a bound or more follows it.
    """
    loop = asyncio.get_running_loop()
    line = bytearray()
    is_large = False
    while True:
        chunk = await loop.sock_recv(source, wire.CHUNK_BYTES)
        if not chunk:
            raise ConnectionError("the child hung up")
        begin()
        line_part, newline, excess = chunk.partition(b"\n")
        scan.count_chunk(line_part)
        line += line_part
        if len(line) > max_bytes:
            raise ValueError(f"it is longer than {max_bytes:,} bytes")
        if excess:
            raise ValueError("more follows it")
        if newline:
            return bytes(line)
        if len(line) > wire.CHUNK_BYTES:  # a reply of more than one chunk asks for room
            if not is_large:
                is_large = True
                await admit()
            await asyncio.sleep(0)  # others have their turn


def peek_byte(child_socket: socket.socket) -> bytes | None:
    """The first byte that waits to be read: None if there is none, b"" if the child hung up."""
    try:
        return child_socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""

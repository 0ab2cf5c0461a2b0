"""Several SGLang servers as one: gives them weights, and gives each conversation a server with the current weights.

Everything here runs on one event loop. A server gets requests only while it is known to serve the current weights. A
server that dies, hangs or comes back with other weights is left out until it has the current ones. A task for each
server checks, updates, restarts and recovers it, so that no server waits for another.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cojax.environment import EngineError
from cojax.rollout.sglang import client
from cojax.rollout.sglang.client import RequestFailed, RequestRefused, ServerClient, ServerFailed
from cojax.rollout.sglang.server import LabelledWeights, Server, ServerProcess, State
from cojax.settings.tree import SGLangSettings

_LOG = logging.getLogger(__name__)
_DISCOVERY_POLL_S = 2.0  # seconds between two requests for the servers behind a router
# Unanswered checks in a row after which a server counts as hung: a server under heavy load may miss one.
_MAX_MISSES = 3
# Refusals of weights after which a launched server is restarted: the folder may vanish just before it is read.
_MAX_REFUSALS = 3
_RETRY_S = 1.0  # until the next check after a fault


class Fleet:
    """The servers at `urls`, or those of `processes`; at least one of the two is empty.

    A router in `settings`, an address in front of all servers, chooses the server of each conversation. If `urls` and
    `processes` are both empty, the servers are those behind the router at any time: they come and go. The file
    `memory_file` says which of the servers at `urls` have released memory, possibly for a trainer that was killed.

    Two modes are for servers that get their weights from another process. With `follow` in `settings` they load new
    weights by themselves, and a sync waits until they have. With `takes_any_weights` a server may serve any weights;
    launched servers only start with the target.

    With `release_memory` servers may be asked to release their memory. With `wants_routes` they must be able to report
    which experts tokens went through. `target` are the weights that servers should serve.
    """

    def __init__(
        self,
        connections: client.Connections,
        urls: Sequence[str],
        processes: Sequence[ServerProcess],
        settings: SGLangSettings,
        *,
        memory_file: client.ReleasedMemoryFile | None = None,
        takes_any_weights: bool = False,
        wants_routes: bool = False,
    ) -> None:
        self._connections, self._memory_file, self.settings = connections, memory_file, settings
        self._any_weights, self._needs_routes, router = takes_any_weights, wants_routes, settings.router
        self._discovery_router = ServerClient(router, connections) if router and not urls and not processes else None
        self.servers = [self._attach_server(url) for url in urls]
        self.servers += [Server(ServerClient("", connections), process, settings.restarts) for process in processes]
        # Represents the server that the router chooses; its health is not checked.
        self._router_server = Server(ServerClient(router, connections), None, 0, "up") if router else None
        self._server_by_session: dict[str, Server] = {}  # session → its server
        self.target: LabelledWeights | None = None
        self._is_syncing = self._is_resting = False
        self._state_change = asyncio.Condition()  # notified of every change of a server's state
        self._watch_tasks: dict[Server, asyncio.Task[None]] = {}
        self._discovery_task: asyncio.Task[None] | None = None

    # --- requests ---

    async def route(self, session: str) -> Server:
        """The session's server, whose cache holds its prefix; for a new session, the one with fewest conversations.

        Waits while weights change and while no server is up. Raises EngineError once none can come up any more.
        """
        async with self._state_change:
            await self._state_change.wait_for(lambda: not self._is_syncing and (self._list_up() or self.is_lost))
            if self.is_lost:
                raise EngineError(f"no SGLang server is left: {self.list_faults()}")
            return self._find_server(session)

    def _find_server(self, session: str) -> Server:
        """The session's server if it is up, otherwise the server with the fewest conversations among those up.

        At least one server must be up.
        """
        if self._router_server is not None:
            return self._router_server
        server = self._server_by_session.get(session)
        if server is None or not server.is_up:
            self.forget(session)
            servers_up = (server for server in self.servers if server.is_up)
            server = min(servers_up, key=lambda server: (server.session_count, len(server.requests)))
            server.session_count += 1
            self._server_by_session[session] = server
        return server

    def forget(self, session: str) -> None:
        """Ends the session's assignment to a server, if it has one."""
        server = self._server_by_session.pop(session, None)
        if server is not None:
            server.session_count -= 1

    def mark_down(self, server: Server, fault: str) -> None:
        """Marks the server as down and has its health checked now; it gets no new request until then.

        Behind a router the fault may be any server's, so all are checked.
        """
        if server is self._router_server:
            for member in self.servers:
                member.check_now.set()
            return
        if server.is_up:
            server.state, server.fault = "down", fault
        server.check_now.set()

    async def abort(self, server: Server, request_id: str) -> None:
        """Ends a request whose answer is no longer wanted; behind a router, on any server that runs it."""
        servers = self.servers if server is self._router_server else [server]
        abort_calls = (member.client.abort(request_id) for member in servers if member.client.url)
        await asyncio.gather(*abort_calls, return_exceptions=True)

    def list_faults(self) -> str:
        """What is wrong with each server that is not up."""
        return "; ".join(f"{server.name}: {server.fault}" for server in self.servers if not server.is_up)

    def list_reading(self) -> list[Path]:
        """Folders that servers are loading weights from."""
        return [server.reading_folder for server in self.servers if server.reading_folder is not None]

    @property
    def is_serving(self) -> bool:
        """Whether a server is up, and so serves the target, and the fleet is not resting."""
        return bool(self._list_up()) and not self._is_resting

    def _list_up(self) -> list[Server]:
        return [server for server in self.servers if server.is_up]

    @property
    def is_lost(self) -> bool:
        """Whether no server can come up any more."""
        return bool(self.servers) and all(server.state == "lost" for server in self.servers)

    # --- weights ---

    async def sync(self, target: LabelledWeights) -> None:
        """Has the servers load `target`, and returns when each serves it or is left out.

        New requests wait meanwhile. A server that is recovering loads the target before it is up; this waits for it
        only if no other server is up. If nothing answers yet at one of `urls`, this waits as long as a start may take.
        Raises EngineError if no server has loaded the target.
        """
        self.target, self._is_syncing, self._is_resting = target, True, False
        if self._discovery_router is not None:
            await self._discover_first_servers(self._discovery_router)
        for server in self.servers:
            self._ensure_watch(server)
        recoveries = {server: server.recovery_count + (server.state == "recovering") for server in self.servers}
        try:
            servers_down = [server for server in self.servers if server.state == "down"]
            await self._update_all(target, [s for s in self.servers if s.state in ("new", "up", "resting")])
            if not self._list_up():
                await self._update_all(target, [server for server in servers_down if server.state == "down"])
            with contextlib.suppress(TimeoutError):
                await self._wait_for_one(recoveries)
        finally:
            self._is_syncing = False
            await self._notify_waiters()
        if not self._list_up():
            is_absent, startup_s = any(server.is_absent for server in self.servers), self.settings.startup_deadline
            advice = f"start them first; waited sglang.startup_deadline={startup_s:g} s" if is_absent else ""
            reasons_text = "; ".join(filter(None, (self.list_faults(), advice)))
            raise EngineError(f"no SGLang server took the weights in {target.folder}: {reasons_text}")

    def _attach_server(self, url: str) -> Server:
        memory = client.ReleasedMemory(url, self._memory_file)
        return Server(ServerClient(url, self._connections), None, 0, released_memory=memory)

    def _ensure_watch(self, server: Server) -> None:
        if server not in self._watch_tasks:
            self._watch_tasks[server] = asyncio.create_task(self._keep_watching(server))

    async def _discover_first_servers(self, router: ServerClient) -> None:
        """Finds the servers behind the router, and keeps looking for more from then on.

        Waits for the first one as long as a start may take, then raises EngineError.
        """
        startup_s, fault = self.settings.startup_deadline, "it names none"
        deadline = asyncio.get_running_loop().time() + startup_s
        while True:
            try:
                await self._discover_servers(router)
            except (RequestFailed, RequestRefused) as error:
                fault = str(error)
            if self.servers:
                break
            if asyncio.get_running_loop().time() > deadline:
                raise EngineError(
                    f"no SGLang server is behind the router {router.url}: {fault}; waited sglang.startup_deadline="
                    f"{startup_s:g} s. Start some there: python -m experiments.serve --router={router.url}"
                )
            await asyncio.sleep(_DISCOVERY_POLL_S)
        self._discovery_task = self._discovery_task or asyncio.create_task(self._keep_discovering(router))

    async def _keep_discovering(self, router: ServerClient) -> None:
        while True:
            await asyncio.sleep(min(_DISCOVERY_POLL_S, self.settings.probe_every))
            with contextlib.suppress(RequestFailed, RequestRefused):  # servers outlive their router
                await self._discover_servers(router)

    async def _discover_servers(self, router: ServerClient) -> None:
        """Adds servers that have joined the router, and removes those that have left it. Raises RequestFailed."""
        urls, server_by_url = await router.list_servers(), {server.client.url: server for server in self.servers}
        for url in urls:
            if url not in server_by_url:
                self.servers.append(server := self._attach_server(url))
                if self._watch_tasks:  # its watch brings it to the current weights, between two syncs
                    _LOG.warning("%s joins", url)
                    server.state, server.fault = "down", "it has just joined"
                    self._ensure_watch(server)
                    server.check_now.set()
        for url, server in server_by_url.items():
            if url not in urls:
                _LOG.warning("%s leaves", url)
                self.servers.remove(server)
                if watch_task := self._watch_tasks.pop(server, None):
                    watch_task.cancel()
        await self._notify_waiters()

    async def _update_all(self, target: LabelledWeights, servers: Sequence[Server]) -> None:
        """Brings all these servers to the target in parallel, or leaves them out."""
        answered_flags = [server.state != "new" for server in servers]
        for server in servers:  # set for all before the first update, so that no watch starts one too
            server.state, server.fault = "updating", "takes new weights"
        await asyncio.gather(*map(self._update_server, servers, [target] * len(servers), answered_flags))

    async def _wait_for_one(self, recoveries: Mapping[Server, int]) -> None:
        """Waits until a server is up, or until none can come up.

        Servers at `urls` get `settings.startup_deadline` seconds, then TimeoutError is raised. Launched servers have
        deadlines of their own.
        """
        only_attached = all(server.process is None for server in self.servers)
        async with asyncio.timeout(self.settings.startup_deadline if only_attached else None), self._state_change:
            await self._state_change.wait_for(
                lambda: self._list_up() or not any(self._may_come_up(server, recoveries) for server in self.servers)
            )

    def _may_come_up(self, server: Server, recoveries: Mapping[Server, int]) -> bool:
        """Whether to go on waiting for a server that is not up.

        A launched server may come up until it is lost. A server at `urls` may come up while nothing answers there, as
        somebody may start it, and while fewer of its recoveries have ended than `recoveries` says, by default 1.
        """
        if server.process is not None:
            return server.state != "lost"
        return server.is_absent or server.recovery_count < recoveries.get(server, 1)

    async def rest(self) -> None:
        """Has every server release its memory until the next sync, including servers that come up before it."""
        self._is_resting = True
        await asyncio.gather(*(self._rest_server(server) for server in self.servers if server.is_up))

    def set_target(self, target: LabelledWeights) -> None:
        """Has every server load `target` when it can, without waiting for any."""
        self.target = target
        for server in self.servers:
            server.check_now.set()

    async def close(self) -> None:
        """Stops watching, has resting servers take their memory again, and ends launched servers for good."""
        tasks = [*self._watch_tasks.values(), *([self._discovery_task] if self._discovery_task else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        asleep = (server for server in self.servers if server.released_memory and server.process is None)
        await asyncio.gather(*(server.client.wake(server.released_memory) for server in asleep), return_exceptions=True)
        stop_calls = (asyncio.to_thread(server.process.stop) for server in self.servers if server.process)
        await asyncio.gather(*stop_calls)

    # --- each server's health ---

    async def _keep_watching(self, server: Server) -> None:
        """Checks the server at every interval, and whenever `check_now` is set, until it is cancelled."""
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.probe_every):
                    await server.check_now.wait()
            server.check_now.clear()
            try:
                if server.is_up and self.target and server.loaded_label != self.target.label and not self._any_weights:
                    await self._recover(server)
                elif server.state in ("up", "down"):
                    await self._check_server(server)
            except Exception as error:
                _LOG.exception("the check of %s failed", server.name)
                if server.state == "recovering":
                    await self._set_state(server, "down", repr(error))

    async def _update_server(self, server: Server, target: LabelledWeights, has_answered: bool) -> None:
        """Brings one server to the target, or leaves it out. A launched server that hangs is ended, and its watch
        restarts it.

        `has_answered` says whether it has answered before.
        """
        if server.process is not None and not server.process.starts:
            await self._recover(server)
            return
        try:
            await self._give_weights(server, target, has_answered)
            if self.target is target:
                await self._set_state(server, "up")
                return
            # This sync's caller was cancelled, and another sync began.
            fault, is_hung = "another sync began", False
        except (RequestFailed, RequestRefused, TimeoutError) as error:
            fault, is_hung = self._describe_error(error), not isinstance(error, RequestRefused | ServerFailed)
            server.is_absent = isinstance(error, ServerFailed)
            _LOG.warning("%s did not take weights: %s", server.name, fault)
            if server.process is not None and not isinstance(error, RequestRefused):
                await asyncio.to_thread(server.process.kill)
        finally:
            if not server.is_up:  # after any failure, even a cancellation: its watch brings it back
                server.state = "down"
                server.check_now.set()
        await self._set_state(server, "down", fault, is_hung)

    async def _rest_server(self, server: Server) -> None:
        """Has one server release its memory; one that fails is left out until its watch has checked it."""
        server.state, server.fault = "resting", "has given its memory back"
        try:
            await server.client.rest(server.released_memory)
        except (RequestFailed, RequestRefused, OSError) as error:
            _LOG.warning("%s did not give its memory back: %s", server.name, error)
            await self._set_state(server, "down", str(error))
            server.check_now.set()

    async def _set_state(self, server: Server, state: State, fault: str = "", is_hung: bool = False) -> None:
        """Records the state. The requests of a server that is left out are cancelled, to be sent to another.

        A router itself repeats the requests of a dead server. It does not say which requests a hanging server
        (`is_hung`) has, so all requests through the router are then cancelled.
        """
        server.recovery_count += server.state == "recovering" != state
        server.state, server.fault = state, fault
        server.is_absent = server.is_absent and state != "up"
        if state in ("down", "lost"):
            router_requests = self._router_server.requests if self._router_server is not None and is_hung else ()
            for request in [*server.requests, *router_requests]:
                request.cancel()
        await self._notify_waiters()

    async def _give_weights(self, server: Server, target: LabelledWeights, has_answered: bool = True) -> None:
        """Gives one server the target.

        Raises what `Server.take` raises, and RequestRefused for a server at `urls` that was started without a flag that
        the settings need.
        """
        if self.settings.release_memory and server.process is None and not await server.client.can_release_memory():
            raise RequestRefused(
                f"{server.name} keeps its memory: start it with --enable-memory-saver, or unset sglang.release_memory"
            )
        if self._needs_routes and server.process is None and not await server.client.reports_routes():
            raise RequestRefused(
                f"{server.name} cannot report routes: start it with --enable-return-routed-experts, or unset "
                "learner.routes"
            )
        sync_s, follow = self.settings.sync_deadline, self.settings.follow
        await server.load_target(target, sync_s, lambda: self.target is target, follow=follow, alive=has_answered)

    def _describe_error(self, error: Exception) -> str:
        reason = f"did not take new weights within {self.settings.sync_deadline:g} s (sglang.sync_deadline)"
        if self.settings.follow:
            reason += "; does `python -m experiments.serve` run there with this sglang.folder and sglang.follow=True?"
        return str(error) or reason

    async def _recover(self, server: Server) -> None:
        """Brings a server up with the weights that are current at that time.

        A launched server that has ended is started again while restarts are left.
        """
        process, pause_s = server.process, _RETRY_S
        await self._set_state(server, "recovering", server.fault)
        while server.state == "recovering":
            target, restarts_left = self.target, server.restarts_left
            assert target is not None
            try:
                if process is None or process.is_running:
                    await self._give_weights(server, target)
                elif server.may_start():
                    await server.start(target, self.settings.startup_deadline, takes_any=self._any_weights)
                else:
                    await self._set_state(server, "lost", server.fault)
                    return
                # No other task runs in between: a sync either finds it up, or has already set the next target.
                if self.target is target or self._any_weights:
                    server.miss_count = 0
                    server.refused_labels.clear()
                    await self._bring_up(server)
            except (RequestFailed, RequestRefused, OSError) as error:  # TimeoutError is an OSError
                server.fault, server.is_absent = self._describe_error(error), isinstance(error, ServerFailed)
                _LOG.warning("%s did not come up: %s", server.name, server.fault)
                is_refusal = isinstance(error, RequestRefused)
                if self.target is not target:
                    # A newer version may have replaced its folder, which is not the server's fault.
                    server.restarts_left = restarts_left
                    if is_refusal:
                        continue
                server.refused_labels += [target.label] if is_refusal else []
                if process is None or (is_refusal and server.refused_labels.count(target.label) < _MAX_REFUSALS):
                    await self._set_state(server, "down", server.fault)
                    self._schedule_check(server, _RETRY_S)
                    return
                was_running = process.is_running
                await asyncio.to_thread(process.kill)
                if not was_running and server.restarts_left and self.target is target:
                    # A port or memory that is taken for a moment must not use up all restarts.
                    await asyncio.sleep(pause_s)
                    pause_s *= 2

    async def _bring_up(self, server: Server) -> None:
        await self._set_state(server, "up")
        if self._is_resting:
            await self._rest_server(server)

    async def _notify_waiters(self) -> None:
        async with self._state_change:
            self._state_change.notify_all()

    def _schedule_check(self, server: Server, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, server.check_now.set)

    async def _check_server(self, server: Server) -> None:
        """Checks the health of one server, and acts on the result.

        A server that failed is left out at once, and one that does not answer after `_MAX_MISSES` checks. A healthy
        server that was down gets requests again once it has the current weights.
        """
        old_state, old_target = server.state, self.target
        assert old_target is not None
        fault, label = None, ""
        try:
            label = await self._probe_server(server)
        except (RequestFailed, RequestRefused) as error:
            fault = error
        if (server.state, self.target) != (old_state, old_target):
            server.check_now.set()  # a sync or a fault came in between: this result is out of date
        elif fault is not None:
            await self._note_fault(server, fault)
        else:
            server.reply_count = server.miss_count = 0
            server.silent_since = 0.0
            if server.released_memory or (label != old_target.label and not self._any_weights):
                await self._set_state(server, "down", f"it serves weights {label!r}")
                await self._recover(server)
            elif old_state == "down":
                _LOG.warning("%s is back", server.name)
                server.loaded_label = label
                await self._bring_up(server)

    async def _probe_server(self, server: Server) -> str:
        """The label of the weights that a healthy server serves. Raises RequestFailed or RequestRefused if it is not
        healthy."""
        process = server.process
        if process is not None and not process.is_running:
            raise ServerFailed(f"it has ended; {process.log} ends:\n{process.read_log_tail()}")
        # The health check is a completion, and a resting server has no memory for one.
        is_resting = server.released_memory or (self._any_weights and self.settings.release_memory)
        if not (server.is_up and server.reply_count) and not is_resting:
            await server.client.check_health()
        return await server.client.read_version()

    async def _note_fault(self, server: Server, fault: RequestFailed | RequestRefused) -> None:
        """Leaves a faulty server out, unless it may only be slow; a launched one is killed and started again."""
        server.miss_count += 1
        server.silent_since = server.silent_since or time.monotonic()
        # A server that gets its weights from another process does not answer until it has them.
        is_waiting = self._any_weights and time.monotonic() - server.silent_since < self.settings.sync_deadline
        is_hung = not isinstance(fault, RequestRefused | ServerFailed)
        delay_s = min(_RETRY_S, self.settings.probe_every)
        if is_hung and (server.miss_count < _MAX_MISSES or is_waiting):
            self._schedule_check(server, delay_s)
            return
        if str(fault) != server.fault:
            _LOG.warning("%s is left out: %s", server.name, fault)
        # A starting server does not answer for a while, so one that was absent and now hangs may still come up.
        server.is_absent = isinstance(fault, ServerFailed) or (server.is_absent and is_hung)
        await self._set_state(server, "down", str(fault), is_hung)
        if self._is_syncing and server.is_absent:
            self._schedule_check(server, delay_s)
        if server.process is not None:
            await asyncio.to_thread(server.process.kill)
            await self._recover(server)

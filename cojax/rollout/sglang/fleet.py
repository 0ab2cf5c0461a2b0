"""Several SGLang servers as one: who serves which conversation, which weights they hold, and their return to health.

Everything here runs on one event loop. A server gets requests only while it is known to serve the current weights; one
that dies, hangs or comes back with other weights is left out until it has them. Each has a watch of its own, so that
no server waits for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from cojax.environment import EngineError
from cojax.rollout.sglang.conversations import Conversations
from cojax.rollout.sglang.process import ServerProcess
from cojax.rollout.sglang.server import Patience, Server, State, Target
from cojax.rollout.sglang.server_client import Clients, Lost, RequestRefused, ServerClient, Unreachable
from cojax.rollout.sglang.sleep import Asleep, Notes

_LOG = logging.getLogger(__name__)
# Looks in a row without a sign of life until a server counts as hanging: one under heavy load may miss one.
_MISSES = 3
_REFUSALS = 3  # of weights until a server of ours is started again: a folder may go while it is about to read it
_AGAIN = 1.0  # seconds to another look, where something is amiss


class Fleet:
    """The servers at `urls`, or those of `processes`; one of the two is empty.

    Servers with somebody else who gives them weights are either `follow`ed, which is waiting until they have the
    target, or, with `any_weights`, served as they are: the target is what those that are started again start on.

    With `release_memory` somebody may have the servers give their memory back, as `rest` does. The `notes` know which
    of those at `urls` still sleep, as after a trainer that was killed.

    Where there is a `router`, an address in front of all of them, it says who serves which conversation: see
    `Conversations`. With `routes` servers must be able to tell which experts tokens went through.
    """

    def __init__(
        self,
        clients: Clients,
        urls: Sequence[str],
        processes: Sequence[ServerProcess],
        patience: Patience,
        *,
        follow: bool = False,
        any_weights: bool = False,
        router: str = "",
        release_memory: bool = False,
        notes: Notes | None = None,
        routes: bool = False,
    ) -> None:
        self.servers = [Server(ServerClient(url, clients), None, 0, asleep=Asleep(url, notes)) for url in urls]
        self.servers += [Server(ServerClient("", clients), process, patience.restarts) for process in processes]
        self.routes = Conversations(self.servers, router, clients)
        self.target: Target | None = None
        self._patience, self._follow, self._any_weights = patience, follow, any_weights
        self._release_memory, self._resting, self._tell = release_memory, False, routes
        self._syncing = False
        self._changed = asyncio.Condition()
        self._watches: list[asyncio.Task[None]] = []

    # --- requests ---

    async def route(self, session: str) -> Server:
        """The session's server, where its prefix is cached; for a new one that with the fewest conversations.

        Waits while weights change and while none is up. Raises EngineError once none can come up any more.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: not self._syncing and (self._up() or self.all_lost))
            if self.all_lost:
                raise EngineError(f"no SGLang server is left: {self.faults()}")
            return self.routes.find(session)

    def faults(self) -> str:
        """What is wrong with each server that is not up."""
        return "; ".join(f"{server.name}: {server.fault}" for server in self.servers if not server.up)

    def reading(self) -> list[Path]:
        """Folders that servers are reading or starting on."""
        return [server.reading for server in self.servers if server.reading is not None]

    @property
    def serving(self) -> bool:
        """Whether a server is up, which it is on the target alone, and none is to rest."""
        return bool(self._up()) and not self._resting

    def _up(self) -> list[Server]:
        return [server for server in self.servers if server.up]

    @property
    def all_lost(self) -> bool:
        """Whether no server can come up any more."""
        return all(server.state == "lost" for server in self.servers)

    # --- weights ---

    async def sync(self, target: Target) -> None:
        """Has the servers take `target`, and returns when each has acknowledged it or is left out.

        New requests wait meanwhile. A server that its watch is bringing back takes the target before it is up, and is
        waited for only where no other is up; one of `urls` where nobody is there yet, as long as a start may take.
        Raises EngineError when no server has taken it.
        """
        self.target, self._syncing, self._resting = target, True, False
        self._watches = self._watches or [asyncio.create_task(self._watch(server)) for server in self.servers]
        returns = [server.returns + (server.state == "returning") for server in self.servers]
        try:
            down = [server for server in self.servers if server.state == "down"]
            await self._all_take(target, [s for s in self.servers if s.state in ("new", "up", "resting")])
            if not self._up():
                await self._all_take(target, [server for server in down if server.state == "down"])
            with contextlib.suppress(TimeoutError):
                await self._wait_for_one(returns)
        finally:
            async with self._changed:
                self._syncing = False
                self._changed.notify_all()
        if not self._up():
            absent = any(server.gone for server in self.servers)
            waited = f"start them first; waited sglang.startup_deadline={self._patience.startup:g} s" if absent else ""
            reasons = "; ".join(filter(None, (self.faults(), waited)))
            raise EngineError(f"no SGLang server took the weights in {target.folder}: {reasons}")

    async def _wait_for_one(self, returns: Sequence[int]) -> None:
        """Until a server is up, or none will be. Raises TimeoutError, but not for ours: those have deadlines each."""
        attached = all(server.process is None for server in self.servers)
        async with asyncio.timeout(self._patience.startup if attached else None), self._changed:
            await self._changed.wait_for(lambda: self._up() or not any(map(self._coming, self.servers, returns)))

    def _coming(self, server: Server, returns: int) -> bool:
        """Whether a server's watch will bring it up or give it up; of an attached one, by so many returns in all.

        One that is gone may be started by whoever keeps it.
        """
        return server.state != "lost" if server.process is not None else server.gone or server.returns < returns

    async def rest(self) -> None:
        """Has every server give its memory back until the next sync, also one that comes up before that."""
        self._resting = True
        await asyncio.gather(*(self._rest(server) for server in self.servers if server.up))

    async def _rest(self, server: Server) -> None:
        server.state, server.fault = "resting", "has given its memory back"
        try:
            await server.rest()
        except (Lost, RequestRefused, OSError) as error:
            _LOG.warning("%s did not give its memory back: %s", server.name, error)
            await self._set(server, "down", str(error))
            server.alarm.set()

    def aim(self, target: Target) -> None:
        """Has every server take `target` when it can, and waits for none."""
        self.target = target
        for server in self.servers:
            server.alarm.set()

    async def _all_take(self, target: Target, servers: Sequence[Server]) -> None:
        known = [server.state != "new" for server in servers]
        for server in servers:  # at once, so that no watch begins the same
            server.state, server.fault = "taking", "takes new weights"
        await asyncio.gather(*map(self._take, servers, [target] * len(servers), known))

    async def _take(self, server: Server, target: Target, known: bool) -> None:
        """Brings one server to the target; a fault leaves it out. One of ours that hangs is ended for its watch."""
        if server.process is not None and not server.process.starts:
            await self._return(server)
            return
        try:
            await self._give(server, target, known)
            if self.target is target:
                await self._set(server, "up")
                return
            fault, hung = "another sync began", False  # whoever asked for this one did not wait
        except (Lost, RequestRefused, TimeoutError) as error:
            fault, hung = self._fault(error), not isinstance(error, RequestRefused | Unreachable)
            server.gone = isinstance(error, Unreachable)
            _LOG.warning("%s did not take weights: %s", server.name, fault)
            if server.process is not None and not isinstance(error, RequestRefused):
                await asyncio.to_thread(server.process.kill)
        finally:
            if not server.up:  # its watch sees to it, whatever came
                server.state = "down"
                server.alarm.set()
        await self._set(server, "down", fault, hung)

    async def _give(self, server: Server, target: Target, known: bool = True) -> None:
        """Raises what `Server.take` raises, and RequestRefused where a server that is not ours cannot do what is
        asked."""
        if self._release_memory and server.process is None and not await server.endpoint.saves_memory():
            raise RequestRefused(
                f"{server.name} keeps its memory: start it with --enable-memory-saver, or unset sglang.release_memory"
            )
        if self._tell and server.process is None and not await server.endpoint.tells_routes():
            raise RequestRefused(
                f"{server.name} tells no routes: start it with --enable-return-routed-experts, or unset learner.routes"
            )
        current = lambda: self.target is target  # noqa: E731
        await server.take(target, self._patience.sync, current, follow=self._follow, known=known)

    def _fault(self, error: Exception) -> str:
        late = f"did not take new weights within {self._patience.sync:g} s (sglang.sync_deadline)"
        if self._follow:
            late += "; does `python -m experiments.serve` run there with this sglang.folder and sglang.follow=True?"
        return str(error) or late

    async def _return(self, server: Server) -> None:
        """Brings a server back on the weights that are current by then; one of ours, while its budget lasts, anew."""
        process, pause = server.process, _AGAIN
        await self._set(server, "returning", server.fault)
        while server.state == "returning":
            target, restarts = self.target, server.restarts
            assert target is not None
            try:
                if process is None or process.running:
                    await self._give(server, target)
                elif server.may_start():
                    await server.start(target, self._patience.startup, any_weights=self._any_weights)
                else:
                    await self._set(server, "lost", server.fault)
                    return
                # Nothing runs in between: a sync either finds it up, or has set the target that it takes next.
                if self.target is target or self._any_weights:
                    server.misses = 0
                    server.refused.clear()
                    await self._set(server, "up")
                    if self._resting:
                        await self._rest(server)
            except (Lost, RequestRefused, OSError) as error:  # TimeoutError is an OSError
                server.fault, server.gone = self._fault(error), isinstance(error, Unreachable)
                _LOG.warning("%s did not come up: %s", server.name, server.fault)
                refused = isinstance(error, RequestRefused)
                if self.target is not target:
                    # Its folder may have gone for a newer one: not the server's fault.
                    server.restarts = restarts
                    if refused:
                        continue
                server.refused += [target.label] if refused else []
                if process is None or (refused and server.refused.count(target.label) < _REFUSALS):
                    await self._set(server, "down", server.fault)
                    asyncio.get_running_loop().call_later(_AGAIN, server.alarm.set)
                    return
                alive = process.running
                await asyncio.to_thread(process.kill)
                if not alive and server.restarts and self.target is target:
                    # A port or memory that is taken for a moment must not cost all restarts.
                    await asyncio.sleep(pause)
                    pause *= 2

    # --- health ---

    async def _watch(self, server: Server) -> None:
        """Looks at the server now and then, and at once on an alarm."""
        while True:
            # Not wait_for, which in Python 3.11 swallows a cancellation that comes together with the alarm.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._patience.probe_every):
                    await server.alarm.wait()
            server.alarm.clear()
            try:
                if server.up and self._behind(server):
                    await self._return(server)
                elif server.state in ("up", "down"):
                    await self._look(server)
            except Exception as error:
                _LOG.exception("the look at %s failed", server.name)
                if server.state == "returning":
                    await self._set(server, "down", repr(error))

    def _behind(self, server: Server) -> bool:
        assert self.target is not None
        return server.label != self.target.label and not self._any_weights

    async def _look(self, server: Server) -> None:
        """Leaves a sick server out, and heals one that is: with the current weights before it gets requests.

        One that is gone is seen to at once, one that merely gives no sign of life after `_MISSES` looks.
        """
        state, target, process = server.state, self.target, server.process
        assert target is not None
        fault, found = None, ""
        try:
            if process is not None and not process.running:
                raise Unreachable(f"it has ended; {process.log} ends:\n{process.tail()}")
            # Health is a completion, which one that rests does not give.
            resting = server.asleep or (self._any_weights and self._release_memory)
            if not (server.up and server.replies) and not resting:
                await server.endpoint.healthy()
            found = await server.endpoint.version()
        except (Lost, RequestRefused) as error:
            fault = error
        if (server.state, self.target) != (state, target):
            server.alarm.set()  # a sync or a fault came in between: what was seen is old
            return
        if fault is None:
            server.replies = server.misses = 0
            server.silent = 0.0
            if server.asleep or (found != target.label and not self._any_weights):
                await self._set(server, "down", f"it serves weights {found!r}")
                await self._return(server)
            elif state == "down":
                _LOG.warning("%s is back", server.name)
                server.label = found
                await self._set(server, "up")
                if self._resting:
                    await self._rest(server)
            return
        server.misses += 1
        server.silent = server.silent or time.monotonic()
        # One that somebody else gives weights is silent until it has them.
        patient = self._any_weights and time.monotonic() - server.silent < self._patience.sync
        hung = not isinstance(fault, RequestRefused | Unreachable)
        if hung and (server.misses < _MISSES or patient):
            asyncio.get_running_loop().call_later(min(_AGAIN, self._patience.probe_every), server.alarm.set)
            return
        if str(fault) != server.fault:
            _LOG.warning("%s is left out: %s", server.name, fault)
        # One that starts is silent for a while: it is still to come.
        server.gone = isinstance(fault, Unreachable) or (server.gone and hung)
        await self._set(server, "down", str(fault), hung)
        if self._syncing and server.gone:
            asyncio.get_running_loop().call_later(min(_AGAIN, self._patience.probe_every), server.alarm.set)
        if process is not None:
            await asyncio.to_thread(process.kill)
            await self._return(server)

    async def _set(self, server: Server, state: State, fault: str = "", hung: bool = False) -> None:
        """Notes the state. What runs on a server that is left out is given up, so that it can be tried elsewhere."""
        server.returns += server.state == "returning" != state
        server.state, server.fault = state, fault
        server.gone = server.gone and state != "up"
        if state in ("down", "lost"):
            self.routes.cancel(server, hung)
        async with self._changed:
            self._changed.notify_all()

    async def close(self) -> None:
        """Stops watching, wakes servers that rest, and ends those that are ours for good."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        asleep = (server for server in self.servers if server.asleep and server.process is None)
        await asyncio.gather(*(server.wake() for server in asleep), return_exceptions=True)
        stops = (asyncio.to_thread(server.process.stop) for server in self.servers if server.process)
        await asyncio.gather(*stops)

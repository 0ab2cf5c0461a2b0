"""Keeps each SGLang server of a fleet healthy and on the current weights: checks, updates, recovery, restarts."""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable

from cojax.rollout.sglang.client import RequestFailed, RequestRefused, ServerFailed
from cojax.rollout.sglang.server import LabelledWeights, Server, ServerLimits, State

_LOG = logging.getLogger(__name__)
# Unanswered checks in a row after which a server counts as hung: a server under heavy load may miss one.
_MISSES = 3
# Refusals of weights after which a launched server is restarted: the folder may vanish just before it is read.
_REFUSALS = 3
_RETRY_SECONDS = 1.0  # until the next check after a fault


@dataclasses.dataclass(frozen=True)
class FleetSettings:
    """How a fleet treats its servers.

    Two settings are for servers that get their weights from another process. With `follow` they load new weights by
    themselves, and a sync waits until they have. With `any_weights` a server may serve any weights; the target is then
    only what a launched server starts with.

    With `release_memory` servers may be asked to release their memory. With `routes` they must be able to report which
    experts tokens went through.
    """

    limits: ServerLimits
    follow: bool = False
    any_weights: bool = False
    release_memory: bool = False
    routes: bool = False


class Supervisor:
    """Watches servers, each in its own task, so that no server waits for another; for one event loop.

    The fleet sets the `target`, the weights that servers should have, and whether it is `syncing` or `resting`. It may
    wait on `changed` for a change of any server's state. `cancel` ends the requests of a server that is left out, and
    is told whether it hangs.
    """

    def __init__(self, cancel: Callable[[Server, bool], None], settings: FleetSettings) -> None:
        self.target: LabelledWeights | None = None
        self.syncing = self.resting = False
        self.changed = asyncio.Condition()
        self.settings, self.limits = settings, settings.limits
        self._cancel = cancel

    async def watch(self, server: Server) -> None:
        """Checks the server at every interval, and whenever `check_now` is set, until it is cancelled."""
        while True:
            # Not wait_for: in Python 3.11 it swallows a cancellation that comes together with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.limits.probe_every):
                    await server.check_now.wait()
            server.check_now.clear()
            try:
                if server.up and self._is_outdated(server):
                    await self._recover(server)
                elif server.state in ("up", "down"):
                    await self._check(server)
            except Exception as error:
                _LOG.exception("the check of %s failed", server.name)
                if server.state == "recovering":
                    await self.set_state(server, "down", repr(error))

    async def update(self, server: Server, target: LabelledWeights, known: bool) -> None:
        """Brings one server to the target, or leaves it out. A launched server that hangs is ended, and its watch
        restarts it.

        `known` says whether it has answered before.
        """
        if server.process is not None and not server.process.starts:
            await self._recover(server)
            return
        try:
            await self._give(server, target, known)
            if self.target is target:
                await self.set_state(server, "up")
                return
            # This sync's caller was cancelled, and another sync began.
            fault, hung = "another sync began", False
        except (RequestFailed, RequestRefused, TimeoutError) as error:
            fault, hung = self._describe(error), not isinstance(error, RequestRefused | ServerFailed)
            server.absent = isinstance(error, ServerFailed)
            _LOG.warning("%s did not take weights: %s", server.name, fault)
            if server.process is not None and not isinstance(error, RequestRefused):
                await asyncio.to_thread(server.process.kill)
        finally:
            if not server.up:  # after any failure, also a cancellation: its watch brings it back
                server.state = "down"
                server.check_now.set()
        await self.set_state(server, "down", fault, hung)

    async def rest(self, server: Server) -> None:
        """Has one server release its memory; a server that fails to is left out until its watch has checked it."""
        server.state, server.fault = "resting", "has given its memory back"
        try:
            await server.rest()
        except (RequestFailed, RequestRefused, OSError) as error:
            _LOG.warning("%s did not give its memory back: %s", server.name, error)
            await self.set_state(server, "down", str(error))
            server.check_now.set()

    async def set_state(self, server: Server, state: State, fault: str = "", hung: bool = False) -> None:
        """Records the state. The requests of a server that is left out are cancelled, to be sent to another."""
        server.recoveries += server.state == "recovering" != state
        server.state, server.fault = state, fault
        server.absent = server.absent and state != "up"
        if state in ("down", "lost"):
            self._cancel(server, hung)
        async with self.changed:
            self.changed.notify_all()

    async def _give(self, server: Server, target: LabelledWeights, known: bool = True) -> None:
        """Gives one server the target.

        Raises what `Server.take` raises, and RequestRefused for a server at `urls` that was started without a flag that
        the settings need.
        """
        if self.settings.release_memory and server.process is None and not await server.client.can_release_memory():
            raise RequestRefused(
                f"{server.name} keeps its memory: start it with --enable-memory-saver, or unset sglang.release_memory"
            )
        if self.settings.routes and server.process is None and not await server.client.reports_routes():
            raise RequestRefused(
                f"{server.name} cannot report routes: start it with --enable-return-routed-experts, or unset "
                "learner.routes"
            )
        limit, follow = self.limits.sync, self.settings.follow
        await server.take(target, limit, lambda: self.target is target, follow=follow, known=known)

    def _describe(self, error: Exception) -> str:
        late = f"did not take new weights within {self.limits.sync:g} s (sglang.sync_deadline)"
        if self.settings.follow:
            late += "; does `python -m experiments.serve` run there with this sglang.folder and sglang.follow=True?"
        return str(error) or late

    async def _recover(self, server: Server) -> None:
        """Brings a server up with the weights that are current at that time.

        A launched server that has ended is started again while restarts are left.
        """
        process, pause = server.process, _RETRY_SECONDS
        await self.set_state(server, "recovering", server.fault)
        while server.state == "recovering":
            target, restarts = self.target, server.restarts
            assert target is not None
            try:
                if process is None or process.running:
                    await self._give(server, target)
                elif server.may_start():
                    await server.start(target, self.limits.startup, any_weights=self.settings.any_weights)
                else:
                    await self.set_state(server, "lost", server.fault)
                    return
                # No other task runs in between: a sync either finds it up, or has already set the next target.
                if self.target is target or self.settings.any_weights:
                    server.missed_checks = 0
                    server.refused.clear()
                    await self._bring_up(server)
            except (RequestFailed, RequestRefused, OSError) as error:  # TimeoutError is an OSError
                server.fault, server.absent = self._describe(error), isinstance(error, ServerFailed)
                _LOG.warning("%s did not come up: %s", server.name, server.fault)
                refused = isinstance(error, RequestRefused)
                if self.target is not target:
                    # Its folder may have been replaced by a newer one, which is not the server's fault.
                    server.restarts = restarts
                    if refused:
                        continue
                server.refused += [target.label] if refused else []
                if process is None or (refused and server.refused.count(target.label) < _REFUSALS):
                    await self.set_state(server, "down", server.fault)
                    self._check_in(server, _RETRY_SECONDS)
                    return
                alive = process.running
                await asyncio.to_thread(process.kill)
                if not alive and server.restarts and self.target is target:
                    # A port or memory that is briefly taken must not use up all restarts.
                    await asyncio.sleep(pause)
                    pause *= 2

    async def _bring_up(self, server: Server) -> None:
        await self.set_state(server, "up")
        if self.resting:
            await self.rest(server)

    def _check_in(self, server: Server, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, server.check_now.set)

    def _is_outdated(self, server: Server) -> bool:
        assert self.target is not None
        return server.label != self.target.label and not self.settings.any_weights

    async def _check(self, server: Server) -> None:
        """Checks the health of one server, and acts on what it finds.

        A server that failed is left out at once, one that gives no answer after `_MISSES` checks. A healthy server that
        was down gets requests again, once it has the current weights.
        """
        state, target = server.state, self.target
        assert target is not None
        fault, found = None, ""
        try:
            found = await self._probe(server)
        except (RequestFailed, RequestRefused) as error:
            fault = error
        if (server.state, self.target) != (state, target):
            server.check_now.set()  # a sync or a fault came in between: this result is out of date
        elif fault is not None:
            await self._note_fault(server, fault)
        else:
            server.replies = server.missed_checks = 0
            server.silent_since = 0.0
            if server.released or (found != target.label and not self.settings.any_weights):
                await self.set_state(server, "down", f"it serves weights {found!r}")
                await self._recover(server)
            elif state == "down":
                _LOG.warning("%s is back", server.name)
                server.label = found
                await self._bring_up(server)

    async def _probe(self, server: Server) -> str:
        """The label of the weights that a healthy server serves. Raises RequestFailed or RequestRefused if it is not
        healthy."""
        process = server.process
        if process is not None and not process.running:
            raise ServerFailed(f"it has ended; {process.log} ends:\n{process.tail()}")
        # The health check is a completion, for which a resting server has no memory.
        resting = server.released or (self.settings.any_weights and self.settings.release_memory)
        if not (server.up and server.replies) and not resting:
            await server.client.check_health()
        return await server.client.version()

    async def _note_fault(self, server: Server, fault: RequestFailed | RequestRefused) -> None:
        """Leaves a faulty server out, unless it may only be slow; a launched one is killed and started again."""
        server.missed_checks += 1
        server.silent_since = server.silent_since or time.monotonic()
        # A server that gets its weights from another process does not answer until it has them.
        waiting = self.settings.any_weights and time.monotonic() - server.silent_since < self.limits.sync
        hung, soon = not isinstance(fault, RequestRefused | ServerFailed), min(_RETRY_SECONDS, self.limits.probe_every)
        if hung and (server.missed_checks < _MISSES or waiting):
            self._check_in(server, soon)
            return
        if str(fault) != server.fault:
            _LOG.warning("%s is left out: %s", server.name, fault)
        # A starting server does not answer for a while: one that was absent and now hangs may still come up.
        server.absent = isinstance(fault, ServerFailed) or (server.absent and hung)
        await self.set_state(server, "down", str(fault), hung)
        if self.syncing and server.absent:
            self._check_in(server, soon)
        if server.process is not None:
            await asyncio.to_thread(server.process.kill)
            await self._recover(server)

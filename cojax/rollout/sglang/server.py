"""One SGLang server of a fleet: its state, how it loads new weights, and how a launched one is started."""

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from cojax.rollout.sglang.client import ReleasedMemory, RequestFailed, RequestRefused, ServerClient
from cojax.rollout.sglang.process import ServerProcess
from cojax.settings.tree import SGLangSettings

_LOG = logging.getLogger(__name__)
_START_POLL = 0.5  # seconds between two checks of a server that starts
_WEIGHTS_POLL = 0.2  # seconds between two checks of a server that loads weights by itself

# new: it has had no weights yet. up: it serves the current ones. updating: a sync gives it new ones. down: it gets no
# requests; its supervisor checks its health. recovering: its supervisor brings it back. resting: it has released its
# memory until the next sync. lost: a launched server that is not started again.
State = Literal["new", "up", "updating", "down", "recovering", "resting", "lost"]


@dataclasses.dataclass(frozen=True)
class LabelledWeights:
    """One version of the weights on disk: a model folder, and the label under which servers report it."""

    folder: Path
    label: str


@dataclasses.dataclass(frozen=True)
class ServerLimits:
    """Seconds for a server to start, for it to load new weights, and between two checks of its health.

    `restarts` is how often each launched server may be started again.
    """

    startup: float = SGLangSettings.startup_deadline
    sync: float = SGLangSettings.sync_deadline
    probe_every: float = SGLangSettings.probe_every
    restarts: int = SGLangSettings.restarts


@dataclasses.dataclass(eq=False)
class Server:
    """One server and its known state; `process` is None unless this trainer launched it."""

    client: ServerClient
    process: ServerProcess | None
    restarts: int
    state: State = "new"
    fault: str = "not started"
    absent: bool = False  # nothing answered the last call: perhaps it is not started yet
    label: str = ""  # of the weights that it loaded last
    sessions: int = 0
    recoveries: int = 0  # recoveries that have ended, successful or not
    replies: int = 0  # since the last check; one reply shows that it is alive
    missed_checks: int = 0  # in a row without an answer
    silent_since: float = 0.0  # on the monotonic clock; 0 while it answers
    refused: list[str] = dataclasses.field(default_factory=list)  # labels of weights refused since it was up
    released: ReleasedMemory = dataclasses.field(default_factory=ReleasedMemory)
    memory_lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)  # held by a rest, a wake or an update
    reading: Path | None = None  # the folder that it is loading, which must not be removed
    requests: set[asyncio.Task[Any]] = dataclasses.field(default_factory=set)
    check_now: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        return f"server {self.process.index}" if self.process else self.client.url

    @property
    def up(self) -> bool:
        return self.state == "up"

    async def take(
        self, target: LabelledWeights, deadline: float, current: Callable[[], bool], *, follow: bool, known: bool = True
    ) -> None:
        """Has the server load the target. With `follow` it does so by itself: this waits while the target is `current`.

        Raises TimeoutError after `deadline` seconds, RequestRefused, and RequestFailed. Exception: a following server
        that is not `known` to have answered before may still be starting, so RequestFailed is not raised for it.
        """
        self.reading = target.folder
        try:
            async with asyncio.timeout(deadline):
                if follow:
                    await self._wait_for(target, known, current)
                else:
                    await self._update(target)
        except (RequestFailed, RequestRefused):  # after a timeout it may still be reading
            self.reading = None
            raise
        self.reading = None
        self.label = target.label if current() or not follow else self.label

    async def rest(self) -> None:
        """Has it release its memory until it loads weights, or until `wake`. Raises what `ServerClient.rest` raises."""
        async with self.memory_lock:
            self.released.incarnation = await self.client.incarnation()
            await self.client.rest(self.released)

    async def wake(self) -> None:
        """Has the server take its memory again. Raises RequestFailed or RequestRefused."""
        async with self.memory_lock:
            if await self._released_memory():
                await self.client.wake(self.released)

    async def _released_memory(self) -> ReleasedMemory:
        """The memory that it has released: none if it was restarted since. A restore would then crash it."""
        if self.released and await self.client.incarnation() != self.released.incarnation:
            await self.released.remove(self.released.kinds)
        return self.released

    async def _update(self, target: LabelledWeights) -> None:
        try:
            async with self.memory_lock:
                await self.client.update(target.folder, target.label, await self._released_memory())
        except RequestRefused as refusal:
            raise RequestRefused(f"{refusal}. The folder must be there for the server under the same path") from refusal

    async def _wait_for(self, target: LabelledWeights, known: bool, current: Callable[[], bool]) -> None:
        while current():  # a server that reads slowly may skip a version
            try:
                if await self.client.version() == target.label:
                    return
            except RequestFailed:
                if known:
                    raise
            await asyncio.sleep(_WEIGHTS_POLL)

    def may_start(self) -> bool:
        """Whether a launched server may be started; every start but the first uses up one restart."""
        assert self.process is not None
        if not self.process.starts:
            return True
        self.refused.clear()
        if not self.restarts:
            self.fault = f"it was restarted as often as sglang.restarts allows; {self.fault}"
            _LOG.error("%s is given up: %s", self.name, self.fault)
            return False
        self.restarts -= 1
        _LOG.warning("%s is started again, %d more times at most", self.name, self.restarts)
        return True

    async def start(self, target: LabelledWeights, deadline: float, *, any_weights: bool) -> None:
        """Starts the process with the target and waits until it serves the target; with `any_weights`, any weights.

        Raises RequestFailed if it does not within `deadline` seconds, OSError if port or log cannot be opened.
        """
        assert self.process is not None
        self.reading = target.folder
        try:
            await self.released.remove(self.released.kinds)
            await asyncio.to_thread(self.process.start, target.folder, target.label)
            self.client = dataclasses.replace(self.client, url=self.process.url)
            async with asyncio.timeout(deadline):
                await self._wait_until_ready(self.process, target, any_weights)
        except TimeoutError:
            log = self.process.log
            raise RequestFailed(f"not ready within {deadline:g} s (sglang.startup_deadline); see {log}") from None
        finally:
            self.reading = None
        self.label = target.label

    async def _wait_until_ready(self, process: ServerProcess, target: LabelledWeights, any_weights: bool) -> None:
        while True:
            if not process.running:
                raise RequestFailed(f"it ended while starting; {process.log} ends:\n{process.tail()}")
            try:
                await self.client.check_health()
                found = await self.client.version()
                if found == target.label or any_weights:
                    _LOG.info("%s is ready at %s", self.name, process.url)
                    return
                self.fault = f"port {process.port} serves weights {found!r}: it is another server's"
            except (RequestFailed, RequestRefused) as error:
                self.fault = str(error)
            await asyncio.sleep(_START_POLL)

"""Servers of a rollout host: starts them, watches them, and gives them each new version of the weights."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import jax
from absl import logging as absl_logging
from ml_collections import ConfigDict

from cojax.environment import EngineError
from cojax.host.processes import end_descendants_at_exit
from cojax.policy.config import ModelConfig
from cojax.policy.pretrained import CONFIG
from cojax.report.console import CONSOLE
from cojax.rollout.export import check_weights
from cojax.rollout.sglang.client import Connections, RequestFailed, RequestRefused, Router
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.process import LaunchSettings, RouterProcess, ServerProcess
from cojax.rollout.sglang.server import LabelledWeights, Server
from cojax.rollout.sglang.supervisor import FleetSettings
from cojax.run import engines
from cojax.run.checks import check
from cojax.run.configuration import configuration
from cojax.serving.sources import FAULTS, Checkpoints, LocalFolders, Source, Versions, Watch

_LOG = logging.getLogger("cojax.serve")

# The label of weights that no trainer has written. A trainer that attaches replaces them before its first request.
_LABEL = "as-started"
_LAST_PORT = 65_535
_POLL = 0.5  # seconds between two looks for a new version
_ROUTER_POLL = 1.0  # seconds between two looks at what is behind the router
_ROUTER_PATIENCE = 30.0  # seconds for a router to take a server that it was given


def serve(config: ConfigDict, host: str, stop: threading.Event, run: str = "", router: str = "") -> int:
    """Keeps the servers up until `stop` is set, then returns 0; returns 1 once all have used up their restarts.

    With a `run` they serve the newest checkpoint of that run directory. With a `router` they are behind it.

    Raises ValueError for wrong settings, FileNotFoundError or ValueError where there are no weights to start with.
    """
    check(config)
    is_port = router.isascii() and router.isdigit() and 1 <= int(router) <= _LAST_PORT
    if router and not is_port and not engines.is_address(router):
        raise ValueError(f"--router is {router!r}; expected a port, or http://HOST:PORT of a router to join")
    if not config.sglang.port:
        raise ValueError("sglang.port is 0; a trainer must know where to find the servers: --config.sglang.port=30000")
    if is_port and 0 <= int(router) - config.sglang.port < config.sglang.servers:
        raise ValueError(
            f"--router={router} is the port of a server: sglang.servers={config.sglang.servers} take as many ports "
            f"from sglang.port={config.sglang.port} on; choose another"
        )
    return asyncio.run(_serve(config, host, stop, run, router))


async def _serve(config: ConfigDict, host: str, stop: threading.Event, run: str, router: str) -> int:
    keeping = asyncio.create_task(_keep(config, host, run, router))
    stopped = asyncio.create_task(asyncio.to_thread(stop.wait))
    await asyncio.wait([keeping, stopped], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    keeping.cancel()
    try:
        await keeping
    except asyncio.CancelledError:
        return 0
    except EngineError as error:
        CONSOLE.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
    return 1


async def _keep(config: ConfigDict, host: str, run: str, router: str) -> None:
    """Keeps the servers up until it is cancelled; where they follow, on the newest version. Raises EngineError."""
    section, follows = config.sglang, bool(config.sglang.follow or run)
    folder, local = Path(section.folder or config.workdir), LocalFolders(section.local)
    path = config.model.path
    expected = ModelConfig.from_hf(path) if path and (Path(path) / CONFIG).exists() else None
    source: Source = (
        Checkpoints(Path(run), local, section.dtype, expected) if run else Versions(folder, local, expected)
    )
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    watch = Watch(source, _POLL, section.sync_deadline, lambda: loop.call_soon_threadsafe(changed.set))
    connections = Connections()
    fleet = routed = keeping = None
    try:
        target = before = await _first_version(config, watch, follows, run)
        model = ModelConfig.from_hf(target.folder)
        source.expected = source.expected or model
        dtype = section.dtype or config.model.dtype or model.dtype
        # Several rollout hosts may share the folder.
        logs = folder / "sglang" / socket.gethostname()
        launch = dataclasses.replace(engines.launch(config, logs, dtype), host=host)
        processes = [ServerProcess(launch, index) for index in range(section.servers)]
        limits, release = engines.server_limits(config), section.release_memory
        fleet = Fleet(
            connections, [], processes, FleetSettings(limits, any_weights=not follows, release_memory=release)
        )
        if router:
            routed = RoutedFleet(router, launch, fleet, connections)
            keeping = asyncio.create_task(routed.keep())
        _LOG.info("%d servers start with %s on ports from %d", section.servers, target.folder, section.port)
        await fleet.sync(target)
        while not fleet.all_lost:
            # At once: a trainer may remove a version soon after.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await changed.wait()
            changed.clear()
            watch.tell_if_late()
            if (found := watch.found and _with_label(watch.found)) and found != target:
                target, before = found, target
                _LOG.info("%s as %s", target.folder, target.label)
                fleet.set_target(target)
            local.prune([target.folder, before.folder, *fleet.reading()])
        raise EngineError(f"no SGLang server is left: {fleet.faults()}")
    finally:
        await asyncio.to_thread(watch.stop)
        if keeping is not None:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        if routed is not None:
            await routed.close()
        if fleet is not None:
            await fleet.close()
        await connections.aclose()
        local.close()


async def _first_version(config: ConfigDict, watch: Watch, follows: bool, run: str) -> LabelledWeights:
    """The weights to start with. Who follows, and has no model.path, waits for the first."""
    logged = False
    while watch.found is None:
        watch.raise_if_late()
        if watch.fault is not None:
            raise watch.fault
        if watch.looked.is_set():
            if config.model.path:
                check_weights(Path(config.model.path))
                return LabelledWeights(Path(config.model.path).absolute(), _LABEL)
            where = Path(run or config.sglang.folder or config.workdir) / ("checkpoints" if run else "weights")
            if not follows:
                raise FileNotFoundError(
                    f"no weights to start with: {where} has none yet. Start the trainer first, or name a "
                    "model folder in --config.model.path"
                )
            if not logged:
                _LOG.info("waiting for the first version in %s", where)
                logged = True
        await asyncio.sleep(_POLL / 5)
    return _with_label(watch.found)


def _with_label(target: LabelledWeights) -> LabelledWeights:
    """The weights, under a default label where no trainer gave them one."""
    return target if target.label else dataclasses.replace(target, label=_LABEL)


def run(host: str, follow: str, router: str) -> None:
    """Serves until the process is stopped."""
    end_descendants_at_exit()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    absl_logging.set_verbosity(absl_logging.WARNING)  # Orbax tells of every array
    logging.getLogger("cojax").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    # The accelerators are the servers'.
    jax.config.update("jax_platforms", "cpu")
    try:
        config = configuration()
        sys.exit(serve(config, host, stop, follow, router))
    except FAULTS as error:
        CONSOLE.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
        sys.exit(1)


class RoutedFleet:
    """Puts each server of `fleet` behind the router once it is up, and takes it away at the end.

    `router` is a port, on which a router is started here and kept running, or the address of one.
    """

    def __init__(self, router: str, launch: LaunchSettings, fleet: Fleet, connections: Connections) -> None:
        self._process = RouterProcess(launch, int(router)) if router.isdigit() else None
        # Where others reach this host.
        self._host = socket.gethostname() if launch.host in ("0.0.0.0", "::") else launch.host
        url = f"http://{'127.0.0.1' if launch.host == '0.0.0.0' else launch.host}:{router}"
        self._router = Router(url if self._process else router.rstrip("/"), connections)
        self._fleet = fleet
        self._given: dict[str, float] = {}  # address → when the router was given it

    async def keep(self) -> None:
        """Does so until it is cancelled."""
        fault = ""
        while True:
            try:
                if self._process is not None and not self._process.running:
                    _LOG.info("a router starts on port %d; its log is %s", self._process.port, self._process.log)
                    await asyncio.to_thread(self._process.start)
                    self._given.clear()
                await self._update()
                fault = ""
            except (RequestFailed, RequestRefused, OSError) as error:
                # One that starts does not answer for a while.
                if str(error) != fault and not (self._process and not self._given):
                    _LOG.warning("the router: %s", error)
                fault = str(error)
            await asyncio.sleep(_ROUTER_POLL)

    async def _update(self) -> None:
        present, now = await self._router.servers(), time.monotonic()
        for server in self._fleet.servers:
            url = self._address(server)
            if server.up and url not in present and now - self._given.get(url, -_ROUTER_PATIENCE) >= _ROUTER_PATIENCE:
                await self._router.add(url)
                self._given[url] = now
                _LOG.info("%s is behind the router %s", url, self._router.url)
            if server.state == "lost" and url in present:
                await self._router.remove(url)

    def _address(self, server: Server) -> str:
        assert server.process is not None
        return f"http://{self._host}:{server.process.port}"

    async def close(self) -> None:
        """Takes the servers away, so that no request is sent to them any more; ends a router that was started here."""
        if self._process is not None:
            await asyncio.to_thread(self._process.stop)
            return
        for server in self._fleet.servers:
            with contextlib.suppress(RequestFailed, RequestRefused):
                await self._router.remove(self._address(server))

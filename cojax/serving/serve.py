"""Servers of a rollout host: starts them, watches them, and gives them each new version of the weights.

Versions come from a trainer that writes them, or from the checkpoints of a run. A server reads a model folder. From a
checkpoint, and from a version that all processes of a trainer saved together, this process makes such a folder, in
memory if it fits.
"""

import asyncio
import contextlib
import dataclasses
import fcntl
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

import jax
import numpy as np
from ml_collections import ConfigDict

from cojax.durable import open_own_file
from cojax.environment import EngineError
from cojax.host.processes import GuardedProcess, end_descendants_at_exit
from cojax.learner.rehearsal import measure_available_bytes
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import parameters
from cojax.policy.pretrained import CONFIG
from cojax.report.console import CONSOLE
from cojax.rollout import export
from cojax.rollout.sglang.client import Connections, RequestFailed, RequestRefused, ServerClient
from cojax.rollout.sglang.engine import find_newest_version
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.server import LabelledWeights, LaunchSettings, Server, ServerProcess
from cojax.run import engines, trained
from cojax.run.checks import check_settings
from cojax.run.configuration import read_configuration
from cojax.run.processes import LAST_PORT
from cojax.settings.base import settings
from cojax.settings.tree import SGLangSettings
from cojax.storage.checkpoint import Checkpointer, CheckpointError
from cojax.storage.files import is_number, lock_folder

_LOG = logging.getLogger("cojax.serve")
# The label of weights that no trainer has written. A trainer that attaches replaces them before its first request.
_DEFAULT_LABEL = "as-started"
_VERSION_POLL_S = 0.5  # seconds between two checks for a new version
_ROUTER_POLL_S = 1.0  # seconds between two requests for the servers behind the router
_ROUTER_PATIENCE = 30.0  # seconds for a router to take a server
_MEMORY_FOLDER, _FOLDER_PREFIX, _LOCK_NAME = Path("/dev/shm"), "cojax-weights-", ".lock"
_STOP_TIMEOUT_S = 10.0  # seconds for the current check to end
_HEADROOM = 1.5  # a version is kept in memory if this many times its size is free
VERSION_ERRORS = (OSError, ValueError, CheckpointError)


class LocalFolders:
    """Model folders that this host makes, in `folder`; "" is /dev/shm if they fit, otherwise the temporary folder.

    They are removed by `close`. Those of a process that was killed are removed by the next one.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder, self._folder_count = folder, 0
        self._root_by_parent: dict[Path, tuple[Path, TextIO]] = {}

    def make(self, size_bytes: int, fill: Callable[[Path], None]) -> Path:
        """The next folder, of `size_bytes` bytes, filled by `fill`. Raises what `fill` raises, and OSError."""
        parent = (
            Path(self._folder) if self._folder else _MEMORY_FOLDER if _fits(size_bytes) else Path(tempfile.gettempdir())
        )
        self._folder_count += 1
        folder = self._claim_root(parent) / str(self._folder_count)
        fill(folder)
        return folder

    def prune(self, current_folders: Iterable[Path]) -> None:
        """Removes all folders except those to keep and newer ones, which no caller knows yet."""
        roots, kept_folders = [root for root, _ in list(self._root_by_parent.values())], list(current_folders)
        newest_number = max((int(path.name) for path in kept_folders if path.parent in roots), default=0)
        for root in roots:
            newer_folders = (path for path in root.iterdir() if is_number(path.name) and int(path.name) > newest_number)
            export.prune_weights(root, [*kept_folders, *newer_folders])

    def close(self) -> None:
        """Removes everything."""
        for root, lock_file in self._root_by_parent.values():
            shutil.rmtree(root, ignore_errors=True)
            lock_file.close()
        self._root_by_parent.clear()

    def _claim_root(self, parent_folder: Path) -> Path:
        """This process's own folder in `parent_folder`, locked while the process lives."""
        if parent_folder not in self._root_by_parent:
            parent_folder.mkdir(parents=True, exist_ok=True)
            _remove_orphans(parent_folder)
            root = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX, dir=parent_folder)).absolute()
            self._root_by_parent[parent_folder] = root, lock_folder(root, "--config.sglang.local", _LOCK_NAME)
        return self._root_by_parent[parent_folder][0]


class Versions:
    """The versions that a trainer writes to `folder`/weights/. Each must match `model`, once that is set."""

    def __init__(self, folder: Path, local: LocalFolders, model: ModelConfig | None = None) -> None:
        self.model = model
        self._folder, self._local = folder, local
        self._newest_version: LabelledWeights | None = None
        self._served_weights: LabelledWeights | None = None
        self._damage: tuple[LabelledWeights, int, ValueError] | None = None  # its time of writing, and its error

    def load_newest(self) -> LabelledWeights | None:
        """The newest version as a model folder of this host; None if there is none. Raises VERSION_ERRORS."""
        version = find_newest_version(self._folder, self._newest_version)
        if version is None or version == self._newest_version:
            return self._served_weights
        if self.model is not None and (difference := export.other_model(version.folder, self.model)):
            raise ValueError(
                f"{version.folder} is of another model: {difference}. Another run writes there: give each its own "
                "--config.sglang.folder, and this host the --config.model.path of its run"
            )
        weights = LabelledWeights(self._restore(version), version.label) if export.is_item(version.folder) else version
        self._newest_version, self._served_weights = version, weights
        return weights

    def _restore(self, version: LabelledWeights) -> Path:
        """The version as a model folder here. One that cannot be read is read only once."""
        start_time, time_ns, size_bytes = (
            time.monotonic(),
            version.folder.stat().st_mtime_ns,
            export.item_bytes(version.folder),
        )
        if self._damage is not None and self._damage[:2] == (version, time_ns):
            raise self._damage[2]
        try:
            path = self._local.make(
                size_bytes, lambda folder: export.restore_item(version.folder, folder, version.label)
            )
        except ValueError as error:
            self._damage = version, time_ns, error
            raise
        _LOG.info("%s restored to %s in %.1f s", version.folder, path, time.monotonic() - start_time)
        return path


class Checkpoints:
    """The newest sound checkpoint of the run in `run`, as `dtype`; "" is the dtype that the run computes in.

    No trainer needs to run. `model` and `load_newest` are as in `Versions`.
    """

    def __init__(self, run: Path, local: LocalFolders, dtype: str = "", model: ModelConfig | None = None) -> None:
        self.model = model
        self._run, self._local, self._dtype = run, local, dtype
        self._stamp: tuple[int, int] | None = None
        self._served_weights: LabelledWeights | None = None

    def load_newest(self) -> LabelledWeights | None:
        checkpoint_folder = self._run / "checkpoints"
        steps = Checkpointer(checkpoint_folder).steps()
        if not steps:
            trained.read_run_settings(self._run)  # raises an error unless it is a run
            return None
        # A run that is resumed from an older step writes the same numbers again.
        stamp = steps[-1], (checkpoint_folder / str(steps[-1])).stat().st_mtime_ns
        if stamp != self._stamp:
            self._served_weights, self._stamp = self._write_policy(trained.of_run(self._run)), stamp
        return self._served_weights

    def _write_policy(self, policy: trained.TrainedPolicy) -> LabelledWeights:
        label, model = f"step-{policy.step}-{policy.content}", policy.model
        if self._served_weights is not None and self._served_weights.label == label:
            return self._served_weights
        dtype = self._dtype or model.dtype
        parameter_count = sum(math.prod(parameter.shape(model)) for parameter in parameters(model))

        def write_folder(folder: Path) -> None:
            export.write_weights(folder, model, policy.weights().arrays(), dtype, label=label)
            if self.model is not None and (difference := export.other_model(folder, self.model)):
                raise ValueError(f"{self._run} is a run of another model: {difference}; correct --config.model.path")

        return LabelledWeights(self._local.make(parameter_count * np.dtype(dtype).itemsize, write_folder), label)


class Watch:
    """Looks for the newest version every `poll_s` seconds, on its own thread: a network folder may hang.

    `newest` is the newest version that was read; `on_change` is called on that thread after each new one.
    `fault` says why the last check failed. A check that takes longer than `timeout_s` seconds is late.
    """

    def __init__(
        self, source: Versions | Checkpoints, poll_s: float, timeout_s: float, on_change: Callable[[], object]
    ) -> None:
        self._source, self._poll_s, self._timeout_s, self._on_change = source, poll_s, timeout_s, on_change
        self.newest: LabelledWeights | None = None
        self.fault: Exception | None = None
        self.first_check, self._stop_event = threading.Event(), threading.Event()
        self._check_start = self._logged_check_start = 0.0  # monotonic start of the current check; 0 between two checks
        self._thread = threading.Thread(target=self._watch_source, name="newest weights", daemon=True)
        self._thread.start()

    def raise_if_late(self) -> None:
        """Raises TimeoutError if the current check is late."""
        if (check_start := self._check_start) and time.monotonic() - check_start > self._timeout_s:
            raise TimeoutError(
                f"reading the newest version takes longer than sglang.sync_deadline={self._timeout_s:g} s"
            )

    def tell_if_late(self) -> None:
        """Logs a late check, once."""
        try:
            self.raise_if_late()
        except TimeoutError as error:
            if self._logged_check_start != self._check_start:
                _LOG.error("%s; the previous one stays in use", error)
                self._logged_check_start = self._check_start

    def stop(self) -> None:
        """Ends the thread; one that hangs is left behind."""
        self._stop_event.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _watch_source(self) -> None:
        while not self._stop_event.is_set():
            self._check_start = time.monotonic()
            previous_version = self.newest
            try:
                self.newest, self.fault = self._source.load_newest() or self.newest, None
            except Exception as error:  # of any type: the thread must go on
                error = error if isinstance(error, VERSION_ERRORS) else ValueError(f"{type(error).__name__}: {error}")
                if str(error) != str(self.fault):
                    _LOG.warning("the newest version cannot be served, the previous one stays in use: %s", error)
                self.fault = error
            self._check_start = 0.0
            self.first_check.set()
            if self.newest != previous_version and not self._stop_event.is_set():
                self._on_change()
            self._stop_event.wait(self._poll_s)


def _fits(size_bytes: int) -> bool:
    """Whether a folder of `size_bytes` fits into /dev/shm, which is memory, with room to spare."""
    free_bytes = measure_available_bytes() if os.access(_MEMORY_FOLDER, os.W_OK) else None
    return free_bytes is not None and min(free_bytes, shutil.disk_usage(_MEMORY_FOLDER).free) >= _HEADROOM * size_bytes


def _remove_orphans(parent_folder: Path) -> None:
    """Removes folders that earlier processes of this user left behind."""
    for root in parent_folder.glob(f"{_FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if root.stat().st_uid != os.getuid():
                continue
            with open(root / _LOCK_NAME, opener=open_own_file) as lock_file:
                fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(root, ignore_errors=True)


def serve(config: ConfigDict, host: str, stop_event: threading.Event, run_folder: str = "", router: str = "") -> int:
    """Keeps the servers up until `stop_event` is set, then returns 0; returns 1 once all have used up their restarts.

    With a `run_folder` they serve the newest checkpoint of that run directory. With a `router` they are behind it.

    Raises ValueError for wrong settings, FileNotFoundError or ValueError if there are no weights to start with.
    """
    check_settings(config)
    is_port = router.isascii() and router.isdigit() and 1 <= int(router) <= LAST_PORT
    if router and not is_port and not engines.is_address(router):
        raise ValueError(f"--router is {router!r}; expected a port, or http://HOST:PORT of a router to join")
    if not config.sglang.port:
        raise ValueError("sglang.port is 0; a trainer must know where to find the servers: --config.sglang.port=30000")
    if is_port and 0 <= int(router) - config.sglang.port < config.sglang.servers:
        raise ValueError(
            f"--router={router} is the port of a server: sglang.servers={config.sglang.servers} take as many ports "
            f"from sglang.port={config.sglang.port} on; choose another"
        )
    return asyncio.run(_serve_until_stopped(config, host, stop_event, run_folder, router))


async def _serve_until_stopped(config: ConfigDict, host: str, stop: threading.Event, run: str, router: str) -> int:
    serve_task = asyncio.create_task(_keep_serving(config, host, run, router))
    stop_task = asyncio.create_task(asyncio.to_thread(stop.wait))
    await asyncio.wait([serve_task, stop_task], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    serve_task.cancel()
    try:
        await serve_task
    except asyncio.CancelledError:
        return 0
    except EngineError as error:
        CONSOLE.print(f"error: {error}", style="bold red")
    return 1


async def _keep_serving(config: ConfigDict, host: str, run: str, router: str) -> None:
    """Keeps the servers up until it is cancelled; if they follow, on the newest version. Raises EngineError."""
    section, follows = config.sglang, bool(config.sglang.follow or run)
    folder, local = Path(section.folder or config.workdir), LocalFolders(section.local)
    model_path = config.model.path
    named_model = ModelConfig.from_hf(model_path) if model_path and (Path(model_path) / CONFIG).exists() else None
    source = Checkpoints(Path(run), local, section.dtype, named_model) if run else Versions(folder, local, named_model)
    loop, change_event = asyncio.get_running_loop(), asyncio.Event()
    watch = Watch(source, _VERSION_POLL_S, section.sync_deadline, lambda: loop.call_soon_threadsafe(change_event.set))
    connections = Connections()
    fleet = registration = router_task = None
    try:
        target = previous_target = await _await_first_version(config, watch, follows, run)
        model = ModelConfig.from_hf(target.folder)
        source.model = source.model or model
        dtype = section.dtype or ("" if config.model.dtype == "auto" else config.model.dtype) or model.dtype
        # Several rollout hosts may share the folder.
        log_folder = folder / "sglang" / socket.gethostname()
        launch_settings = dataclasses.replace(engines.launch(config, log_folder, dtype), host=host)
        processes = [ServerProcess(launch_settings, index) for index in range(section.servers)]
        # Weights come from this process, and the fleet calls its servers directly.
        fleet_settings = dataclasses.replace(SGLangSettings(**settings(section)), follow=False, router="")
        fleet = Fleet(connections, [], processes, fleet_settings, takes_any_weights=not follows)
        if router:
            registration = RoutedFleet(router, launch_settings, fleet, connections)
            router_task = asyncio.create_task(registration.keep())
        _LOG.info("%d servers start with %s on ports from %d", section.servers, target.folder, section.port)
        await fleet.sync(target)
        while not fleet.is_lost:
            # A change is served at once: a trainer may remove a version soon.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_VERSION_POLL_S):
                    await change_event.wait()
            change_event.clear()
            watch.tell_if_late()
            if (newest_weights := watch.newest and _add_label(watch.newest)) and newest_weights != target:
                target, previous_target = newest_weights, target
                _LOG.info("%s as %s", target.folder, target.label)
                fleet.set_target(target)
            local.prune([target.folder, previous_target.folder, *fleet.list_reading()])
        raise EngineError(f"no SGLang server is left: {fleet.list_faults()}")
    finally:
        await asyncio.to_thread(watch.stop)
        if router_task is not None:
            router_task.cancel()
            await asyncio.gather(router_task, return_exceptions=True)
        if registration is not None:
            await registration.close()
        if fleet is not None:
            await fleet.close()
        await connections.aclose()
        local.close()


async def _await_first_version(config: ConfigDict, watch: Watch, follows: bool, run: str) -> LabelledWeights:
    """The weights to start with. Servers that follow, without a model.path, wait for the first version."""
    has_logged = False
    while watch.newest is None:
        watch.raise_if_late()
        if watch.fault is not None:
            raise watch.fault
        if watch.first_check.is_set():
            if config.model.path:
                export.check_weights(Path(config.model.path))
                return LabelledWeights(Path(config.model.path).absolute(), _DEFAULT_LABEL)
            source_folder = Path(run or config.sglang.folder or config.workdir) / ("checkpoints" if run else "weights")
            if not follows:
                raise FileNotFoundError(
                    f"no weights to start with: {source_folder} has none yet. Start the trainer first, or name a "
                    "model folder in --config.model.path"
                )
            if not has_logged:
                _LOG.info("waiting for the first version in %s", source_folder)
                has_logged = True
        await asyncio.sleep(_VERSION_POLL_S / 5)
    return _add_label(watch.newest)


def _add_label(target: LabelledWeights) -> LabelledWeights:
    """The weights, under a default label if no trainer gave them one."""
    return target if target.label else dataclasses.replace(target, label=_DEFAULT_LABEL)


def run(host: str, run_folder: str, router: str) -> None:
    """Serves until the process is stopped."""
    end_descendants_at_exit()
    stop_event = threading.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, lambda *_: stop_event.set())
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("cojax").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    # The accelerators belong to the servers.
    jax.config.update("jax_platforms", "cpu")
    try:
        config = read_configuration()
        sys.exit(serve(config, host, stop_event, run_folder, router))
    except VERSION_ERRORS as error:
        CONSOLE.print(f"error: {error}", style="bold red")
        sys.exit(1)


class RoutedFleet:
    """Puts each server of `fleet` behind the router once it is up, and takes it away at the end.

    `router` is a port, on which this process starts a router and keeps it running, or the address of one.
    """

    def __init__(self, router: str, launch: LaunchSettings, fleet: Fleet, connections: Connections) -> None:
        self._launch_settings, self._port = launch, int(router) if router.isdigit() else 0  # 0: the router is elsewhere
        self._process = GuardedProcess()
        # The name by which other hosts reach this one.
        self._host = socket.gethostname() if launch.host in ("0.0.0.0", "::") else launch.host
        self._router_client = ServerClient(launch.url(self._port) if self._port else router.rstrip("/"), connections)
        self._fleet = fleet
        self._times: dict[str, float] = {}  # address → when the router was given it

    async def keep(self) -> None:
        """Starts the router if need be, and keeps its list of servers current, until this is cancelled."""
        last_error = ""
        while True:
            try:
                if self._port and not self._process.is_running:
                    log_path = self._launch_settings.log_folder / "router.log"
                    _LOG.info("a router starts on port %d; its log is %s", self._port, log_path)
                    await asyncio.to_thread(self._process.end, signal.SIGUSR1)
                    command = self._launch_settings.make_router_command(self._port)
                    await asyncio.to_thread(self._process.start, command, log_path, self._launch_settings.environment())
                    self._times.clear()
                await self._update_router()
                last_error = ""
            except (RequestFailed, RequestRefused, OSError) as error:
                # A router that starts does not answer for a while.
                if str(error) != last_error and not (self._port and not self._times):
                    _LOG.warning("the router: %s", error)
                last_error = str(error)
            await asyncio.sleep(_ROUTER_POLL_S)

    async def _update_router(self) -> None:
        urls, now_s = await self._router_client.list_servers(), time.monotonic()
        for server in self._fleet.servers:
            url = self._make_server_url(server)
            if server.is_up and url not in urls and now_s - self._times.get(url, -_ROUTER_PATIENCE) >= _ROUTER_PATIENCE:
                await self._router_client.add_server(url)
                self._times[url] = now_s
                _LOG.info("%s is behind the router %s", url, self._router_client.url)
            if server.state == "lost" and url in urls:
                await self._router_client.remove_server(url)

    def _make_server_url(self, server: Server) -> str:
        assert server.process is not None
        return f"http://{self._host}:{server.process.port}"

    async def close(self) -> None:
        """Takes the servers away, so that it sends them no more requests; ends a router that was started here."""
        if self._port:
            await asyncio.to_thread(self._process.end, signal.SIGTERM)
            return
        for server in self._fleet.servers:
            with contextlib.suppress(RequestFailed, RequestRefused):
                await self._router_client.remove_server(self._make_server_url(server))

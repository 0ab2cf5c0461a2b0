"""Keeps SGLang servers running on a rollout host.

    python -m experiments.serve --config=FILE [--config.sglang.KEY=VALUE …] [--host=H]

They serve the newest version in sglang.folder/weights, or the folder model.path where there is none, on sglang.port and
the ports after it, until this process is stopped. A server that dies or hangs is started again. A trainer attaches with
--config.engine=sglang --config.sglang.urls=http://HOST:PORT,… and gives every server its weights before it sends
requests, also one that was started again. With --config.sglang.follow=True, here and at the trainer, the trainer only
writes versions, and this process has its servers load each new one. sglang.folder must be the trainer's, at the same
path.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from ml_collections import ConfigDict

from cojax.environment import EngineError
from cojax.host.processes import end_descendants_at_exit
from cojax.policy.config import ModelConfig
from cojax.report.console import CONSOLE
from cojax.rollout.export import check_weights
from cojax.rollout.sglang.connections import Connections
from cojax.rollout.sglang.fleet import Fleet
from cojax.rollout.sglang.process import ServerProcess
from cojax.rollout.sglang.server import LabelledWeights
from cojax.rollout.sglang.supervisor import FleetSettings
from cojax.rollout.sglang.weights import newest_version
from experiments import engines
from experiments.checks import check
from experiments.flags import configuration, parse

_LOG = logging.getLogger("cojax.serve")
_HOST = flags.DEFINE_string("host", "0.0.0.0", "The address to listen on.")
# The label of weights that no trainer has written. A trainer that attaches replaces them before its first request.
_LABEL = "as-started"
_POLL = 0.5  # seconds between two looks for a new version


def serve(config: ConfigDict, host: str, stop: threading.Event) -> int:
    """Keeps the servers up until `stop` is set, then returns 0; returns 1 once all have used up their restarts.

    Raises ValueError for wrong settings, FileNotFoundError or ValueError where there are no weights to start with.
    """
    check(config)
    if not config.sglang.port:
        raise ValueError("sglang.port is 0; a trainer must know where to find the servers: --config.sglang.port=30000")
    return asyncio.run(_serve(config, host, stop))


async def _serve(config: ConfigDict, host: str, stop: threading.Event) -> int:
    keeping = asyncio.create_task(_keep(config, host))
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


async def _keep(config: ConfigDict, host: str) -> None:
    """Keeps the servers up until it is cancelled; with `follow` on the newest version. Raises EngineError."""
    section = config.sglang
    folder = Path(section.folder or config.workdir)
    target = await _first_version(config, folder)
    dtype = section.dtype or config.model.dtype or ModelConfig.from_hf(target.folder).dtype
    # Several rollout hosts may share the folder.
    logs = folder / "sglang" / socket.gethostname()
    launch = dataclasses.replace(engines.launch(config, logs, dtype), host=host)
    processes = [ServerProcess(launch, index) for index in range(section.servers)]
    connections = Connections()
    settings = FleetSettings(
        engines.server_limits(config), any_weights=not section.follow, release_memory=section.release_memory
    )
    fleet = Fleet(connections, [], processes, settings)
    try:
        _LOG.info("%d servers start with %s on ports from %d", section.servers, target.folder, section.port)
        await fleet.sync(target)
        while not fleet.all_lost:
            await asyncio.sleep(_POLL)
            if (found := await _next_version(folder, target)) != target:
                target = found
                _LOG.info("%s as %s", target.folder, target.label)
                fleet.set_target(target)
        raise EngineError(f"no SGLang server is left: {fleet.faults()}")
    finally:
        await fleet.close()
        await connections.aclose()


async def _first_version(config: ConfigDict, folder: Path) -> LabelledWeights:
    """The weights to start with. With `follow` and no model.path, this waits for a trainer to write the first."""
    logged = False
    while (found := await asyncio.to_thread(newest_version, folder)) is None:
        if config.model.path:
            check_weights(Path(config.model.path))
            return LabelledWeights(Path(config.model.path).absolute(), _LABEL)
        if not config.sglang.follow:
            raise FileNotFoundError(
                f"no weights to start with: {folder / 'weights'} has none yet. Start the trainer first, or name a "
                "model folder in --config.model.path"
            )
        if not logged:
            _LOG.info("waiting for the first version in %s", folder / "weights")
            logged = True
        await asyncio.sleep(_POLL)
    return _with_label(found)


async def _next_version(folder: Path, known: LabelledWeights) -> LabelledWeights:
    """The newest version, or the known one where there is none or the newest cannot be read."""
    try:
        found = await asyncio.to_thread(newest_version, folder, known)
    except (OSError, ValueError) as error:
        _LOG.warning("the newest version cannot be served, the one before stays: %s", error)
        return known
    return known if found is None else _with_label(found)


def _with_label(target: LabelledWeights) -> LabelledWeights:
    """The weights, under a default label where no trainer gave them one."""
    return target if target.label else dataclasses.replace(target, label=_LABEL)


def main(argv: Sequence[str]) -> None:
    end_descendants_at_exit()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("cojax").setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
    try:
        config = configuration()
        sys.exit(serve(config, _HOST.value, stop))
    except (ValueError, OSError) as error:
        CONSOLE.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    app.run(main, flags_parser=parse)

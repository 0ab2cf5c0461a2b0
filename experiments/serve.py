"""SGLang servers for a rollout host: python -m experiments.serve --config=FILE [--config.sglang.KEY=VALUE …] [--host=H]

Serves the newest version in sglang.folder/weights, else the folder model.path, on sglang.port and the ports after it,
until it is stopped; a server that dies or hangs is started again. A trainer attaches with --config.engine=sglang
--config.sglang.urls=http://HOST:PORT,… and gives every server its weights before it sends requests, also one that was
started again. sglang.folder must be the trainer's, at the same path.
"""

from __future__ import annotations

import dataclasses
import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from absl import app, flags
from ml_collections import ConfigDict, config_flags

from cojax.console import CONSOLE
from cojax.policy.config import ModelConfig
from cojax.rollout.export import check_weights
from cojax.rollout.sglang_process import ServerProcess
from experiments import engines, presets
from experiments.flags import parse

_LOG = logging.getLogger("cojax.serve")
_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: a file with get_config().")
_HOST = flags.DEFINE_string("host", "0.0.0.0", "The address to listen on.")
# The label of weights that no trainer has given: one that attaches replaces them before its first request.
_LABEL = "as-started"
_HEALTH = 40.0  # seconds; the server itself gives up after 20
_MISSES = 2  # looks at a server in a row that may fail before it is started again


@dataclasses.dataclass
class _Watch:
    """What is known of one server: when it was started, and how often in a row it did not answer since it was ready."""

    process: ServerProcess
    restarts: int
    started: float = 0.0
    ready: bool = False
    misses: int = 0


def serve(config: ConfigDict, host: str, stop: threading.Event) -> int:
    """Keeps the servers up until `stop` is set; 0, or 1 once one has used up its restarts.

    Raises FileNotFoundError or ValueError where there are no weights to start with, OSError where a port is taken.
    """
    section = config.sglang
    if not section.port:
        raise ValueError("sglang.port is 0; a trainer must know where to find the servers: --config.sglang.port=30000")
    folder = newest(config)
    dtype = section.dtype or ModelConfig.from_hf(folder).param_dtype
    logs = Path(section.folder or config.workdir) / "sglang"
    launch = dataclasses.replace(engines.launch(config, logs, dtype), host=host)
    watches = [_Watch(ServerProcess(launch, index), section.restarts) for index in range(section.servers)]
    try:
        for watch in watches:
            _start(watch, folder)
        while not stop.wait(section.probe_every):
            for watch in watches:
                if not (fault := _fault(watch, section.startup_deadline)):
                    continue
                if not watch.restarts:
                    CONSOLE.print(f"server {watch.process.index} {fault}; see {watch.process.log}", style="bold red")
                    return 1
                watch.restarts -= 1
                CONSOLE.print(f"server {watch.process.index} {fault}; it is started again", soft_wrap=True)
                watch.process.kill()
                _start(watch, newest(config))
        return 0
    finally:
        for watch in watches:
            watch.process.stop()


def newest(config: ConfigDict) -> Path:
    """The weights to start with. Raises FileNotFoundError where there are none, DamagedFile for a broken folder."""
    sent = Path(config.sglang.folder or config.workdir).absolute() / "weights"
    versions = [path for path in sent.iterdir() if path.name.isdigit()] if sent.is_dir() else []
    folder = max(versions, key=lambda path: path.stat().st_mtime, default=Path(config.model.path or "."))
    if not versions and not config.model.path:
        raise FileNotFoundError(
            f"no weights to start with: {sent} has none yet. Start the trainer first, or name a model folder in "
            "--config.model.path"
        )
    check_weights(folder)
    return folder


def _start(watch: _Watch, folder: Path) -> None:
    watch.process.start(folder, _LABEL)
    watch.started, watch.ready, watch.misses = time.monotonic(), False, 0
    CONSOLE.print(f"server {watch.process.index} starts on port {watch.process.port} with {folder}", soft_wrap=True)


def _fault(watch: _Watch, startup: float) -> str:
    """Why the server must be started again, or nothing."""
    if not watch.process.running:
        return "has ended"
    try:
        answers = httpx.get(f"{watch.process.url}/health", timeout=_HEALTH, trust_env=False).status_code == 200
    except httpx.HTTPError:
        answers = False
    if answers:
        if not watch.ready:
            CONSOLE.print(f"server {watch.process.index} is ready on port {watch.process.port}", soft_wrap=True)
        watch.ready, watch.misses = True, 0
    elif watch.ready:
        # A server that takes new weights answers no generation meanwhile: one miss is no hang.
        watch.misses += 1
        return "hangs" if watch.misses > _MISSES else ""
    elif time.monotonic() - watch.started > startup:
        return f"was not ready within {startup:g} s"
    return ""


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}; settings are given as --config.KEY=VALUE")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        config = presets.resolve(_CONFIG.value, config_flags.get_override_values(flags.FLAGS["config"]))
        sys.exit(serve(config, _HOST.value, stop))
    except (ValueError, OSError) as error:
        CONSOLE.print(f"error: {error}", style="bold red", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    flags.mark_flag_as_required("config")
    app.run(main, flags_parser=parse)

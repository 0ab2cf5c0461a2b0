"""Builds the rollout engine that a configuration names: in this process, or on SGLang servers."""

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import jax
from ml_collections import ConfigDict

from cojax import warm_start
from cojax.policy.config import ModelConfig
from cojax.rollout.engine import Engine, Routed
from cojax.rollout.local import LocalEngine
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings, ServerLimits
from cojax.run import cache_memory
from cojax.run.mesh import mesh_of
from cojax.settings import base
from cojax.settings.reading import settings

# Found, not imported: that takes seconds.
_HAS_SGLANG = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
_PATIENCE = 60.0  # seconds in which an interpreter must say it
_LAUNCHED_ONLY = ("servers", "python", "device", "flags", "port", "restarts")


def local(config: ConfigDict, model: ModelConfig) -> Engine:
    """The engine in this process, on the learner's mesh."""
    own, mesh = settings(config.engine, "name", "slots"), mesh_of(config)
    return LocalEngine(model, slots=cache_memory.slots(config, model), routes=asks_routes(config), mesh=mesh, **own)


def sglang(config: ConfigDict, model: ModelConfig) -> Engine:
    """The engine on SGLang servers: those of sglang.urls, or servers launched here."""
    section = config.sglang
    # A server keeps its parameters in the dtype that it computes with.
    model = dataclasses.replace(model, param_dtype=model.dtype)
    urls = [url.strip() for url in section.urls.split(",") if url.strip()]
    if wrong := [url for url in urls if not is_address(url)]:
        raise ValueError(f"sglang.urls names {wrong[0]!r}; expected http://HOST:PORT, several separated by commas")
    distinct = [str(httpx.URL(url)).rstrip("/") for url in urls]
    if twice := [url for url in distinct if distinct.count(url) > 1]:
        raise ValueError(f"sglang.urls names {twice[0]!r} twice; it would be given its weights twice at once")
    if urls or section.router:
        _check_attached(section)
    elif section.follow:
        raise ValueError("sglang.follow is set, but sglang.urls is empty; name the servers there, or unset it")
    if section.router and not is_address(section.router):
        raise ValueError(f"sglang.router is {section.router!r}; expected http://HOST:PORT")
    folder = Path(section.folder or config.workdir)
    own = None if urls or section.router else launch(config, folder / "sglang", section.dtype or model.param_dtype)
    return SGLangEngine(
        model,
        folder=folder,
        max_length=config.engine.max_length,
        urls=urls,
        launch=own,
        servers=section.servers,
        limits=server_limits(config),
        deadline=config.limits.engine_deadline,
        dtype=section.dtype,
        mixed=section.mixed,
        follow=section.follow,
        sync=sync(config),
        router=section.router.strip().rstrip("/"),
        release_memory=section.release_memory,
        routes=asks_routes(config),
    )


def sync(config: ConfigDict) -> str:
    """How weights reach servers: by default, several processes save them together for servers that follow."""
    several = config.sglang.follow and jax.process_count() > 1
    return config.sglang.sync or ("orbax" if several else "folder")


def asks_routes(config: ConfigDict) -> bool:
    """Whether completions must report which experts tokens went through."""
    return config.learner.routes != "own"


def check_routes(config: ConfigDict, engine: Engine) -> None:
    """Raises ValueError, and closes the engine, if it does not report the routes that the learner needs."""
    if asks_routes(config) and not (isinstance(engine, Routed) and engine.tells_routes):
        engine.close()
        raise ValueError(
            f"learner.routes is {config.learner.routes!r}, but engine {config.engine.name!r} does not tell which "
            "experts tokens went through (cojax.rollout.engine.Routed); set --config.learner.routes=own"
        )


def server_limits(config: ConfigDict) -> ServerLimits:
    """The deadlines of servers, and how often one may be started again."""
    section = config.sglang
    return ServerLimits(section.startup_deadline, section.sync_deadline, section.probe_every, section.restarts)


def _check_attached(section: ConfigDict) -> None:
    """Raises ValueError for a setting of launched servers, as with sglang.urls none is launched."""
    usual, given = base.get_config().sglang, "urls" if section.urls else "router"
    for name in _LAUNCHED_ONLY:
        if section[name] != usual[name]:
            raise ValueError(
                f"sglang.{name} is {section[name]!r}, but sglang.{given} attaches to servers that run already. Give it "
                f"to what starts them, as `python -m experiments.serve`, and leave it at {usual[name]!r} here"
            )


def is_address(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.host)


def launch(config: ConfigDict, logs: Path, dtype: str) -> LaunchSettings:
    """How to launch servers. Without sglang.python they run on the interpreter of `make sglang`, on the CPU."""
    section = config.sglang
    return LaunchSettings(
        section.python or str(default_python()),
        logs,
        config.engine.max_length,
        dtype,
        device=section.device or ("" if section.python else "cpu"),
        flags=section.flags,
        port=section.port,
        max_running=config.engine.slots or cache_memory.MOST_SLOTS,
        release_memory=section.release_memory,
        routes=asks_routes(config),
        servers=section.servers,
    )


def check_servers(config: ConfigDict) -> None:
    """Raises ValueError where SGLang servers are to be launched, but the interpreter does not have SGLang."""
    if config.engine.name != "sglang" or config.sglang.urls or config.sglang.router:
        return
    python = config.sglang.python or str(default_python())
    try:
        asked = subprocess.run(
            [python, "-I", "-c", _HAS_SGLANG], capture_output=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE
        )
        has_sglang = asked.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        has_sglang = False
    if not has_sglang:
        raise ValueError(
            f"engine.name is 'sglang', but {python!r} has no SGLang. Run `make sglang` for one without a GPU, name "
            "your own in --config.sglang.python, attach to running servers with --config.sglang.urls, or set "
            "--config.engine=local"
        )


def default_python() -> Path:
    """The interpreter that `make sglang` installs."""
    return warm_start.cache().absolute() / "sglang" / "bin" / "python"


ENGINES: dict[str, Callable[[ConfigDict, ModelConfig], Engine]] = {"local": local, "sglang": sglang}

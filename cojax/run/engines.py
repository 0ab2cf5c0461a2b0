"""Builds the rollout engine that a configuration names: in this process, or on SGLang servers.

The local engine's KV cache holds the keys and values of `slots` conversations of `max_length` tokens. It is sized from
free memory, and one that does not fit is refused. Weights come first: the policy's, the engine's copy and, unless
adapters are trained, a gradient and two moments. If the number of slots is chosen here, the cache takes at most half of
what remains, since an update needs the rest; a number that is set may take all of it.

On a mesh, bytes are counted over all its devices. The engine has a copy of the weights on each replica, and a slot is
on one of them. What a replica does not split, each of its devices holds.
"""

import dataclasses
import inspect
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import httpx
import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax import warm_start
from cojax.learner.placement import ONE_PROCESS, Hosts
from cojax.learner.rehearsal import GIB, measure_free_bytes
from cojax.policy import parameters
from cojax.policy.cached import make_cache
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import SAMPLING_AXES, copies, list_replicas
from cojax.report.console import CONSOLE
from cojax.rollout.engine import Engine, Routed
from cojax.rollout.local import LocalEngine
from cojax.rollout.sglang.engine import SGLangEngine
from cojax.rollout.sglang.server import LaunchSettings
from cojax.run import methods
from cojax.run.processes import make_mesh_of
from cojax.settings import base
from cojax.settings.base import settings
from cojax.settings.tree import SGLangSettings
from cojax.storage.checksums import add_checksum, has_valid_checksum
from cojax.storage.files import read_json, write_json

# Found, not imported: importing it takes seconds.
_SGLANG_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)"
_PROBE_TIMEOUT_S = 60.0  # seconds that an interpreter has to answer
_T = TypeVar("_T")
_LAUNCH_SETTINGS = ("servers", "python", "device", "flags", "port", "restarts")


def build_local(config: ConfigDict, model: ModelConfig, hosts: Hosts = ONE_PROCESS) -> Engine:
    """Builds the engine in this process, or in all of `hosts`, on the learner's mesh."""
    engine_settings, mesh, routes = settings(config.engine, "name", "slots"), make_mesh_of(config), asks_routes(config)
    slot_count = choose_slot_count(config, model)
    return LocalEngine(model, slots=slot_count, routes=routes, mesh=mesh, hosts=hosts, **engine_settings)


def build_sglang_engine(config: ConfigDict, model: ModelConfig) -> Engine:
    """Builds the engine on SGLang servers: those of sglang.urls, or servers that it launches."""
    section = config.sglang
    # A server keeps its parameters in the dtype that it computes with.
    model = dataclasses.replace(model, param_dtype=model.dtype)
    urls = [url.strip() for url in section.urls.split(",") if url.strip()]
    if bad_urls := [url for url in urls if not is_address(url)]:
        raise ValueError(f"sglang.urls names {bad_urls[0]!r}; expected http://HOST:PORT, several separated by commas")
    normalised_urls = [str(httpx.URL(url)).rstrip("/") for url in urls]
    if repeated_urls := [url for url in normalised_urls if normalised_urls.count(url) > 1]:
        raise ValueError(f"sglang.urls names {repeated_urls[0]!r} twice; it would receive its weights twice at once")
    if urls or section.router:
        _check_launch_settings(section)
    elif section.follow:
        raise ValueError("sglang.follow is set, but sglang.urls is empty; name the servers there, or unset it")
    if section.router and not is_address(section.router):
        raise ValueError(f"sglang.router is {section.router!r}; expected http://HOST:PORT")
    folder = Path(section.folder or config.workdir)
    servers = None if urls or section.router else launch(config, folder / "sglang", section.dtype or model.param_dtype)
    return SGLangEngine(
        model,
        folder=folder,
        max_length=config.engine.max_length,
        urls=urls,
        launch=servers,
        settings=dataclasses.replace(
            SGLangSettings(**settings(section)), sync=choose_sync(config), router=section.router.strip().rstrip("/")
        ),
        timeout_s=config.limits.engine_deadline,
        wants_routes=asks_routes(config),
    )


def choose_sync(config: ConfigDict) -> Literal["folder", "orbax"]:
    """How weights reach servers: by default, several processes save them together if the servers follow."""
    should_save_together = config.sglang.follow and jax.process_count() > 1
    return config.sglang.sync or ("orbax" if should_save_together else "folder")


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


def _check_launch_settings(section: ConfigDict) -> None:
    """Raises ValueError for a setting that only launched servers read, as the run attaches to running ones."""
    default_section, kind = base.get_config().sglang, "urls" if section.urls else "router"
    for name in _LAUNCH_SETTINGS:
        if section[name] != default_section[name]:
            raise ValueError(
                f"sglang.{name} is {section[name]!r}, but sglang.{kind} attaches to servers that run already. Give it "
                f"to what starts them, as `python -m experiments.serve`, and leave it at {default_section[name]!r} here"
            )


def is_address(url: str) -> bool:
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return address.scheme in ("http", "https") and bool(address.host)


def launch(config: ConfigDict, log_folder: Path, dtype: str) -> LaunchSettings:
    """How to launch servers. Without sglang.python they run on the interpreter of `make sglang`, on the CPU."""
    section = config.sglang
    return LaunchSettings(
        section.python or str(find_default_python()),
        log_folder,
        config.engine.max_length,
        dtype,
        device=section.device or ("" if section.python else "cpu"),
        max_requests=config.engine.slots or MAX_SLOTS,
        routes=asks_routes(config),
        **{setting: section[setting] for setting in ("flags", "port", "release_memory", "servers")},
    )


def check_servers(config: ConfigDict) -> None:
    """Raises ValueError if SGLang servers are to be launched but the interpreter has no SGLang."""
    if config.engine.name != "sglang" or config.sglang.urls or config.sglang.router:
        return
    python = config.sglang.python or str(find_default_python())
    try:
        probe_process = subprocess.run(
            [python, "-I", "-c", _SGLANG_PROBE], capture_output=True, stdin=subprocess.DEVNULL, timeout=_PROBE_TIMEOUT_S
        )
        has_sglang = probe_process.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        has_sglang = False
    if not has_sglang:
        raise ValueError(
            f"engine.name is 'sglang', but {python!r} has no SGLang. Run `make sglang` for one without a GPU, name "
            "your own in --config.sglang.python, attach to running servers with --config.sglang.urls, or set "
            "--config.engine=local"
        )


def find_default_python() -> Path:
    """The interpreter that `make sglang` installs."""
    return warm_start.find_cache().absolute() / "sglang" / "bin" / "python"


ENGINES: dict[str, Callable[[ConfigDict, ModelConfig], Engine]] = {"local": build_local, "sglang": build_sglang_engine}


MAX_SLOTS: int = inspect.signature(LocalEngine).parameters["slots"].default
_CACHE_SHARE = 0.5  # a chosen cache takes at most this share of the memory beside the weights
_LENGTH_STEP = 128  # tokens; a recommended length is a multiple of it


class CacheTooLarge(ValueError):
    """A KV cache does not fit. `reason` says why; `fitting_slots` is a number that would fit, 0 if none would."""

    def __init__(self, reason: str, fitting_slots: int, flag_hint: str):
        super().__init__(f"{reason}; {flag_hint}")
        self.reason, self.fitting_slots = reason, fitting_slots

    def to_resumed_error(self) -> ValueError:
        """Returns the error for a run or evaluation that has begun, whose engine and lengths can no longer change."""
        if not self.fitting_slots:
            return ValueError(f"{self.reason}; it can only be continued on a machine with more free memory")
        return ValueError(
            f"{self.reason}; add --config.engine.slots={self.fitting_slots} to go on, which changes the bits that are "
            "sampled, or go on where more memory is free"
        )


def choose_slot_count(config: ConfigDict, model: ModelConfig, *, trains: bool = True) -> int:
    """Returns engine.slots or, if it is None, as many slots as free memory holds, and prints that choice.

    A chosen number is the number of all lanes times a power of two, at most 128 and no more than limits.concurrency
    needs. Raises CacheTooLarge, which names flags that fit, if a number that is set does not fit, or not even one slot
    per lane. If free memory is not reported, nothing is refused. Without `trains`, no memory is kept free for training.
    """
    section, given_count, mesh = config.engine, config.engine.slots, make_mesh_of(config)
    # Without a mesh the engine's arrays are on the first device; CPU devices share the host's memory.
    available_bytes = measure_free_bytes(jax.local_devices()[:1] if mesh is None else list(mesh.devices.flat))
    slot_bytes = count_cache_bytes(model, 1, section.max_length) * (1 if mesh is None else mesh.shape["expert"])
    replica_count = 1 if mesh is None else len(list_replicas(mesh))
    lane_count = section.lanes * replica_count
    counts = [lane_count << k for k in range(8) if lane_count << k <= max(MAX_SLOTS, lane_count)]
    wanted_count = next((count for count in counts if count >= config.limits.concurrency), counts[-1])
    if available_bytes is None:
        return given_count or wanted_count
    weight_bytes, training_bytes = _count_weight_bytes(config, model, mesh)
    budget_bytes, users = available_bytes - weight_bytes, "the weights"
    if section.cache_tokens:
        _check_cache_tokens(section, slot_bytes, budget_bytes)
        return given_count or wanted_count
    if given_count and given_count * slot_bytes <= budget_bytes:
        return given_count
    spare_bytes = budget_bytes - training_bytes if trains else budget_bytes
    room_bytes = _CACHE_SHARE * spare_bytes
    least = lane_count if lane_count * slot_bytes <= spare_bytes else 0
    best = max((count for count in counts if count <= wanted_count and count * slot_bytes <= room_bytes), default=least)
    if given_count or not best:
        demand = given_count or lane_count
        if spare_bytes < budget_bytes and not given_count:
            budget_bytes, users = spare_bytes, f"the weights and {training_bytes / GIB:.1f} GiB for training"
        raise CacheTooLarge(
            f"the KV cache of engine.slots={demand} conversations of engine.max_length={section.max_length} tokens "
            f"takes {demand * slot_bytes / GIB:.1f} GiB, {max(0, budget_bytes) / GIB:.1f} GiB are free beside {users}",
            best,
            _suggest_flags(section, best, replica_count, math.floor(room_bytes / slot_bytes * section.max_length)),
        )
    CONSOLE.print(
        f"engine: {best} slots of {section.max_length} tokens, a KV cache of {best * slot_bytes / GIB:.2f} GiB; "
        f"{available_bytes / GIB:.1f} GiB are free"
    )
    return best


def _check_cache_tokens(section: ConfigDict, slot_bytes: int, budget_bytes: int) -> None:
    """Raises ValueError if so many tokens do not fit; `slot_bytes` are those of a whole conversation."""
    cache_bytes = section.cache_tokens * slot_bytes // section.max_length
    if cache_bytes > budget_bytes:
        fitting_count = max(0, budget_bytes) * section.max_length // slot_bytes // _LENGTH_STEP * _LENGTH_STEP
        raise ValueError(
            f"the KV cache of engine.cache_tokens={section.cache_tokens} takes {cache_bytes / GIB:.1f} GiB, "
            f"{max(0, budget_bytes) / GIB:.1f} GiB are free beside the weights; "
            + (f"set --config.engine.cache_tokens={fitting_count}, or " if fitting_count else "")
            + "sample on servers by --config.engine=sglang"
        )


def keep_slots(
    config: ConfigDict, path: Path, resume: bool, make: Callable[[ConfigDict], _T], slots_of: Callable[[_T], int | None]
) -> _T:
    """Calls `make` on the configuration, with the number of slots in engine.json, at `path`, if none is set.

    Free memory decides the number once per run or evaluation, because bits depend on it; one that does not `resume`
    decides anew. `slots_of` returns the number that was chosen, None for any engine but the local one. Raises
    ValueError for a damaged file, and for a number that no longer fits.
    """
    run_config = config.copy_and_resolve_references()
    if resume and config.engine.slots is None and (stored_count := read_slots(path)):
        run_config.engine.slots = stored_count
        CONSOLE.print(f"engine: {stored_count} slots, as it began")
    try:
        engine_owner = make(run_config)
    except CacheTooLarge as error:
        if not resume:
            raise
        raise error.to_resumed_error() from error
    if run_config.engine.slots is None and (chosen_count := slots_of(engine_owner)):
        write_json(path, add_checksum({"slots": chosen_count}))
    return engine_owner


def read_slots(path: Path) -> int | None:
    """Reads the number in engine.json; None if there is no such file. Raises ValueError for a damaged one."""
    if not path.exists():
        return None
    try:
        record = read_json(path)
        has_valid_checksum(record)
        if type(slot_count := record["slots"]) is int and slot_count > 0:
            return slot_count
        raise ValueError(f"slots is {slot_count!r}")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Delete it: slots are then chosen again.") from error


def count_cache_bytes(model: ModelConfig, slot_count: int, token_count: int) -> int:
    """Bytes of the KV cache of `slot_count` slots of `token_count` tokens."""
    arrays = jax.tree.leaves(jax.eval_shape(lambda: make_cache(model, 1, 1)))
    return slot_count * token_count * sum(array.size * array.dtype.itemsize for array in arrays)


def count_sampling_bytes(model: ModelConfig, mesh: Mesh) -> tuple[int, float]:
    """Bytes that the local engine takes of each device of a mesh: for its weights, and for a token of all caches."""
    sizes = (math.prod(spec.shape(model)) * copies(spec, mesh, SAMPLING_AXES) for spec in parameters.parameters(model))
    weight_bytes = sum(sizes) * np.dtype(model.dtype).itemsize // mesh.size
    return weight_bytes, count_cache_bytes(model, 1, 1) * mesh.shape["expert"] / mesh.size


def _suggest_flags(section: ConfigDict, slot_count: int, replicas: int, token_count: int) -> str:
    """Suggests flags that fit: fewer slots, or else one on each of the `replicas`, of `token_count` tokens together."""
    hint = "or sample on servers by --config.engine=sglang"
    if slot_count:
        return f"set --config.engine.slots={slot_count}, {hint}"
    if (cap := min(section.max_length, token_count // replicas // _LENGTH_STEP * _LENGTH_STEP)) >= _LENGTH_STEP:
        return f"set --config.engine.slots={replicas} --config.engine.lanes=1 --config.engine.max_length={cap}, {hint}"
    mesh_hint = "give mesh.tensor devices of mesh.data or mesh.fsdp, " if replicas > 1 else ""
    return f"{mesh_hint}choose a smaller model, {hint}"


def _count_weight_bytes(config: ConfigDict, model: ModelConfig, mesh: Mesh | None) -> tuple[int, int]:
    """Bytes of the weights that the policy and the engine hold, and of what training adds to them."""
    specs = parameters.parameters(model)
    policy_size = sum(math.prod(spec.shape(model)) * copies(spec, mesh) for spec in specs)
    engine_size = sum(math.prod(spec.shape(model)) * copies(spec, mesh, SAMPLING_AXES) for spec in specs)
    param_bytes, model_bytes = np.dtype(model.param_dtype).itemsize, np.dtype(model.dtype).itemsize
    if config.learner.lora.rank:
        return (policy_size + engine_size) * model_bytes, 0
    # Gradients and two moments. A second agent learns in turn, and adds weights and moments.
    return policy_size * param_bytes + engine_size * model_bytes, 3 * methods.agents(config) * policy_size * param_bytes

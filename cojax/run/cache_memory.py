"""Sizes the KV cache of the local engine from free memory, and refuses one that does not fit.

The cache holds the keys and values of `slots` conversations of `max_length` tokens. Weights come first: the policy's,
the engine's copy and, unless adapters are trained, a gradient and two moments. Of what is left a chosen cache takes at
most half, since an update needs the rest; a cache that is set may take it all.

On a mesh all bytes are those of its devices together. The engine has a copy of the weights on each replica, and a slot
is on one of them; what a replica's devices do not split, each of them holds.
"""

import inspect
import math
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.learner.rehearsal import GIB, free_bytes
from cojax.policy import parameters
from cojax.policy.config import ModelConfig
from cojax.policy.sharding import SAMPLING, copies, replicas
from cojax.policy.transformer import make_cache
from cojax.report.console import CONSOLE
from cojax.rollout.local import LocalEngine
from cojax.run import methods
from cojax.run.mesh import mesh_of
from cojax.storage.checksums import has_valid_checksum, with_checksum
from cojax.storage.files import read_json, write_json

MOST_SLOTS: int = inspect.signature(LocalEngine).parameters["slots"].default
_SHARE = 0.5  # of the memory beside the weights that a chosen cache may take
_STEP = 128  # tokens; a recommended length is a multiple of it


class CacheTooLarge(ValueError):
    """A KV cache that does not fit: `found` says so, and `fits` is a number of slots that does, 0 where none does."""

    def __init__(self, found: str, fits: int, flags: str):
        super().__init__(f"{found}; {flags}")
        self.found, self.fits = found, fits

    def once_begun(self) -> ValueError:
        """The error for a run or an evaluation that has begun, whose engine and lengths cannot change any more."""
        if not self.fits:
            return ValueError(f"{self.found}; what has begun goes on only where more memory is free")
        return ValueError(
            f"{self.found}; add --config.engine.slots={self.fits} to go on, which changes the bits that are sampled, "
            "or go on where more memory is free"
        )


def slots(config: ConfigDict, model: ModelConfig, *, trains: bool = True) -> int:
    """engine.slots, or, where it is None, as many as free memory holds; says what was chosen.

    A chosen number is that of all lanes times a power of two, at most 128 and no more than limits.concurrency needs.
    Raises CacheTooLarge, which names flags that fit, where a number that is set does not fit, or a single slot of each
    lane. Where free memory is not reported, nothing is refused. Without `trains` nothing is kept free for training.
    """
    section, given, mesh = config.engine, config.engine.slots, mesh_of(config)
    # Without a mesh the engine's arrays are on the first device; CPU devices share the host's memory.
    free = free_bytes(jax.local_devices()[:1] if mesh is None else list(mesh.devices.flat))
    one = cache_bytes(model, 1, section.max_length) * (1 if mesh is None else mesh.shape["expert"])
    parts = 1 if mesh is None else len(replicas(mesh))
    lanes = section.lanes * parts
    sizes = [lanes << k for k in range(8) if lanes << k <= max(MOST_SLOTS, lanes)]
    wanted = next((size for size in sizes if size >= config.limits.concurrency), sizes[-1])
    if free is None:
        return given or wanted
    weights, training = _weight_bytes(config, model, mesh)
    left, beside = free - weights, "the weights"
    if given and given * one <= left:
        return given
    spare = left - training if trains else left
    room = _SHARE * spare
    least = lanes if lanes * one <= spare else 0
    chosen = max((size for size in sizes if size <= wanted and size * one <= room), default=least)
    if given or not chosen:
        count = given or lanes
        if spare < left and not given:
            left, beside = spare, f"the weights and {training / GIB:.1f} GiB for training"
        raise CacheTooLarge(
            f"the KV cache of engine.slots={count} conversations of engine.max_length={section.max_length} tokens "
            f"takes {count * one / GIB:.1f} GiB, {max(0, left) / GIB:.1f} GiB are free beside {beside}",
            chosen,
            _flags(section, chosen, parts, math.floor(room / one * section.max_length)),
        )
    CONSOLE.print(
        f"engine: {chosen} slots of {section.max_length} tokens, a KV cache of {chosen * one / GIB:.2f} GiB; "
        f"{free / GIB:.1f} GiB are free",
        soft_wrap=True,
    )
    return chosen


def keep(path: Path, count: int) -> None:
    """Writes engine.json, the number of slots that were chosen."""
    write_json(path, with_checksum({"slots": count}))


def kept(path: Path) -> int | None:
    """The number in engine.json, None where there is no such file. Raises ValueError for a damaged one."""
    if not path.exists():
        return None
    try:
        record = read_json(path)
        has_valid_checksum(record)
        if type(count := record["slots"]) is int and count > 0:
            return count
        raise ValueError(f"slots is {count!r}")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}). Delete it: slots are chosen anew.") from error


def cache_bytes(model: ModelConfig, count: int, length: int) -> int:
    """Bytes of the KV cache of `count` slots of `length` tokens."""
    arrays = jax.tree.leaves(jax.eval_shape(lambda: make_cache(model, 1, 1)))
    return count * length * sum(array.size * array.dtype.itemsize for array in arrays)


def _flags(section: ConfigDict, chosen: int, parts: int, tokens: int) -> str:
    """The flags that fit: fewer slots, else one on each of `parts` replicas, all together of `tokens` tokens."""
    servers = "or sample on servers by --config.engine=sglang"
    if chosen:
        return f"set --config.engine.slots={chosen}, {servers}"
    if (length := min(section.max_length, tokens // parts // _STEP * _STEP)) >= _STEP:
        return (
            f"set --config.engine.slots={parts} --config.engine.lanes=1 --config.engine.max_length={length}, {servers}"
        )
    fewer = "give mesh.tensor devices of mesh.data or mesh.fsdp, " if parts > 1 else ""
    return f"{fewer}choose a smaller model, {servers}"


def _weight_bytes(config: ConfigDict, model: ModelConfig, mesh: Mesh | None) -> tuple[int, int]:
    """Bytes of the weights that the policy and the engine hold, and of what training adds to them."""
    rows = parameters.parameters(model)
    learned = sum(math.prod(row.shape(model)) * copies(row, mesh) for row in rows)
    sampled = sum(math.prod(row.shape(model)) * copies(row, mesh, SAMPLING) for row in rows)
    stored, computed = np.dtype(model.param_dtype).itemsize, np.dtype(model.dtype).itemsize
    if config.learner.lora.rank:
        return (learned + sampled) * computed, 0
    # Gradients and two moments; of another agent, which learns in turn, weights and moments.
    return learned * stored + sampled * computed, 3 * methods.agents(config) * learned * stored

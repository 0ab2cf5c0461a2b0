"""Memory rehearsal: runs the real update on a full batch before the first step, and discards the result.

So a run that does not fit into memory ends in its first minute, with advice, and not hours later. `choose_fastest`
compiles updates too, to choose what the backward pass keeps and how many rows go through the model at a time. The
functions below measure free memory and the memory that a compiled update takes.
"""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.learner.batch import DTYPES, RowShape, TrainBatch
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.policy.attention import count_block_bytes
from cojax.policy.parameters import get_leaf, parameters
from cojax.policy.sharding import SAMPLING_AXES, copies

AUTO_REMAT = "auto"  # in place of a remat's name: `choose_fastest` decides
GIB = 2**30
_FULL_TOKENS = 4096  # tokens of a device with which its matrix products are about as fast as with more


class DeviceMemoryError(RuntimeError):
    """The update does not fit into memory; the message says how much it needs and which settings to lower."""


def rehearse(learner: Learner, state: TrainState, group_sizes: Sequence[int]) -> TrainState:
    """Runs all programs of a step on full rows, and returns the same state, bit for bit.

    `group_sizes` are the numbers of trajectories of a step's groups, which decide the shape of its batch. Only one
    micro-batch is computed, because all use the same memory in turn. Only programs that the first step needs are
    compiled. `state` is donated. Raises DeviceMemoryError.
    """
    advice, live_count, devices = _write_advice(learner), np.int32(1), learner.placement.devices
    local_device_count = sum(device.process_index == jax.process_index() for device in devices)
    is_on_cpu = all(device.platform == "cpu" for device in devices)
    if is_on_cpu:
        check_fits(estimate_min_bytes(learner) * local_device_count // len(devices), advice)
    step_batch, pairs = make_full_batches(learner, group_sizes)
    try:
        if is_on_cpu:
            # `prepare` and `update_once` below reuse these compiled programs. No comprehension: it would be one more
            # function between the command and the loss.
            programs = []
            for lower in learner.lower_programs(state, step_batch, pairs).values():
                programs.append(lower().compile())
            check_fits(count_needed(programs, local_device_count, _count_batch_bytes(step_batch, pairs)), advice)
        batch = learner.prepare(state, step_batch, live_count)
        pair_arguments = None if pairs is None else (learner.prepare(state, pairs, live_count, hard=True), live_count)
        # An update keeps the old state if loss or gradient is not finite. Here neither is finite.
        state, _ = learner.update_once(state, batch, live_count, pair_arguments)
        return jax.block_until_ready(state)
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(f"the update does not fit: {str(error).splitlines()[0]}; {advice}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether the device's memory is too small. A kernel's own memory is not meant: fewer rows do not help it."""
    return re.search("RESOURCE_EXHAUSTED|Out of memory", str(error)) is not None and not re.search(
        "shared memory|vmem", str(error), re.IGNORECASE
    )


def choose_fastest(learner: Learner, state: TrainState, group_sizes: Sequence[int], beside: int = 0) -> Learner:
    """The learner whose update recomputes the least of those that fit into free memory.

    Its remat is the first of none, dots and layers that fits, and its `micro_rows` the most with which it fits, down to
    those of _FULL_TOKENS tokens a device; a loss that compares sequences keeps its `micro_rows`. If nothing fits or
    free memory is unknown, the remat is layers and `micro_rows` stays. `group_sizes` are as in `rehearse`; `beside`
    bytes stay free for arrays that are loaded later. Programs are compiled but not run.
    """
    devices = learner.placement.devices
    budget_bytes = measure_free_bytes(devices) or 0
    for remat in ("none", "dots", "layers"):
        needed_bytes, needing_rows = 0, 1
        for micro_rows in _list_micro_rows(learner):
            candidate = dataclasses.replace(learner, remat=remat, micro_rows=micro_rows)
            # An update takes at most in proportion less for fewer rows.
            min_bytes = max(estimate_min_bytes(candidate), needed_bytes * micro_rows // needing_rows)
            if min_bytes > budget_bytes:
                continue
            step_batch, pairs = make_full_batches(candidate, group_sizes)
            try:
                programs = [lower().compile() for lower in candidate.lower_programs(state, step_batch, pairs).values()]
            except jax.errors.JaxRuntimeError as error:  # the compiler for TPUs refuses what does not fit
                if is_out_of_memory(error):
                    continue
                raise
            array_bytes = _count_batch_bytes(step_batch, pairs) + beside
            needed_bytes, needing_rows = count_needed(programs, len(devices), array_bytes), micro_rows
            if needed_bytes <= budget_bytes:
                return candidate
    return dataclasses.replace(learner, remat="layers")


def count_engine_bytes(learner: Learner, state: TrainState) -> int:
    """Bytes that the engine's copies of the weights take on all devices together."""
    params, specs = learner.reference if learner.lora else state.params, parameters(learner.config)
    assert params is not None
    return sum(get_leaf(params, spec).nbytes * copies(spec, learner.mesh, SAMPLING_AXES) for spec in specs)


def _list_micro_rows(learner: Learner) -> list[int]:
    """The learner's `micro_rows` and its halves, as far as each device gets _FULL_TOKENS tokens or more."""
    loss, shards, counts = learner.objective.loss, learner.placement.row_shards, [learner.micro_rows]
    while not (loss.is_paired or loss.needs_groups or learner.hard is not None or counts[-1] % (2 * shards)):
        if counts[-1] // 2 * learner.row_length // learner.placement.token_shards < _FULL_TOKENS:
            break
        counts.append(counts[-1] // 2)
    return counts


def make_full_batches(learner: Learner, group_sizes: Sequence[int]) -> tuple[TrainBatch, TrainBatch | None]:
    """The full batch of a step, and that of its hard negatives if it learns from them."""
    step_batch = make_full_batch(learner.objective.rows(group_sizes, learner.shape), learner.shape)
    hard = learner.hard
    return step_batch, None if hard is None else make_full_batch(hard.rows(group_sizes, learner.shape), learner.shape)


def estimate_min_bytes(learner: Learner) -> int:
    """A lower bound on the bytes that an update needs, on all devices together.

    These are the layers' inputs in a micro-batch, which every backward pass keeps, or on CPUs the attention scores of
    a block of queries, whichever is more. So an update that is far too large is refused before it is compiled, which
    would take long and with jaxlib 0.12 may end the process.
    """
    config, row_count, row_length = learner.config, learner.micro_rows, learner.row_length
    inputs = config.num_hidden_layers * row_count * row_length * config.hidden_size * jnp.dtype(config.dtype).itemsize
    is_on_cpu = all(device.platform == "cpu" for device in learner.placement.devices)
    return max(inputs, row_count * config.num_attention_heads * count_block_bytes(row_length) if is_on_cpu else 0)


def _count_batch_bytes(*batches: TrainBatch | None) -> int:
    """Bytes of batches, which are in memory twice: on the host, and on the devices."""
    return 2 * sum(array.nbytes for array in jax.tree.leaves(batches))


def make_full_batch(rows: int, shape: RowShape) -> TrainBatch:
    """A batch of completely full rows with infinite weights, so that neither loss nor gradient is finite.

    Its arrays are views of one row, which take no memory.
    """
    row_length, routes = shape.length, shape.routes
    positions = np.arange(row_length, dtype=np.int32)
    one_row: dict[str, Any] = {name: dtype.type(0) for name, dtype in DTYPES.items()} | {
        "positions": positions,
        "segment_ids": np.int32(1),
        "group_sizes": np.int32(1),
        "lengths": np.int32(row_length - 1),
        "advantages": np.float32(1),
        "weights": np.where(positions > 0, np.float32(np.inf), np.float32(0)),
    }
    columns: dict[str, Any] = {name: np.broadcast_to(values, (rows, row_length)) for name, values in one_row.items()}
    if routes is not None:
        columns["routes"] = np.broadcast_to(routes.make_unknown(), (rows, row_length, *routes.make_unknown().shape))
    return TrainBatch(**columns)


def _write_advice(learner: Learner) -> str:
    """Advises settings that make an update smaller and are not in use yet."""
    hints = [f"lower learner.micro_rows ({learner.micro_rows}) or learner.row_length ({learner.row_length})"]
    hints += ["set learner.remat=layers"] if learner.remat in ("none", "dots") else []
    hints += ["set model.dtype=bfloat16"] if learner.config.dtype == "float32" else []
    hints += ["set optimizer.moments_dtype=bfloat16 or learner.lora.rank=16"] if learner.lora is None else []
    return ", ".join([*hints, "or spread it over more devices by mesh"])


def check_fits(needed: int, advice: str) -> None:
    """Raises DeviceMemoryError if an update needs more of this host's memory than is available.

    It is for CPU devices: there the system grants memory that it does not have, and later kills the process without a
    message. It does nothing if the system does not report available memory.
    """
    budget = measure_available_bytes()
    if budget is not None and needed > budget:
        raise DeviceMemoryError(
            f"the update needs {needed / GIB:.1f} GiB beside what is loaded, and {budget / GIB:.1f} GiB are available; "
            f"{advice}"
        )


def count_needed(programs: Sequence[jax.stages.Compiled], device_count: int, array_bytes: int = 0) -> int:
    """Bytes that the largest program takes on `device_count` devices that share one memory, plus `array_bytes`.

    A program takes memory for temporaries and for results that do not reuse an argument's memory. `array_bytes` are
    those of arrays that are yet to be allocated.
    """
    usages = [usage for program in programs if (usage := program.memory_analysis())]
    needs = [usage.temp_size_in_bytes + usage.output_size_in_bytes - usage.alias_size_in_bytes for usage in usages]
    return array_bytes + device_count * max(needs, default=0)


def measure_free_bytes(devices: Sequence[jax.Device]) -> int | None:
    """Bytes that are free on `devices` together.

    Every device counts as the fullest one; CPU devices share this host's memory. None if free memory is not reported,
    and with several processes, which would have to agree on it.
    """
    if jax.process_count() > 1:
        return None
    if all(device.platform == "cpu" for device in devices):
        return measure_available_bytes()
    free_bytes = []
    for device in devices:
        memory_stats = device.memory_stats()
        if memory_stats and "bytes_limit" in memory_stats and "bytes_in_use" in memory_stats:
            free_bytes.append(memory_stats["bytes_limit"] - memory_stats["bytes_in_use"])
    return len(devices) * min(free_bytes) if free_bytes else None


def measure_available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that this process can still take: the machine's, or what its control groups leave, if that is less.

    Cached files count as available. None if the system does not report it (it is not Linux).
    """
    match = re.search(r"MemAvailable:\s+(\d+) kB", _read_system_file(proc / "meminfo"))
    candidate_bytes = [int(match[1]) * 1024] if match else []
    for cgroup_folder in _list_memory_cgroups(proc, cgroups):
        limit_bytes = _read_number(cgroup_folder, "memory.max", "memory.limit_in_bytes")
        usage_bytes = _read_number(cgroup_folder, "memory.current", "memory.usage_in_bytes")
        if limit_bytes is not None and usage_bytes is not None:
            candidate_bytes.append(max(0, limit_bytes - usage_bytes + _read_cached_bytes(cgroup_folder)))
    return min(candidate_bytes, default=None)


def _list_memory_cgroups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of those that contain them, of version 1 or 2."""
    for line in _read_system_file(proc / "self" / "cgroup").splitlines():
        _, controllers, cgroup_path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        # In a container the path may be that of the host; the container's own limit is then at the root.
        cgroup = root / cgroup_path.strip("/")
        yield from (folder for folder in (cgroup, *cgroup.parents) if folder.is_relative_to(root) and folder.is_dir())


def _read_system_file(file: Path) -> str:
    """The content of a system file; "" if there is none."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _read_number(folder: Path, *file_names: str) -> int | None:
    """The number in the first of these files that holds one."""
    contents = (_read_system_file(folder / file_name).strip() for file_name in file_names)
    return next((int(content) for content in contents if content.isdecimal()), None)


def _read_cached_bytes(folder: Path) -> int:
    """Bytes of cached file pages, which the kernel frees first."""
    count_by_name = dict(re.findall(r"^(\w+) (\d+)$", _read_system_file(folder / "memory.stat"), re.MULTILINE))
    # In version 1 these names count a group's own pages, and total_… those of all groups within it.
    prefix = "total_" if "total_inactive_file" in count_by_name else ""
    return sum(int(count_by_name.get(prefix + counter_name, 0)) for counter_name in ("inactive_file", "active_file"))

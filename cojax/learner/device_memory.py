"""Measures free memory and the memory that a compiled update takes, and refuses an update that does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

GIB = 2**30
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class DeviceMemoryError(RuntimeError):
    """The update does not fit into memory; the message says how much it needs and which settings to lower."""


def check_fits(need: int, advice: str) -> None:
    """Raises DeviceMemoryError if an update needs more of this host's memory than is available.

    For CPU devices only: there the system grants memory that it does not have, and later kills the process without a
    message. Does nothing if the system does not report the available memory.
    """
    there = available_bytes()
    if there is not None and need > there:
        raise DeviceMemoryError(
            f"the update needs {need / GIB:.1f} GiB beside what is loaded, and {there / GIB:.1f} GiB are available; "
            f"{advice}"
        )


def needed_bytes(programs: Sequence[jax.stages.Compiled], devices: int, arrays: int = 0) -> int:
    """Bytes that the largest of the programs takes on `devices` devices that share a memory, and `arrays` more.

    `arrays` are the bytes of arrays that are yet to be allocated.
    """
    return arrays + devices * max(extra_bytes(program) for program in programs)


def extra_bytes(program: jax.stages.Compiled) -> int:
    """Bytes on each device beside the program's arguments: temporaries, and results that reuse no argument's memory."""
    sizes = program.memory_analysis()
    if sizes is None:
        return 0
    return sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes


def free_bytes(devices: Sequence[jax.Device]) -> int | None:
    """Bytes that are free on `devices` together.

    Every device is taken to have as little as the fullest one; CPU devices share this host's memory. None if free
    memory is not reported, and with several processes, which would have to agree on it.
    """
    if jax.process_count() > 1:
        return None
    if all(device.platform == "cpu" for device in devices):
        return available_bytes()
    left = []
    for device in devices:
        sizes = device.memory_stats()
        if sizes and "bytes_limit" in sizes and "bytes_in_use" in sizes:
            left.append(sizes["bytes_limit"] - sizes["bytes_in_use"])
    return len(devices) * min(left) if left else None


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Bytes that this process can still take: the machine's, or those that its control groups leave if they are fewer.

    Cached files count as available. None where the system does not report it (it is not Linux).
    """
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
    except OSError:
        return None
    limits = [int(found[1]) * 1024] if found else []
    for folder in _groups(proc, cgroups):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            limits.append(max(0, limit - used + _cached(folder)))
    return min(limits, default=None)


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of those that contain them, of version 1 or 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        # In a container the path may be that of the host; the container's own limit is then at the root.
        inner = root / path.strip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(root) and folder.is_dir())


def _number(folder: Path, *names: str) -> int | None:
    """The number in the first of these files that holds one."""
    for name in names:
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):
            continue
    return None


def _cached(folder: Path) -> int:
    """Bytes of cached file pages, which the kernel frees first."""
    try:
        text = (folder / "memory.stat").read_text()
    except OSError:
        return 0
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
    # In version 1 these names count a group's own pages, and total_… those of all groups within it.
    prefix = "total_" if "total_inactive_file" in counts else ""
    return counts.get(f"{prefix}inactive_file", 0) + counts.get(f"{prefix}active_file", 0)

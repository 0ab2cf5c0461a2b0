"""How much memory there is, how much a compiled program takes, and what to do where the one exceeds the other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax

GIB = 2**30
_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class OutOfMemory(RuntimeError):
    """The update does not fit; the message says what it needs, what there is, and which settings to lower."""


def check_fits(programs: Sequence[jax.stages.Compiled], devices: int, arrays: int, advice: str) -> None:
    """Raises OutOfMemory where the largest of the programs, run on `devices` parts of this host's own memory beside
    `arrays` bytes that are yet to be made, needs more than is available.

    For the CPU, where memory that is promised and not there ends the process without a word. Silent where the system
    does not say what is available.
    """
    there, need = available(), needed(programs, devices, arrays)
    if there is not None and need > there:
        raise OutOfMemory(
            f"the update needs {need / GIB:.1f} GiB beside what is loaded, and {there / GIB:.1f} GiB are available; "
            f"{advice}"
        )


def needed(programs: Sequence[jax.stages.Compiled], devices: int, arrays: int = 0) -> int:
    """Bytes that the largest of the programs takes on `devices` devices together, beside `arrays` yet to be made."""
    return arrays + devices * max(own_bytes(program) for program in programs)


def own_bytes(program: jax.stages.Compiled) -> int:
    """Bytes on each device beside the program's arguments: temporaries, and results that take no argument's place."""
    sizes = program.memory_analysis()
    if sizes is None:
        return 0
    return sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes


def free(devices: Sequence[jax.Device]) -> int | None:
    """Bytes that are free on `devices` together: as many on each as on the fullest one, or of this host's memory where
    they are its processors. None where that is not told, and where several processes would have to agree on it."""
    if jax.process_count() > 1:
        return None
    if all(device.platform == "cpu" for device in devices):
        return available()
    left = []
    for device in devices:
        told = device.memory_stats()
        if told and "bytes_limit" in told and "bytes_in_use" in told:
            left.append(told["bytes_limit"] - told["bytes_in_use"])
    return len(devices) * min(left) if left else None


def available(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Bytes this process can still take: the machine's, or what its control groups leave if that is less.

    Files that are only cached count as available. None where the system does not say (it is not Linux).
    """
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text())
    except OSError:
        return None
    rooms = [int(found[1]) * 1024] if found else []
    for folder in _groups(proc, cgroups):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            rooms.append(max(0, limit - used + _cached(folder)))
    return min(rooms, default=None)


def _groups(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The folders of this process's control groups and of those around them, of either version."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        # Within a container the path may be that of the host; its own limit then stands at the root.
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
    """Bytes of file pages, which the kernel gives up first."""
    try:
        text = (folder / "memory.stat").read_text()
    except OSError:
        return 0
    counts = {name: int(count) for name, count in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
    # Version 1 counts a group's own pages under these names, and those of all within it under total_….
    prefix = "total_" if "total_inactive_file" in counts else ""
    return counts.get(f"{prefix}inactive_file", 0) + counts.get(f"{prefix}active_file", 0)

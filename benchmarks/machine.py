"""Measures this machine: matrix products and memory bandwidth, once in a process, and the memory used."""

import functools
import os
import re
import resource
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.results import Row, Spread, time_calls
from cojax.compile.targets import CHIPS

_REPEAT_COUNT = 3
_ENOUGH_SECONDS = 0.05  # a product that takes longer is large enough


@functools.cache
def measure_matmul_rate(dtype: str) -> float:
    """Operations a second of a large square matrix product in `dtype`: the best over sizes 1024, 2048, … 16384."""
    best_rate = 0.0
    for size in (1024, 2048, 4096, 8192, 16_384):
        keys = jax.random.split(jax.random.key(0))
        left, right = (jax.random.normal(key, (size, size), jnp.dtype(dtype)) for key in keys)
        compute_product = jax.jit(functools.partial(jnp.dot, precision="highest" if dtype == "float32" else None))
        _, seconds = time_calls(lambda: jax.block_until_ready(compute_product(left, right)), _REPEAT_COUNT)  # noqa: B023
        best_rate = max(best_rate, 2 * size**3 / min(seconds.values))
        if min(seconds.values) > _ENOUGH_SECONDS:
            break
    return best_rate


@functools.cache
def measure_memory_bandwidth() -> float:
    """The device's memory bandwidth in bytes a second: the best of a sum (bytes read) and a copy (read and written).

    The arrays are far larger than any cache: 256 MB on a CPU, 2 GB on an accelerator.
    """
    element_count = 64 * 2**20 if jax.default_backend() == "cpu" else 512 * 2**20
    array = jax.block_until_ready(jnp.ones((1024, element_count // 1024), jnp.float32))
    sum_rows, copy_array = jax.jit(lambda x: jnp.sum(x, axis=1)), jax.jit(lambda x: -x)
    _, sum_seconds = time_calls(lambda: jax.block_until_ready(sum_rows(array)), _REPEAT_COUNT)
    _, copy_seconds = time_calls(lambda: jax.block_until_ready(copy_array(array)), _REPEAT_COUNT)
    return max(array.nbytes / min(sum_seconds.values), 2 * array.nbytes / min(copy_seconds.values))


def compute_bound_s(operations: float, read_bytes: float, rate: float, bandwidth: float) -> float:
    """The least time that this machine could take: the longer of computing `operations` operations at `rate` operations
    a second, and reading `read_bytes` bytes at `bandwidth` bytes a second (the roofline model, doi
    10.1145/1498765.1498785)."""
    return max(operations / rate, read_bytes / bandwidth)


def find_nominal_rates(device_kind: str, dtype: str) -> tuple[float, float] | None:
    """The vendor's operations a second of matrix products in `dtype`, and bytes a second of the device's memory; None
    where no figures are published here."""
    chip = next((chip for chip in CHIPS.values() if chip.kind == device_kind), None)
    return None if chip is None or dtype != "bfloat16" else (chip.flops, chip.bandwidth)


def compute_shares(seconds: Spread, operations: float, read_bytes: float, dtype: str) -> Row:
    """`compute_bound_s` over the seconds that it took: `share_of_bound` at the rates measured on this machine,
    `share_of_nominal` at the vendor's, None where these are not known."""

    def divide_bound(rate: float, bandwidth: float) -> Spread:
        bound_s = compute_bound_s(operations, read_bytes, rate, bandwidth)
        return seconds.map(lambda value: bound_s / value)

    nominal_rates = find_nominal_rates(jax.devices()[0].device_kind, dtype)
    return {
        "share_of_bound": divide_bound(measure_matmul_rate(dtype), measure_memory_bandwidth()),
        "share_of_nominal": None if nominal_rates is None else divide_bound(*nominal_rates),
    }


def choose_lanes(slots: int, lane_count: int | None) -> int:
    """The given number of lanes; without it, on a CPU, the most that divide the slots and are no more than the cores,
    else one. Raises ValueError if the given number does not divide the slots."""
    if lane_count is not None:
        if slots % lane_count:
            raise ValueError(f"--lanes={lane_count} does not divide {slots} conversations; give a divisor")
        return lane_count
    cores = os.cpu_count() or 1
    return max(n for n in range(1, cores + 1) if slots % n == 0) if jax.default_backend() == "cpu" else 1


def read_peak_memory() -> dict[str, float]:
    """Peaks so far, in GB (10⁹ bytes): `peak_rss_gb` of this process, `peak_device_gb` of an accelerator's memory."""
    # On Linux ru_maxrss is inherited from the parent process, so VmHWM, the program's own peak, is read there.
    peak_bytes = _read_status_bytes("VmHWM")
    if peak_bytes is None:
        peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    peak_by_name = {"peak_rss_gb": peak_bytes / 1e9}
    statistics = jax.local_devices()[0].memory_stats()
    if statistics is not None and "peak_bytes_in_use" in statistics:
        peak_by_name["peak_device_gb"] = statistics["peak_bytes_in_use"] / 1e9
    return peak_by_name


def read_resident_memory() -> dict[str, float]:
    """`resident_gb`: the memory that this process holds now, in GB; empty if the system does not report it."""
    resident_bytes = _read_status_bytes("VmRSS")
    return {} if resident_bytes is None else {"resident_gb": resident_bytes / 1e9}


def _read_status_bytes(field_name: str) -> int | None:
    """The bytes of a field of /proc/self/status; None if there is no such field."""
    try:
        match = re.search(rf"{field_name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None

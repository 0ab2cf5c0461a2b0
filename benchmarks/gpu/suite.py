"""The suite: measurements in processes that are watched, then the main command for as long as the minutes last.

A part that has a result is not measured again, so that the same command goes on where it was stopped. One that failed
is tried again after all others.
"""

import math
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks.gpu import children, records, runs
from benchmarks.gpu.parts import PARTS
from benchmarks.results import Row
from cojax.durable import open_own_file
from cojax.run.machine import read_versions

KIT = "build/gpu-kit/content"
# The share of the minutes that measurements may have; the rest is for the main command.
_MEASURING_SHARE = 0.65
_START_TIMEOUT_S = 90.0  # seconds in which a process begins its first part: it imports JAX and finds the card


def gpu(*, minutes: int = 8, out: str = "build/gpu", kit: str = KIT) -> list[Row]:
    """A row for each part: its main figures, or why there are none. `out` gets a file for each.

    `kit` is the folder that `make gpu-kit` made: what a CPU computed, and the pretrained model.
    """
    try:
        return _measure_within(60.0 * minutes, Path(out).resolve(), Path(kit).resolve())
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _measure_within(duration_s: float, results_folder: Path, kit_folder: Path) -> list[Row]:
    started_at = time.monotonic()
    results_folder.mkdir(parents=True, exist_ok=True)
    for part_names in _list_open_parts(results_folder):
        _measure_parts(part_names, kit_folder, results_folder, started_at + duration_s * _MEASURING_SHARE)
    runs.play_runs(kit_folder, results_folder, started_at + duration_s)
    return [
        _summarise_part(part_name, records.read_record(results_folder, part_name)) for part_name in (*PARTS, *runs.RUNS)
    ]


def _list_open_parts(results_folder: Path) -> Iterator[list[str]]:
    """Names of parts to measure, section by section: those without a result, then those that failed before."""
    record_by_part = {part_name: records.read_record(results_folder, part_name) for part_name in PARTS}
    for has_failed in (False, True):
        open_parts = [
            part_name
            for part_name, record in record_by_part.items()
            if (record is not None) == has_failed and not _has_result(record)
        ]
        for _, part_names in groupby(open_parts, key=lambda part_name: PARTS[part_name].section):
            yield list(part_names)


def _has_result(record: records.Record | None) -> bool:
    return record is not None and "rows" in record


def _measure_parts(part_names: Sequence[str], kit_folder: Path, results_folder: Path, deadline: float) -> None:
    """Has the parts measured by one process after another: one that hangs or dies costs the part that it was at."""
    remaining_names = list(part_names)
    while remaining_names and time.monotonic() < deadline:
        done_count = _run_one_process(remaining_names, kit_folder, results_folder, deadline)
        del remaining_names[:done_count]


def _run_one_process(part_names: Sequence[str], kit_folder: Path, results_folder: Path, deadline: float) -> int:
    """The number of parts that are done with."""
    command = ["-m", "benchmarks.gpu.section", f"--out={results_folder}", f"--kit={kit_folder}", *part_names]
    with open(results_folder / "log.txt", "ab", opener=open_own_file) as log:
        child = children.start_child(command, stdout=subprocess.PIPE, stderr=log, text=True)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_pass_on, args=(child, lines), daemon=True).start()
    done_count, part_start, timeout_s = 0, time.monotonic(), _START_TIMEOUT_S
    try:
        while True:
            try:
                line = lines.get(timeout=max(0.0, min(part_start + timeout_s, deadline) - time.monotonic()))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    return len(part_names)  # no minutes are left for measurements
                return done_count + _record_failure(
                    results_folder, part_names[done_count], f"it did not end within {timeout_s:.0f} s", timeout_s
                )
            event, _, part_name = line.partition(" ")
            part_start = time.monotonic()
            if event == "begin":
                timeout_s = PARTS[part_name].timeout_s
                print(f"{part_name} …", file=sys.stderr, flush=True)
            elif event == "end":
                done_count, timeout_s = done_count + 1, _START_TIMEOUT_S
            elif done_count < len(part_names):
                exit_status = child.wait()
                return done_count + _record_failure(
                    results_folder,
                    part_names[done_count],
                    f"its process ended with status {exit_status}; see log.txt",
                    0.0,
                )
            else:
                return done_count
    finally:
        children.end_child(child)


def _pass_on(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line.strip())
    lines.put("")


def _record_failure(results_folder: Path, part_name: str, reason: str, seconds: float) -> int:
    records.write_failure(results_folder, part_name, reason, seconds, read_versions())
    return 1


def _summarise_part(part_name: str, record: records.Record | None) -> Row:
    if record is None:
        return {"part": part_name, "result": "no time was left"}
    if "failed" in record:
        return {"part": part_name, "result": record["failed"]}
    row = record["rows"][-1]
    figures = (f"{key.replace('_', ' ')} {row[key]:.3g}" for key in _HEADLINE_FIGURES if _is_number(row.get(key)))
    return {"part": part_name, "result": ", ".join(figures) or "measured", "seconds": record["seconds"]}


_HEADLINE_FIGURES = (
    "matmul_tflops_per_second", "bandwidth_gb_per_second", "logits_difference", "grad_norm_difference",
    "update_seconds", "mfu", "decode_seconds", "tokens_per_second", "share_of_bound", "peak_device_gb", "predicted_gb",
    "both_passes_ms", "steps", "step_seconds",
)  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

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
from cojax.durable import own_file
from cojax.run.machine import versions_and_commit

KIT = "build/gpu-kit/content"
# The share of the minutes that measurements may have; the rest is for the main command.
_MEASURING = 0.65
_START = 90.0  # seconds in which a process begins its first part: it imports JAX and finds the card


def gpu(*, minutes: int = 8, out: str = "build/gpu", kit: str = KIT) -> list[Row]:
    """A row for each part: its main figures, or why there are none. `out` gets a file for each.

    `kit` is the folder that `make gpu-kit` made: what a CPU computed, and the pretrained model.
    """
    try:
        return _measured_within(60.0 * minutes, Path(out).resolve(), Path(kit).resolve())
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _measured_within(seconds: float, out: Path, kit: Path) -> list[Row]:
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    for names in _open(out):
        _measure(names, kit, out, began + seconds * _MEASURING)
    runs.play(kit, out, began + seconds)
    return [_told(name, records.read(out, name)) for name in (*PARTS, *runs.RUNS)]


def _open(out: Path) -> Iterator[list[str]]:
    """Names of parts to measure, section by section: those without a result, then those that failed before."""
    found = {name: records.read(out, name) for name in PARTS}
    for again in (False, True):
        left = [name for name, record in found.items() if (record is not None) == again and not _measured(record)]
        for _, names in groupby(left, key=lambda name: PARTS[name].section):
            yield list(names)


def _measured(record: records.Record | None) -> bool:
    return record is not None and "rows" in record


def _measure(names: Sequence[str], kit: Path, out: Path, until: float) -> None:
    """Has the parts measured by one process after another: one that hangs or dies costs the part that it was at."""
    left = list(names)
    while left and time.monotonic() < until:
        done = _one_process(left, kit, out, until)
        del left[:done]


def _one_process(names: Sequence[str], kit: Path, out: Path, until: float) -> int:
    """The number of parts that are done with."""
    command = ["-m", "benchmarks.gpu.section", f"--out={out}", f"--kit={kit}", *names]
    with open(out / "log.txt", "ab", opener=own_file) as log:
        child = children.start(command, stdout=subprocess.PIPE, stderr=log, text=True)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_pass_on, args=(child, lines), daemon=True).start()
    done, began, allowed = 0, time.monotonic(), _START
    try:
        while True:
            try:
                line = lines.get(timeout=max(0.0, min(began + allowed, until) - time.monotonic()))
            except queue.Empty:
                if time.monotonic() >= until:
                    return len(names)  # no minutes are left for measurements
                return done + _failed(out, names[done], f"it did not end within {allowed:.0f} s", allowed)
            word, _, name = line.partition(" ")
            began = time.monotonic()
            if word == "begin":
                allowed = PARTS[name].seconds
                print(f"{name} …", file=sys.stderr, flush=True)
            elif word == "end":
                done, allowed = done + 1, _START
            elif done < len(names):
                status = child.wait()
                return done + _failed(out, names[done], f"its process ended with status {status}; see log.txt", 0.0)
            else:
                return done
    finally:
        children.end(child)


def _pass_on(child: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line.strip())
    lines.put("")


def _failed(out: Path, name: str, reason: str, seconds: float) -> int:
    records.write_failure(out, name, reason, seconds, versions_and_commit())
    return 1


def _told(name: str, record: records.Record | None) -> Row:
    if record is None:
        return {"part": name, "result": "no time was left"}
    if "failed" in record:
        return {"part": name, "result": record["failed"]}
    row = record["rows"][-1]
    figures = (f"{key.replace('_', ' ')} {row[key]:.3g}" for key in _HEADLINES if _is_number(row.get(key)))
    return {"part": name, "result": ", ".join(figures) or "measured", "seconds": record["seconds"]}


_HEADLINES = (
    "matmul_tflops_per_second", "bandwidth_gb_per_second", "logits_difference", "grad_norm_difference",
    "update_seconds", "mfu", "decode_seconds", "tokens_per_second", "share_of_bound", "peak_device_gb", "predicted_gb",
    "steps", "step_seconds",
)  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

"""Runs the named parts one after another and writes a result of each: python -m benchmarks.gpu.section PART …

The suite starts it in a process of its own and watches it: a line on standard output says what begins and what ended.
"""

import argparse
import contextlib
import gc
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92")

import jax

from benchmarks.gpu import records
from benchmarks.gpu.parts import PARTS
from cojax.learner.rehearsal import is_out_of_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    options = parser.parse_args()
    report_stream = sys.stdout
    # Compilation must take the same time whatever was compiled here before.
    jax.config.update("jax_enable_compilation_cache", False)
    for part_name in options.parts:
        print(f"begin {part_name}", file=report_stream, flush=True)
        with contextlib.redirect_stdout(sys.stderr):
            measure_part(part_name, options.kit, options.out)
        print(f"end {part_name}", file=report_stream, flush=True)


def measure_part(part_name: str, kit_folder: Path, results_folder: Path) -> None:
    """Whatever stops a part is its result: the others follow."""
    started_at = time.monotonic()
    try:
        rows = PARTS[part_name].run(kit_folder)
    except (Exception, MemoryError) as error:
        records.write_failure(results_folder, part_name, _explain_failure(error), time.monotonic() - started_at)
    else:
        records.write_result(results_folder, part_name, rows, time.monotonic() - started_at)
    jax.clear_caches()
    gc.collect()


def _explain_failure(error: Exception) -> str:
    message = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError) or is_out_of_memory(error):
        return f"it does not fit into the card's memory: {message}"
    return message if isinstance(error, ValueError) else f"{type(error).__name__}: {message}"


if __name__ == "__main__":
    main()

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("parts", nargs="+", choices=list(PARTS))
    given = parser.parse_args()
    lines = sys.stdout
    # Compilation must take the same time whatever was compiled here before.
    jax.config.update("jax_enable_compilation_cache", False)
    for name in given.parts:
        print(f"begin {name}", file=lines, flush=True)
        with contextlib.redirect_stdout(sys.stderr):
            measure(name, given.kit, given.out)
        print(f"end {name}", file=lines, flush=True)


def measure(name: str, kit: Path, out: Path) -> None:
    """Whatever stops a part is its result: the others follow."""
    began = time.monotonic()
    try:
        rows = PARTS[name].run(kit)
    except (Exception, MemoryError) as error:
        records.write_failure(out, name, _reason(error), time.monotonic() - began)
    else:
        records.write(out, name, rows, time.monotonic() - began)
    jax.clear_caches()
    gc.collect()


def _reason(error: BaseException) -> str:
    said = " ".join(str(error).split())[:300]
    if "RESOURCE_EXHAUSTED" in said or "Out of memory" in said or isinstance(error, MemoryError):
        return f"it does not fit into the card's memory: {said}"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"


if __name__ == "__main__":
    main()

"""One run on one core: python -m experiments.study.launch CORE PARENT ARGUMENT…

Becomes `python ARGUMENT…`, on that core alone ("-": wherever the system likes), and is asked to stop, with a
checkpoint, when the process PARENT is gone.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

from environments.worker import kernel

# One thread for all arithmetic: what a thread adds up in parts depends on how many there are.
THREADS: Mapping[str, str] = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "NPROC": "1",  # XLA's own pool
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JAX_PLATFORMS": "cpu",
}


def main(arguments: list[str]) -> None:
    core, parent, *command = arguments
    if sys.platform == "linux":
        kernel.prctl(kernel.PDEATHSIG, signal.SIGTERM)
        if core != "-":
            os.sched_setaffinity(0, {int(core)})
    if os.getppid() != int(parent):  # it died before it could be watched
        sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])

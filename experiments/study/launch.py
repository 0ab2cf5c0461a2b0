"""Starts one run on one core: python -m experiments.study.launch CORE PARENT ARGUMENT…

The process becomes `python ARGUMENT…` on that core alone ("-": on any core). When the process PARENT ends, it gets
SIGTERM, which makes a run stop with a checkpoint.
"""

import os
import signal
import sys
from collections.abc import Mapping

from cojax import worlds
from cojax.host import same_bits

# Results are equal to the bit on x86-64 hosts with AVX2 and FMA, as far as tested (docs/bits.md).
VARIABLES: Mapping[str, str] = {
    "XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in same_bits.FLAGS.items()),
    **same_bits.ENVIRONMENT_VARIABLES,
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JAX_PLATFORMS": "cpu",
}
# Other variables that decide bits. No run gets them, whatever the shell sets.
OTHER_VARIABLES = ("JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def main(arguments: list[str]) -> None:
    core_text, parent_pid, *command = arguments
    if sys.platform == "linux":
        kernel = worlds.import_part("worker.kernel")
        kernel.prctl(kernel.PDEATHSIG, signal.SIGTERM)
        if core_text != "-":
            os.sched_setaffinity(0, {int(core_text)})
    if os.getppid() != int(parent_pid):  # PARENT ended before prctl was called
        sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])

"""Starts one run on one core: python -m experiments.study.launch CORE PARENT ARGUMENT…

The process becomes `python ARGUMENT…` on that core alone ("-": on any core). When the process PARENT ends, it gets
SIGTERM, which makes a run stop with a checkpoint.
"""

import os
import signal
import sys
from collections.abc import Mapping

from cojax import worlds

# These make results equal to the bit on x86-64 hosts with AVX2 and FMA, as far as tested (docs/bits.md): XLA's
# libraries do not choose kernels by the processor, and XLA's own code has the same instructions. XLA's pool has two
# threads on the run's core: the order of sums depends on their number, and with one thread on the L1 cache's size.
VARIABLES: Mapping[str, str] = {
    "XLA_FLAGS": "--xla_cpu_enable_platform_dependent_math=false --xla_cpu_max_isa=AVX2",
    "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL": "0",  # gradients of matrices without oneDNN
    "NPROC": "2",  # XLA's own pool
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JAX_PLATFORMS": "cpu",
}
# Other variables that decide bits. No run gets them, whatever the shell sets.
OTHERS = ("JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")


def main(arguments: list[str]) -> None:
    core, parent, *command = arguments
    if sys.platform == "linux":
        kernel = worlds.part("worker.kernel")
        kernel.prctl(kernel.PDEATHSIG, signal.SIGTERM)
        if core != "-":
            os.sched_setaffinity(0, {int(core)})
    if os.getppid() != int(parent):  # PARENT ended before prctl was called
        sys.exit(128 + signal.SIGTERM)
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])

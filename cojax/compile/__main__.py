"""Compiles a configuration's learner ahead of time: python -m experiments.compile --target=v5e-16 --config=FILE …

Needs no accelerator. The update, the reference's forward and every other program of a step are compiled for the batch
of the memory rehearsal. The command prints whether they fit, what they move between devices, and the least time that a
step takes by the chip's published figures. A model folder needs only its config.json. Exit status 0, 1 for an error,
and 3 where the programs do not fit.
"""

from __future__ import annotations

import os
import sys


def prepare_environment() -> None:
    """Lets compilers start without their hardware. Call it before JAX is imported."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    for name, value in (
        # libtpu would ask the cloud what slice this host belongs to, and lets only one process load it.
        ("TPU_SKIP_MDS_QUERY", "1"),
        ("TPU_WORKER_HOSTNAMES", "localhost"),
        ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
        ("TPU_STDERR_LOG_LEVEL", "3"),
        ("TF_CPP_MIN_LOG_LEVEL", "3"),
    ):
        os.environ.setdefault(name, value)
    # Autotuning runs kernels on the card.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0".strip()


def start() -> None:
    """Runs the command with the arguments of this process."""
    sys.modules["__main__"].__doc__ = __doc__  # which --help shows
    prepare_environment()

    from cojax.compile import command

    command.run()

"""Makes x86-64 processors with AVX2 compute the same bits, by variables of XLA and its libraries (docs/bits.md)."""

import importlib.util
import mmap
import os
import platform
from collections.abc import Mapping
from pathlib import Path

# XLA's libraries do not choose kernels by the processor, and XLA's own code has the same instructions.
FLAGS: Mapping[str, str] = {"xla_cpu_enable_platform_dependent_math": "false", "xla_cpu_max_isa": "AVX2"}
# Gradients of matrices without oneDNN. XLA's pool has two threads: the order of sums depends on their number, and with
# one thread on the size of the L1 cache.
ENVIRONMENT_VARIABLES: Mapping[str, str] = {"TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL": "0", "NPROC": "2"}


def set_variables() -> None:
    """Sets the variables in this process, which has not used JAX yet. What the user has set stays.

    Another kind of processor gets none. A flag that the installed jaxlib does not know is left out, because XLA would
    end the process.
    """
    user_flags = os.environ.get("XLA_FLAGS", "").strip()
    if platform.machine() != "x86_64" or (user_flags and not user_flags.startswith("--")):  # they are in a file
        return
    flags = [f"--{name}={value}" for name, value in FLAGS.items() if f"--{name}" not in user_flags and _has_flag(name)]
    os.environ["XLA_FLAGS"] = " ".join([*flags, user_flags]).strip()
    for name, value in ENVIRONMENT_VARIABLES.items():
        os.environ.setdefault(name, value)


def _has_flag(flag_name: str) -> bool:
    """Whether the installed jaxlib has a flag of that name."""
    spec = importlib.util.find_spec("jaxlib")
    folders = [Path(folder) for folder in (spec and spec.submodule_search_locations) or ()]
    for library_path in (path for folder in folders for path in folder.glob("*.so") if path.stat().st_size > 2**24):
        with library_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped_file:
            if mapped_file.find(flag_name.encode()) >= 0:
                return True
    return False

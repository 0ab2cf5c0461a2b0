"""Versions, commit and hardware, which config.json holds beside the settings."""

import importlib.metadata
import os
import platform
from typing import Any

import jax

from cojax.registry.commits import commit
from cojax.run.machine import machine, processor_name

# The code of a checkout that a run executes.
_CODE = (":(top)cojax", ":(top)environments", ":(top)experiments", ":(top)setup.py")


def facts() -> dict[str, Any]:
    """Versions, commit and hardware, so that the run directory alone suffices as a bug report."""
    return {
        **versions_and_commit(),
        "hardware": {
            "machine": platform.machine(),
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "devices": [str(device.device_kind) for device in jax.devices()],
            **machine(),
        },
    }


def versions_and_commit() -> dict[str, Any]:
    """The same without the hardware."""
    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "tokenizers", "numpy", "cojax")
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"versions": versions, "commit": commit(__file__, _CODE)}

"""Versions, commit and hardware, which config.json holds beside the settings."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

from experiments.machine import machine, processor_name


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
    return {"versions": versions, "commit": _commit()}


# The code of a checkout that a run executes.
_CODE = (":(top)cojax", ":(top)environments", ":(top)experiments", ":(top)setup.py")


def _commit() -> str:
    """The checkout's commit, marked where code has uncommitted changes; "unknown" outside a checkout."""
    folder = Path(__file__).parent
    try:
        run = [
            subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=10, check=True).stdout
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "--", *_CODE])
        ]
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return run[0].strip() + (" with changes" if run[1].strip() else "")

"""The configuration of a run that goes on, read from its folder: --config=experiments/continued.py:WORKDIR.

    python -m experiments.run --workdir=WORKDIR

is short for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from experiments import base, trained


def get_config(workdir: str) -> ConfigDict:
    """The paper's configuration, overwritten by the run's. Raises CheckpointError where there is no run."""
    config = base.get_config()
    with config.unlocked(), config.ignore_type():
        config.update(_with_tuples(trained.settings_of(Path(workdir))))
    return config


def _with_tuples(value: Any) -> Any:
    """The value with tuples for lists, which JSON has instead."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value

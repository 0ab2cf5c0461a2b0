"""A configuration given as JSON, over the paper's: --config=experiments/given.py:FILE.

`cojax.train` passes objects on in this way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.settings import base, entries
from cojax.settings.config_file import FlagError
from cojax.settings.ranges import check_kinds, leaves
from cojax.storage.files import read_json


def get_config(file: str) -> ConfigDict:
    """The configuration in `file`, an object of sections. Raises FlagError for what is no configuration."""
    config = base.get_config()
    try:
        with config.unlocked(), config.ignore_type():
            for name, value in leaves(read_json(Path(file).resolve())):
                base.put(config, name, _tuples(value))
        check_kinds(config, entries.declared())
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise FlagError(f"the configuration that was given: {error}") from error
    return config


def _tuples(value: Any) -> Any:
    """The value with tuples in place of lists, as JSON has no tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

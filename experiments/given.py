"""A configuration that is passed as JSON and overrides the defaults: --config=experiments/given.py:FILE.

`cojax.train` passes objects on in this way.
"""

from pathlib import Path

from ml_collections import ConfigDict

from cojax.settings import base
from cojax.settings.compatibility import to_tuples
from cojax.settings.config_file import FlagError
from cojax.settings.ranges import check_kinds, leaves
from cojax.storage.files import read_json


def get_config(config_file: str) -> ConfigDict:
    """The configuration in `config_file`, an object of settings. Raises FlagError if it holds no configuration."""
    config = base.get_config()
    try:
        with config.unlocked(), config.ignore_type():
            for setting, setting_value in leaves(read_json(Path(config_file).resolve())):
                base.put(config, setting, to_tuples(setting_value))
        check_kinds(config)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise FlagError(f"the configuration that was given: {error}") from error
    return config

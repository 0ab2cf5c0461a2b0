"""The configuration of a resumed run, read from its folder: --config=experiments/continued.py:WORKDIR.

    python -m experiments.run --workdir=WORKDIR

is short for it. No code of the run is imported here; cojax/run/configuration.py says which of it may be.
"""

from pathlib import Path

from ml_collections import ConfigDict

from cojax.registry.annotations import convert_setting
from cojax.settings import base
from cojax.settings.compatibility import read_run_settings, to_tuples
from cojax.settings.ranges import RANGES, check_shape, leaves
from cojax.storage.files import CheckpointError


def get_config(workdir: str) -> ConfigDict:
    """The paper's configuration, overwritten by the run's.

    Raises CheckpointError if there is no run, and for settings that are invalid in this release.
    """
    config, run_settings = base.get_config(), read_run_settings(Path(workdir))
    try:
        check_shape(run_settings)
        tuple_settings = to_tuples(run_settings)
        for setting, setting_value in leaves(tuple_settings):
            if setting in RANGES:
                convert_setting(setting, RANGES[setting], setting_value)
        with config.unlocked(), config.ignore_type():
            config.update(tuple_settings)
            config.workdir = workdir  # the run may have been moved
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{Path(workdir) / 'config.json'}: {error}") from error
    return config

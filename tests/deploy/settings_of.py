"""python -m settings_of MODULE --config=FILE …: whether this command would accept its flags; it starts nothing."""

import importlib
import os
import sys

from launch_files import ROOT

if __name__ == "__main__":
    os.chdir(ROOT)
    del sys.argv[0]  # flags of the configuration are read from this very list
    importlib.import_module(sys.argv[0])  # defines the command's flags
    from cojax.run import checks
    from cojax.run.configuration import read_configuration
    from cojax.settings import flags

    flags.parse_flags(sys.argv)
    try:
        checks.check_settings(read_configuration())
    except ValueError as error:
        sys.exit(f"error: {error}")

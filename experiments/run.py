"""Trains with a configuration, or resumes a run; --check only tries every part."""

import sys

from cojax.run import command
from cojax.run.command import main

sys.modules["__main__"].__doc__ = command.__doc__  # which --help shows

if __name__ == "__main__":
    main()

"""Writes a checkpoint as a model folder."""

import sys

from cojax.run.export import main

if __name__ == "__main__":
    sys.exit(main())

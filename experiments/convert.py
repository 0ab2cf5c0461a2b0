"""Converts a GGUF file to a model folder."""

import sys

from cojax.convert.command import main

if __name__ == "__main__":
    sys.exit(main())

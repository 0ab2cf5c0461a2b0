"""Converts a GGUF file to a model folder."""

import sys

from cojax.convert.__main__ import main

if __name__ == "__main__":
    sys.exit(main())

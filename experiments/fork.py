"""Copies a run at a checkpoint with one thing taken away, and goes on with the copy."""

import sys

from cojax.run.fork import main

if __name__ == "__main__":
    sys.exit(main())

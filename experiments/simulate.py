"""Predicts steps from the times of runs; needs a checkout."""

import sys

from cojax.command import in_checkout

if __name__ == "__main__":
    in_checkout("simulate")
    from benchmarks.simulate.__main__ import main

    sys.exit(main())

"""Predicts steps from the times of runs; needs a checkout."""

import functools
import sys

from cojax.command import run_in_checkout

main = functools.partial(run_in_checkout, "simulate", "benchmarks.simulate.__main__")

if __name__ == "__main__":
    sys.exit(main())

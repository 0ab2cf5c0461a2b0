"""Measures how fast the parts are on this machine; needs a checkout."""

import functools
import sys

from cojax.command import run_in_checkout

main = functools.partial(run_in_checkout, "bench", "benchmarks.__main__")

if __name__ == "__main__":
    sys.exit(main())

"""Runs hostile episodes and faults, and counts what they broke; needs a checkout."""

import functools
import sys

from cojax.command import run_in_checkout

main = functools.partial(run_in_checkout, "campaign", "campaign.__main__")

if __name__ == "__main__":
    sys.exit(main())

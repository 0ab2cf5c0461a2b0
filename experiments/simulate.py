"""Predicts steps from the times of runs; needs a checkout."""

import sys
from collections.abc import Sequence

from cojax.command import in_checkout


def main(arguments: Sequence[str] | None = None) -> int:
    in_checkout("simulate")
    from benchmarks.simulate.__main__ import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())

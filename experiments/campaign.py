"""Hostile episodes and faults, counted by what they broke; needs a checkout."""

import sys
from collections.abc import Sequence

from cojax.command import in_checkout


def main(arguments: Sequence[str] | None = None) -> int:
    sys.path.append(str(in_checkout("campaign") / "tests"))
    from campaign.__main__ import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())

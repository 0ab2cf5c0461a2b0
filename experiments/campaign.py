"""Hostile episodes and faults, counted by what they broke; needs a checkout."""

import sys

from cojax.command import in_checkout

if __name__ == "__main__":
    sys.path.append(str(in_checkout("campaign") / "tests"))
    from campaign.__main__ import main

    sys.exit(main())

"""How fast the parts are on this machine; needs a checkout."""

import sys
from collections.abc import Sequence

from cojax.command import in_checkout


def main(arguments: Sequence[str] | None = None) -> int:
    in_checkout("bench")
    from benchmarks.__main__ import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(main())

"""How fast the parts are on this machine; needs a checkout."""

import sys

from cojax.command import in_checkout

if __name__ == "__main__":
    in_checkout("bench")
    from benchmarks.__main__ import main

    sys.exit(main())

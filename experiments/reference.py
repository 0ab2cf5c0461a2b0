"""Prints every setting with its default, range and meaning."""

import sys

from cojax.run.reference import main

if __name__ == "__main__":
    sys.exit(main())

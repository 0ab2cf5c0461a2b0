"""Compares the results of runs, paired by evaluation task."""

import sys

from cojax.report.command import compare as main

if __name__ == "__main__":
    sys.exit(main())

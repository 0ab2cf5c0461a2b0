"""The results of runs side by side, paired by evaluation task."""

import sys

from cojax.report.command import compare

if __name__ == "__main__":
    sys.exit(compare())

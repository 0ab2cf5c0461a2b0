"""Writes a run's page, or prints why one of its tasks exists."""

import sys

from cojax.report.command import main

if __name__ == "__main__":
    sys.exit(main())

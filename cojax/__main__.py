"""`python -m cojax NAME …` is `cojax NAME …`."""

import sys

from cojax.command import main

sys.exit(main())

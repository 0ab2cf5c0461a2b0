"""mypy finds nothing. It runs as a test, as it takes one core, and the tests beside it the other."""

import subprocess
import sys
from pathlib import Path

from patience import patience


def test_the_types_are_right():
    checked = subprocess.run(
        [sys.executable, "-m", "mypy"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=patience(600),
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr

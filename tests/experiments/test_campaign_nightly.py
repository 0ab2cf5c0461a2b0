"""About five minutes of the campaign, in its own proportions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[2]


def test_a_part_of_the_campaign_breaks_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.campaign", "--episodes=1000", "--faults=100", "--seed=1", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=1_800, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["violations"] == []
    assert [told[name] for name in ("episodes", "faults", "forged", "traces", "lost", "leaked")] == [
        1000,
        100,
        0,
        0,
        0,
        0,
    ]
    assert done.returncode == 0

"""A part of the campaign, in its own proportions, which takes some minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


def test_a_part_of_the_campaign_breaks_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.campaign", "--episodes=200", "--faults=20", "--seed=1", "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=patience(1_800), check=False,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["violations"] == []
    counts = [told[name] for name in ("episodes", "faults", "forged", "traces", "lost", "leaked")]
    assert counts == [200, 20, 0, 0, 0, 0]
    assert done.returncode == 0

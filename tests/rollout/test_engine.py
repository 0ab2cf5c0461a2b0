"""What every engine is asked: refused where it is made, as one engine samples for all its callers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cojax.rollout.engine import Sampling


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"temperature": found}, f"found {found}") for found in (float("nan"), float("inf"), -1.0, 1e-40, 1e7)),
        ({"temperature": True}, "temperature must be 0, or a number from 1e-06 to 1,000,000; found True"),
        ({"temperature": "1"}, "temperature must be 0, or a number"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, a whole number; found 0"),
        ({"max_tokens": 2.5}, "max_tokens must be at least 1, a whole number; found 2.5"),
        ({"max_tokens": True}, "max_tokens must be at least 1, a whole number; found True"),
        ({"stop_tokens": (1, 2.5)}, "stop_tokens hold float; expected tokens"),
        ({"stop_tokens": (True, "a")}, "stop_tokens hold bool, str; expected tokens"),
    ],
)
def test_what_no_engine_can_sample_by(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**given)


def test_what_it_can() -> None:
    for found in (0, 0.0, 1, 1e-6, 0.7, 1e6, np.float32(0.5)):
        assert Sampling(temperature=found).temperature == found  # type: ignore[arg-type]
    assert Sampling(0.7, 3, (1, 2)) == Sampling(temperature=0.7, max_tokens=3, stop_tokens=(1, 2))

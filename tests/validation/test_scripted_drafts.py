"""Validation refuses next to none of the drafts of the scripted explorer."""

from __future__ import annotations

from collections import Counter

import pytest
from scripted_drafts import explorer_of, scripted_drafts

import environments
from cojax.environment import Environment
from cojax.validation import Validation

# Of 120 drafts at the desk, 107 are accepted by controls and replays alone.
BEFORE = 107


def verdicts(environment: Environment, count: int) -> Counter[str]:
    """How often each verdict is reached; of those that refuse, the last line up to its first digit or quote."""
    examine, explorer = Validation(environment), explorer_of(environment)
    found: Counter[str] = Counter()
    for draft in scripted_drafts(environment, count):
        verdict, task = examine(draft, lambda id: False, explorer)
        found["accepted" if task else verdict.evidence[-1].partition(":")[0].partition("'")[0].strip()] += 1
    return found


def test_at_the_desk_one_is_refused_as_its_query_says_the_answer() -> None:
    found = verdicts(environments.load("desk"), 120)
    assert found == {"accepted": BEFORE - 1, "the query holds the answer": 1, "negative control": 9, "no effect": 4}


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [("bfcl", {}, 12), ("tau2", {}, 12), pytest.param("appworld", {"data": "tiny"}, 5, marks=pytest.mark.nightly)],
)
def test_in_the_benchmarks_none_is_refused(name: str, settings: dict, count: int) -> None:
    environment = environments.load(name, **settings)
    try:
        assert verdicts(environment, count) == {"accepted": count}
    finally:
        environment.close()

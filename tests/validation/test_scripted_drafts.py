"""Validation refuses next to none of the drafts of the scripted explorer."""

from __future__ import annotations

from collections import Counter

import pytest
from scripted_drafts import explorer_of, scripted_drafts

import environments
from cojax.environment import Environment
from cojax.validation import Validation

# Of 200 drafts at the desk, 173 were accepted by controls and replays alone.
BEFORE = 173


def verdicts(environment: Environment, count: int) -> Counter[str]:
    """How often each verdict is reached; of those that refuse, the last line up to its first digit or quote."""
    examine, explorer = Validation(environment), explorer_of(environment)
    found: Counter[str] = Counter()
    for draft in scripted_drafts(environment, count):
        verdict, task = examine(draft, lambda id: False, explorer)
        found["accepted" if task else verdict.evidence[-1].partition(":")[0].partition("'")[0].strip()] += 1
    return found


def test_at_the_desk_two_are_refused_as_their_query_says_the_answer() -> None:
    found = verdicts(environments.load("desk"), 200)
    assert found == {"accepted": BEFORE - 2, "the query holds the answer": 2, "negative control": 21, "no effect": 6}


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

"""Losses of a child, in an environment that declares that it runs what a policy wrote, and in one that does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from cojax.environment import runs_policy_code
from cojax.types import Action, Call, Task
from cojax.wrapping import Wrapped
from environments.worker import Bounds, IsolatedEnvironment, isolate

BOUNDS = Bounds(deadline=1.5, output=2**20)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")


@pytest.fixture(scope="module")
def declared() -> Iterator[IsolatedEnvironment]:
    environment = isolate("hostile", bounds=BOUNDS, runs_policy_code=True)
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def undeclared() -> Iterator[IsolatedEnvironment]:
    environment = isolate("hostile", bounds=BOUNDS)
    yield environment
    environment.close()


def do(deed: str, argument: str = "") -> Action:
    return Action(calls=(Call(deed, {"argument": argument}),))


def task(query: str = "", **setup: object) -> Task:
    return Task("hostile", query, setup)


def test_the_declaration_passes_through_wrappers(declared, undeclared):
    for environment, said in ((declared, True), (undeclared, False)):
        assert runs_policy_code(environment) is said
        assert runs_policy_code(Wrapped(Wrapped(environment, environment.start), environment.start)) is said

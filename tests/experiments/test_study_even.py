"""The explorer of a D_0 that has all tools alike."""

import dataclasses
import functools

import environments
from cojax.explorer.scripted.explorer import ScriptedExplorer
from experiments.study.even import EvenExplorer

ENVIRONMENT = environments.load("desk")


def test_to_the_even_explorer_all_tools_are_alike() -> None:
    [place] = (dataclasses.replace(place, query="", solution=()) for place in ENVIRONMENT.tasks("seed", 1))
    popular, even = ENVIRONMENT.popularity(), EvenExplorer(neighbours=ENVIRONMENT.neighbours)
    explore = functools.partial(even.explore, ENVIRONMENT, place, None, (1,))
    explored_by = functools.partial(
        ScriptedExplorer(neighbours=ENVIRONMENT.neighbours).explore, ENVIRONMENT, place, None, (1,)
    )
    assert explore(popular).triplets == explored_by().triplets != explored_by(popular).triplets

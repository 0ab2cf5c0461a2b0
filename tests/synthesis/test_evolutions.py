"""Where expeditions without a signal go."""

from __future__ import annotations

import itertools

from cojax.synthesis.evolutions import EvolutionInputs, unguided, uniform
from cojax.types import Task, setup_hash
from environments.tools import ToolEnvironment


def inputs(rooms: int, contexts: int, closed: frozenset[str] = frozenset()) -> EvolutionInputs:
    def press(world) -> None:
        world["pressed"] = True

    environment = ToolEnvironment("rooms", [press], dict, [{"room": number} for number in range(rooms)])
    # Nothing of these expeditions asks an explorer, or reads an episode.
    return EvolutionInputs(environment, None, (), (), None, None, contexts, seed=(1, 2), closed=closed)


def rooms_of(expeditions) -> list[int]:
    return [expedition.task.setup["room"] for expedition in expeditions]


def test_no_closed_setup_is_explored():
    closed = frozenset(setup_hash(Task("rooms", "held out", {"room": room})) for room in (0, 3, 4))
    for evolution, count in itertools.product((unguided, uniform), (1, 6)):
        found = rooms_of(evolution(inputs(10, count, closed)))
        assert len(found) == count
        assert not {0, 3, 4} & set(found)
    assert {0, 3, 4} <= set(rooms_of(uniform(inputs(10, 10))))


def test_nothing_is_explored_where_all_is_closed():
    closed = frozenset(setup_hash(Task("rooms", "held out", {"room": room})) for room in range(3))
    assert rooms_of(uniform(inputs(3, 5, closed))) == []

"""Drafts of the scripted explorer, unguided and guided by turns, as a run would have them examined."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cojax.environment import Charted, Environment
from cojax.explorer.scripted.explorer import ScriptedExplorer, no_neighbours
from cojax.types import ExplorationContext, Origin, Task, TaskDraft

# As the experiments set them; the desk has the defaults.
_ENDINGS = {"bfcl": ("", 0.5), "appworld": ("supervisor.complete_task", 0.0), "tau2": ("done", 0.0)}
_KINDS: tuple[Origin, ...] = ("forgetting", "boundary", "rare")


def explorer_of(environment: Environment) -> ScriptedExplorer:
    ending, cut = _ENDINGS.get(environment.name, ("finish", 0.0))
    neighbours = environment.neighbours if isinstance(environment, Charted) else no_neighbours
    return ScriptedExplorer(runs=2, ending=ending, cut=cut, neighbours=neighbours)


def scripted_drafts(environment: Environment, count: int) -> list[TaskDraft]:
    """So many drafts with different queries: of each scenario two unguided ones, and two guided by each of these."""
    explorer = explorer_of(environment)
    found = {draft.query: draft for draft in itertools.islice(_drafts(environment, explorer, count), 2 * count)}
    return list(found.values())[:count]


def _drafts(environment: Environment, explorer: ScriptedExplorer, count: int) -> Iterator[TaskDraft]:
    places = environment.tasks("seed", count)
    weights = environment.popularity() if isinstance(environment, Charted) else None
    for number, place in enumerate(itertools.islice(itertools.cycle(places), 10 * count)):
        task = Task(place.environment, "", place.setup)
        seed = ("drafts", number)
        explored = explorer.explore(environment, task, None, seed, weights)
        for draft in explorer.abstract(explored, environment, 2):
            yield draft
            parent = Task(draft.environment, draft.query, draft.setup, draft.solution)
            tools = dict.fromkeys(call.name for action in draft.solution for call in action.calls)
            kind = _KINDS[number % len(_KINDS)]
            focus = tuple(tool for tool in tools if tool != explorer.ending)
            context = ExplorationContext(parent, kind, focus_patterns=focus)
            guided = explorer.explore(environment, parent, context, seed, None)
            yield from explorer.abstract(guided, environment, 2)

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
    ending, cut_odds = _ENDINGS.get(environment.name, ("finish", 0.0))
    neighbours = environment.neighbours if isinstance(environment, Charted) else no_neighbours
    return ScriptedExplorer(runs=2, ending=ending, cut=cut_odds, neighbours=neighbours)


def scripted_drafts(environment: Environment, count: int) -> list[TaskDraft]:
    """So many drafts with different queries: of each scenario two unguided ones, and two guided by each of these."""
    explorer = explorer_of(environment)
    draft_by_query = {
        draft.query: draft for draft in itertools.islice(_drafts(environment, explorer, count), 2 * count)
    }
    return list(draft_by_query.values())[:count]


def _drafts(environment: Environment, explorer: ScriptedExplorer, count: int) -> Iterator[TaskDraft]:
    setups = environment.tasks("seed", count)
    weights = environment.popularity() if isinstance(environment, Charted) else None
    for index, setup_task in enumerate(itertools.islice(itertools.cycle(setups), 10 * count)):
        task = Task(setup_task.environment, "", setup_task.setup)
        seed = ("drafts", index)
        exploration = explorer.explore(environment, task, None, seed, weights)
        for draft in explorer.abstract(exploration, environment, 2):
            yield draft
            parent = Task(draft.environment, draft.query, draft.setup, draft.solution)
            tools = dict.fromkeys(call.name for action in draft.solution for call in action.calls)
            kind = _KINDS[index % len(_KINDS)]
            focus = tuple(tool for tool in tools if tool != explorer.ending)
            context = ExplorationContext(parent, kind, focus_patterns=focus)
            guided_exploration = explorer.explore(environment, parent, context, seed, None)
            yield from explorer.abstract(guided_exploration, environment, 2)

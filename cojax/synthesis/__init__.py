"""Stages 2 and 3: expeditions → contexts → triplets → drafts → verdicts → tasks; and the ways to guide an evolution.

evolutions.py   the ways to guide an evolution, and which signals it follows
beliefs.py      beliefs about success with tools and pairs of tools; the evolution `posteriors`
expeditions.py  one trip of an explorer and what came of it; runs several in parallel
pipeline.py     runs an evolution: examines the drafts of its expeditions, gathers the tasks in their order, and chooses
                those that enter the pool, if there are more than the pool takes
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cojax.registry import RegistryError
from cojax.registry.annotations import quote
from cojax.signals import Detector
from cojax.synthesis import evolutions
from cojax.synthesis.evolutions import SELECTIONS, EvolutionInputs, Evolve, begins_at, reflect_on, sample_setups
from cojax.synthesis.expeditions import Expedition, Interrupted
from cojax.synthesis.pipeline import ADMISSIONS, Admission, Synthesis, Validate, admit, initial_tasks, synthesize

__all__ = [
    "ADMISSIONS", "EVOLUTIONS", "MEMORIES", "PREFIXES", "SELECTIONS", "Admission", "EvolutionInputs", "Evolve",
    "Expedition", "Interrupted", "Synthesis", "Validate", "admit", "begins_at", "explain_idle", "initial_tasks",
    "make_expeditions", "reads", "reflect_on", "sample_setups", "synthesize",
]  # fmt: skip

# Entries given as text are imported when a run names them (`registry.find`).
EVOLUTIONS: dict[str, Evolve | str] = {
    "none": evolutions.static,
    "random": evolutions.unguided,
    "uniform": evolutions.uniform,
    "trajectory": evolutions.around_trajectories,
    "displaced": evolutions.around_displaced_signals,
    "feedback": evolutions.around_signals,
    "credited": "experiments.study.credits:credited",
    "posteriors": "cojax.synthesis.beliefs:posteriors",
    "frontier": "experiments.study.frontier:frontier",
}
# Statistics that an evolution may read, by the name of the parameter that receives their memory.
MEMORIES: dict[str, Callable[[], Detector] | str] = {
    "beliefs": "cojax.synthesis.beliefs:Beliefs",
    "credits": "experiments.study.credits:Credits",
}
# The statistic of a run that replays prefixes; its `prefix` is the loop's.
PREFIXES: dict[str, Callable[[], Any] | str] = {"prefixes": "experiments.study.prefix_replay:PrefixStaircase"}


def reads(evolve: Evolve) -> tuple[str, ...]:
    """The memories that an evolution reads: its parameters after the first. Raises RegistryError for an unknown one."""
    parameters = inspect.signature(evolve).parameters.values()
    positional = [param for param in parameters if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)]
    memory_names = tuple(param.name for param in positional[1:] if param.default is param.empty)
    if unknown_names := [memory_name for memory_name in memory_names if memory_name not in MEMORIES]:
        raise RegistryError(
            f"{_describe(evolve)} takes the parameter {unknown_names[0]!r}; besides its inputs it can read "
            f"{', '.join(MEMORIES)}, and its settings come after a *"
        )
    return memory_names


def make_expeditions(evolve: Evolve, inputs: EvolutionInputs, *memories: Mapping[str, Any]) -> Iterator[Expedition]:
    """Yields the expeditions of the evolution. Raises RegistryError for anything else."""
    expeditions = evolve(inputs, *memories)
    if not isinstance(expeditions, Iterable):
        raise RegistryError(
            f"{_describe(evolve)} returned {quote(expeditions)}; expected an iterator of cojax.synthesis.Expedition"
        )
    for expedition in expeditions:
        if not isinstance(expedition, Expedition):
            raise RegistryError(f"{_describe(evolve)} gave {quote(expedition)}; expected a cojax.synthesis.Expedition")
        yield expedition


def _describe(evolve: Evolve) -> str:
    """The evolution as a configuration would name it."""
    evolution = _find_function(evolve)
    return f"evolve '{evolution.__module__}:{getattr(evolution, '__qualname__', type(evolution).__qualname__)}'"


def explain_idle(evolve: Evolve, inputs: EvolutionInputs, *, environment_failed: bool, used_up: bool) -> str:
    """Why `evolve` made no expedition. `used_up` says that the run may play no more episodes."""
    if environment_failed:
        return "the environment failed to give a setup"
    evolve_function = _find_function(evolve)
    if evolve_function is evolutions.static:
        return "evolve=none makes none"
    places = getattr(evolve_function, "begins_at", ("signals", "episodes", "setups"))
    if evolve_function is evolutions.around_displaced_signals and not inputs.signals:
        places = ("signals",)
    budget_note = "; the run's episodes or environment_steps are used up" if used_up else ""
    return " and ".join(_explain_no_start(place, inputs) for place in places) + budget_note


def _explain_no_start(place: str, inputs: EvolutionInputs) -> str:
    """Why no expedition began at signals, at episodes or at setups."""
    signal_count, episodes = len(inputs.signals), len(inputs.episodes)
    if place == "signals" and signal_count:
        return f"none of {signal_count:,} signals was followed"
    if place == "signals":
        no_signals_text = f"no signals in {episodes:,} episodes since the last evolution"
        return no_signals_text if inputs.kinds else "no signal is switched on (signals)"
    if place == "episodes":
        return f"none of {episodes:,} episodes is valid" if episodes else "no episodes since the last evolution"
    restriction = " that is not reserved for evaluation" if inputs.closed else ""
    return f"no setup in the split {inputs.split!r}{restriction}"


def _find_function(evolve: Evolve) -> Evolve:
    """The evolution without its settings."""
    return evolve.func if isinstance(evolve, functools.partial) else evolve

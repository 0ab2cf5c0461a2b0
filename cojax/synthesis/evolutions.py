"""The ways to guide an evolution, by name; and what each reads beside its inputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cojax.registry import RegistryError
from cojax.registry.annotations import shown
from cojax.signals import Detector
from cojax.synthesis.beliefs import Beliefs
from cojax.synthesis.credits import Credits, credited
from cojax.synthesis.expeditions import (
    EvolutionInputs,
    Expedition,
    around_displaced_signals,
    around_signals,
    around_trajectories,
    static,
    unguided,
    uniform,
)
from cojax.synthesis.frontier import frontier
from cojax.synthesis.posteriors import posteriors

# (EvolutionInputs, the memory of each detector of MEMORIES that a further parameter names) → expeditions. The settings
# of an evolution are its keyword-only parameters.
Evolve = Callable[..., Iterator[Expedition]]

EVOLUTIONS: dict[str, Evolve] = {
    "none": static,
    "random": unguided,
    "uniform": uniform,
    "trajectory": around_trajectories,
    "displaced": around_displaced_signals,
    "feedback": around_signals,
    "credited": credited,
    "posteriors": posteriors,
    "frontier": frontier,
}
# Detectors that raise no signals, by the name of the parameter that receives their memory.
MEMORIES: dict[str, Callable[[], Detector]] = {"beliefs": Beliefs, "credits": Credits}


def reads(evolve: Evolve) -> tuple[str, ...]:
    """The memories that an evolution reads: its parameters after the first. Raises RegistryError for an unknown one."""
    parameters = inspect.signature(evolve).parameters.values()
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    names = tuple(one.name for one in positional[1:] if one.default is one.empty)
    if unknown := [name for name in names if name not in MEMORIES]:
        raise RegistryError(
            f"{_named(evolve)} takes the parameter {unknown[0]!r}; beside its inputs it can read "
            f"{', '.join(MEMORIES)}, and its settings stand after a *"
        )
    return names


def expeditions_of(evolve: Evolve, inputs: EvolutionInputs, *memories: Mapping[str, Any]) -> Iterator[Expedition]:
    """What the evolution gives, one by one. Raises RegistryError for anything but an Expedition."""
    found = evolve(inputs, *memories)
    if not isinstance(found, Iterable):
        raise RegistryError(
            f"{_named(evolve)} returned {shown(found)}; expected an iterator of cojax.synthesis.Expedition"
        )
    for one in found:
        if not isinstance(one, Expedition):
            raise RegistryError(f"{_named(evolve)} gave {shown(one)}; expected a cojax.synthesis.Expedition")
        yield one


def _named(evolve: Evolve) -> str:
    """How a configuration names it."""
    function = evolve.func if isinstance(evolve, functools.partial) else evolve
    return f"evolve '{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}'"

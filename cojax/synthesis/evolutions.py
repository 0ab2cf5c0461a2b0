"""The ways to guide an evolution, by name; and what each reads beside its inputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

from cojax.registry import RegistryError
from cojax.signals import Detector
from cojax.synthesis.beliefs import Beliefs
from cojax.synthesis.credits import Credits, credited
from cojax.synthesis.expeditions import (
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
            f"the evolution {evolve!r} takes the parameter {unknown[0]!r}; beside its inputs it can read "
            f"{', '.join(MEMORIES)}, and its settings stand after a *"
        )
    return names

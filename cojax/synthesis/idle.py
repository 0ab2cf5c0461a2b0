"""Why an evolution made no expedition, from what it could read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from cojax.synthesis.credits import credited
from cojax.synthesis.expeditions import (
    EvolutionInputs,
    around_displaced_signals,
    around_signals,
    around_trajectories,
    static,
    unguided,
    uniform,
)
from cojax.synthesis.frontier import frontier
from cojax.synthesis.posteriors import posteriors

_Function = Callable[..., Any]
# Where the expeditions of an evolution begin. One that is not here, from outside, may begin anywhere.
_BEGINS: dict[_Function, tuple[str, ...]] = {
    unguided: ("setups",),
    uniform: ("setups",),
    around_trajectories: ("episodes",),
    around_displaced_signals: ("signals", "episodes"),
    around_signals: ("signals",),
    credited: ("signals", "setups"),
    posteriors: ("episodes", "setups"),
    frontier: ("episodes", "setups"),
}


def why_idle(evolve: _Function, inputs: EvolutionInputs, *, failed: bool, used_up: bool) -> str:
    """Why `evolve` gave no expedition; `failed` if the environment did, `used_up` if the run may play no more."""
    function = evolve.func if isinstance(evolve, functools.partial) else evolve
    if failed:
        return "the environment failed to give a setup"
    if function is static:
        return "evolve=none makes none"
    begins = _BEGINS.get(function, ("signals", "episodes", "setups"))
    if function is around_displaced_signals and not inputs.signals:
        begins = ("signals",)
    spent = "; the run's episodes or environment_steps are used up" if used_up else ""
    return " and ".join(_WORDS[begin](inputs) for begin in begins) + spent


def _of_signals(inputs: EvolutionInputs) -> str:
    if inputs.signals:
        return f"none of {len(inputs.signals):,} signals was followed"
    if not inputs.kinds:
        return "no signal is switched on (signals)"
    return f"no signals in {len(inputs.episodes):,} episodes since the last evolution"


def _of_episodes(inputs: EvolutionInputs) -> str:
    if inputs.episodes:
        return f"none of {len(inputs.episodes):,} episodes is valid"
    return "no episodes since the last evolution"


def _of_setups(inputs: EvolutionInputs) -> str:
    closed = " that is not reserved for evaluation" if inputs.closed else ""
    return f"no setup in the split {inputs.split!r}{closed}"


_WORDS: dict[str, Callable[[EvolutionInputs], str]] = {
    "signals": _of_signals, "episodes": _of_episodes, "setups": _of_setups,
}  # fmt: skip

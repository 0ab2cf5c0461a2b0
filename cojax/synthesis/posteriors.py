"""Expeditions towards skills of which the policy is believed to solve about half: Thompson sampling of p(1 − p)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.registry.annotations import Range
from cojax.signals.kinds import PLAN
from cojax.synthesis.beliefs import Posterior, Strength, neighbours_in
from cojax.synthesis.expeditions import EvolutionInputs, Expedition, offered_tools, partly_uniform, reflect_on
from cojax.types import Signal, Trajectory

Count = Annotated[int, Range(1, 10_000)]
Share = Annotated[float, Range(0.0, 1.0)]

# Trajectories whose setups contenders are drawn from, for each expedition.
_PARENTS = 4


def posteriors(
    inputs: EvolutionInputs,
    beliefs: Mapping[str, Any],
    *,
    contenders: Count = 8,
    floor: Share = 0.2,
    strength: Strength = 2.0,
) -> Iterator[Expedition]:
    """At the setups of recent trajectories, towards tools whose success is believed to be near one half.

    A contender is a trajectory of the last steps and one or two tools that its episode offers, all picked at random.
    Its belief is that of the tool, or of the pair at the length of a solution that calls both and ends. Tools of which
    little is known have wide beliefs, so they are often followed. Of `contenders` contenders the one with the greatest
    p̃(1 − p̃) is followed, p̃ drawn from its belief (Thompson sampling; SEC, arXiv 2505.14970, and MoPPS, arXiv
    2507.04632, choose among prompts like this). Its tools are the plan of the expedition. The explorer carries the plan
    out, and tasks with one of its tools come first; a task need not have both. The share `floor` of the expeditions is
    unguided, as in `uniform`. A prior of the beliefs counts as `strength` episodes.
    """
    rng = random.Random(repr((PLAN, inputs.seed)))
    environment, ending = inputs.environment, inputs.explorer.ending
    posterior = Posterior(beliefs, neighbours_in(environment), strength)
    parents = [
        (trajectory, offered)
        for trajectory in itertools.islice(inputs.trajectories(rng), _PARENTS * inputs.contexts)
        if (offered := [tool for tool in offered_tools(environment, trajectory.task) if tool != ending])
    ]

    def guided() -> Expedition | None:
        if not parents:
            return None
        drawn = [_contender(posterior, parents, int(bool(ending)), rng) for _ in range(contenders)]
        p, trajectory, plan = max(drawn, key=lambda contender: contender[0] * (1.0 - contender[0]))
        evidence = f"success with {' and '.join(plan)} drawn as {p:.2f}"
        signal = Signal(PLAN, trajectory.task.id, trajectory.episode, evidence, plan)
        return Expedition(trajectory.task, PLAN, signal=evidence, reflect=reflect_on(trajectory, signal, plan))

    yield from partly_uniform(inputs, floor, rng, guided)


def _contender(
    posterior: Posterior,
    parents: Sequence[tuple[Trajectory, Sequence[str]]],
    ends: int,
    rng: random.Random,
) -> tuple[float, Trajectory, tuple[str, ...]]:
    """(success drawn from its belief, trajectory, the tools to use); `ends` is the number of calls that end a task."""
    trajectory, offered = rng.choice(parents)
    plan = tuple(rng.sample(offered, min(rng.choice((1, 2)), len(offered))))
    belief = posterior.pair_belief(*plan, len(plan) + ends) if len(plan) == 2 else posterior.tool_belief(*plan)
    return rng.betavariate(*belief), trajectory, plan

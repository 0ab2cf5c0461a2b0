"""Expeditions that join two mastered tools, of which one returns a value that the other takes as an argument."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.environment import Charted
from cojax.registry.annotations import Range
from cojax.synthesis.beliefs import Posterior, solution_tools
from cojax.synthesis.expeditions import EvolutionInputs, Expedition, reflect_on
from cojax.synthesis.posteriors import offered_tools
from cojax.types import Signal, Trajectory

ORIGIN = "frontier"
# Trajectories that are read, for each expedition.
_READ = 8


def frontier(
    inputs: EvolutionInputs,
    beliefs: Mapping[str, Any],
    *,
    mastered: Annotated[float, Range(0.0, 1.0)] = 0.75,
    episodes: Annotated[float, Range(0.0)] = 8.0,
    floor: Annotated[float, Range(0.0, 1.0)] = 0.2,
) -> Iterator[Expedition]:
    """Around tasks of mastered tools, towards a pair of mastered tools of which one feeds the other.

    A tool is mastered if the mean of its belief is at least `mastered` and rests on `episodes` episodes. A tool feeds
    another if, in recent trajectories, an output of the first was an argument of the second. The parent's
    solution has one of the two, and its episode offers the other. The share `floor` is unguided, as in `uniform`, and
    so is every expedition while no pair is mastered. (RL on compositions of mastered skills: arXiv 2509.25123.)
    """
    rng = random.Random(repr((ORIGIN, inputs.seed)))
    environment, ending = inputs.environment, inputs.explorer.ending
    neighbours = environment.neighbours if isinstance(environment, Charted) else lambda tool: ()
    posterior = Posterior(beliefs, neighbours)

    def knows(tool: str) -> bool:
        return posterior.masters(tool, mastered, episodes)

    recent = list(itertools.islice(inputs.trajectories(rng), _READ * inputs.contexts))
    pairs = [pair for pair in feeding(recent) if ending not in pair and all(map(knows, pair))]
    joins: list[tuple[Trajectory, tuple[str, str]]] = []
    for trajectory in recent:
        own = [tool for tool in solution_tools(trajectory.task) if tool != ending]
        if not pairs or not own or not all(map(knows, own)):
            continue
        offered = set(offered_tools(environment, trajectory.task))
        joins += [(trajectory, pair) for pair in pairs if set(pair) & set(own) and set(pair) <= offered]
    setups = iter(inputs.setups())
    for _ in range(inputs.contexts):
        if rng.random() < floor or not joins:
            if setup := next(setups, None):
                yield Expedition(setup, "uniform")
            continue
        trajectory, pair = rng.choice(joins)
        evidence = f"{pair[0]} and {pair[1]} are mastered, and an output of the first is an argument of the second"
        signal = Signal("trajectory", trajectory.task.id, trajectory.episode, evidence, pair)
        yield Expedition(trajectory.task, ORIGIN, signal=evidence, reflect=reflect_on(trajectory, "trajectory", signal))


def feeding(trajectories: Sequence[Trajectory]) -> list[tuple[str, str]]:
    """Pairs of different tools of which an output of the first was an argument of the second, in order of names."""
    outputs: dict[str, set[str]] = {}
    inputs: dict[str, set[str]] = {}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if not turn.observation.ok:
                continue
            for call, message in zip(turn.action.calls, turn.observation.messages, strict=False):
                outputs.setdefault(call.name, set()).add(message.content)
                inputs.setdefault(call.name, set()).update(map(str, call.arguments.values()))
    return sorted(
        (one, other) for one in outputs for other in inputs if one != other and outputs[one] & inputs[other]
    )  # fmt: skip

"""Expeditions towards skills of which the policy is believed to solve about half: Thompson sampling of p(1 − p)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.environment import Charted, Environment, ask
from cojax.registry.annotations import Range
from cojax.synthesis.beliefs import Posterior, solution_tools
from cojax.synthesis.expeditions import EvolutionInputs, Expedition, reflect_on
from cojax.types import Signal, Task, Trajectory

Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0.0, 1.0)]

ORIGIN = "posterior"
# Trajectories among which contenders are drawn, for each expedition.
_PARENTS = 4


def posteriors(
    inputs: EvolutionInputs,
    beliefs: Mapping[str, Any],
    *,
    contenders: Count = 8,
    floor: Share = 0.2,
    strength: Annotated[float, Range(0.0, low_open=True)] = 2.0,
) -> Iterator[Expedition]:
    """Around recent trajectories, towards pairs of tools whose success is believed to be near one half.

    A contender is a trajectory of the last steps, picked at random, a tool of its task's solution, and another tool
    that its episode offers. Its belief is that of the pair at the length of this solution. Of `contenders` contenders
    the one with the greatest p̃(1 − p̃) is followed, p̃ drawn from its belief (Thompson sampling; SEC, arXiv 2505.14970,
    and MoPPS, arXiv 2507.04632, choose among prompts like this). The share `floor` of the expeditions is unguided, as
    in `uniform`. A prior of the beliefs counts as `strength` episodes.
    """
    rng = random.Random(repr((ORIGIN, inputs.seed)))
    environment = inputs.environment
    neighbours = environment.neighbours if isinstance(environment, Charted) else lambda tool: ()
    posterior = Posterior(beliefs, neighbours, strength)
    parents = [
        (trajectory, tools)
        for trajectory in itertools.islice(inputs.trajectories(rng), _PARENTS * inputs.contexts)
        if (tools := [tool for tool in solution_tools(trajectory.task) if tool != inputs.explorer.ending])
    ]
    setups = iter(inputs.setups())
    offered: dict[str, list[str]] = {}
    for _ in range(inputs.contexts):
        if rng.random() < floor or not parents:
            if setup := next(setups, None):
                yield Expedition(setup, "uniform")
            continue
        drawn = [_contender(posterior, environment, parents, offered, inputs.explorer.ending, rng)
                 for _ in range(contenders)]  # fmt: skip
        p, trajectory, focus = max(drawn, key=lambda contender: contender[0] * (1.0 - contender[0]))
        evidence = f"success with {' and '.join(focus)} drawn as {p:.2f}, in {len(trajectory.task.solution)} actions"
        signal = Signal("trajectory", trajectory.task.id, trajectory.episode, evidence, focus)
        reflect = reflect_on(trajectory, "trajectory", signal)
        yield Expedition(trajectory.task, ORIGIN, signal=evidence, reflect=reflect)


def _contender(
    posterior: Posterior,
    environment: Environment,
    parents: Sequence[tuple[Trajectory, Sequence[str]]],
    offered: dict[str, list[str]],
    ending: str,
    rng: random.Random,
) -> tuple[float, Trajectory, tuple[str, ...]]:
    """(success drawn from its belief, trajectory, tools in focus); `offered` keeps the tools of each task's episode."""
    trajectory, tools = rng.choice(parents)
    task = trajectory.task
    if task.id not in offered:
        offered[task.id] = [tool for tool in offered_tools(environment, task) if tool != ending]
    one = rng.choice(tools)
    others = [tool for tool in offered[task.id] if tool != one]
    pair = (one, rng.choice(others)) if others else (one, one)
    drawn = rng.betavariate(*posterior.pair(*pair, len(task.solution)))
    return drawn, trajectory, tuple(dict.fromkeys(pair))


def offered_tools(environment: Environment, task: Task) -> list[str]:
    """The tools that an episode of the task offers."""
    episode = ask(environment.start, task)
    try:
        return [entry["function"]["name"] for entry in ask(episode.tools)]
    finally:
        episode.close()

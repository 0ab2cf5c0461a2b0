"""Expeditions that join two mastered tasks: the new task asks for both, one after the other."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from cojax.environment import Environment
from cojax.prefix_replay import ORIGIN, replayed
from cojax.registry.annotations import Range
from cojax.signals.kinds import step_of, task_of
from cojax.signals.tools import tools_of
from cojax.synthesis.evolutions import EvolutionInputs, offered_tools, partly_uniform, reflect_on
from cojax.synthesis.expeditions import Expedition
from cojax.synthesis.selection import in_groups
from cojax.types import Signal, Task, Trajectory

# Tasks that are considered, for each expedition.
_READ = 8


def frontier(
    inputs: EvolutionInputs,
    *,
    mastered: Annotated[float, "a share", Range(0.0, 1.0)] = 0.75,
    longest: Annotated[int, Range(2)] = 6,
    floor: Annotated[float, "a share", Range(0.0, 1.0)] = 0.2,
) -> Iterator[Expedition]:
    """Around mastered tasks, each joined with another one (RL on compositions of mastered skills: arXiv 2509.25123).

    A task is mastered if the policy solved at least the share `mastered` of the episodes of its last visit, without
    replayed actions. The expedition starts at the setup of the first task, and its plan is the tools of both solutions.
    So the first one's episode must offer the tools of the second. Both together have at most `longest` calls, the
    ending not counted, and each task found has all of them. Of possible second tasks those come first that a tool of
    the first one feeds (`feeding`). The share `floor` is unguided, as in `uniform`, and so are all expeditions if no
    two tasks can be joined.
    """
    rng = random.Random(repr((ORIGIN, inputs.seed)))
    known = [
        trajectory
        for episodes in in_groups(inputs.episodes, task_of, rng)[: _READ * inputs.contexts]
        if (trajectory := _of_last_visit(episodes, inputs.find)) and _mastered(trajectory, inputs, mastered)
    ]
    partners = _Partners(inputs.environment, known, inputs.explorer.ending, longest)

    def guided() -> Expedition | None:
        pair = partners.draw(rng)
        if pair is None:
            return None
        first, second = pair
        evidence = f"mastered, as is {second.task.query!r}"
        plan = (*partners.tools(first.task), *partners.tools(second.task))
        signal = Signal(ORIGIN, first.task.id, first.episode, evidence, tuple(dict.fromkeys(plan)))
        return Expedition(first.task, ORIGIN, signal=evidence, reflect=reflect_on(first, signal, plan))

    yield from partly_uniform(inputs, floor, rng, guided)


class _Partners:
    """The mastered tasks that can be joined."""

    def __init__(self, environment: Environment, known: Sequence[Trajectory], ending: str, longest: int):
        self._environment, self._known, self._ending, self._longest = environment, known, ending, longest
        self._feeds = feeding(known)
        self._offered: dict[str, frozenset[str]] = {}

    def tools(self, task: Task) -> list[str]:
        """The tools of the solution in order, without the ending."""
        return [tool for action in task.solution for tool in tools_of(action, task.environment) if tool != self._ending]

    def draw(self, rng: random.Random) -> tuple[Trajectory, Trajectory] | None:
        """Two of the tasks, of which the first is drawn from all alike that can be joined; None if there is none."""
        for first in rng.sample(self._known, len(self._known)):
            if second := self._second(first, rng):
                return first, second
        return None

    def _second(self, first: Trajectory, rng: random.Random) -> Trajectory | None:
        own = self.tools(first.task)
        if first.task.id not in self._offered:
            self._offered[first.task.id] = frozenset(offered_tools(self._environment, first.task))
        others = [
            other
            for other in self._known
            if other is not first
            and (tools := self.tools(other.task))
            and self._offered[first.task.id].issuperset(tools)
            and len(own) + len(tools) <= self._longest
        ]
        fed = [other for other in others if self._feeds & {*itertools.product(own, self.tools(other.task))}]
        return rng.choice(fed or others) if own and others else None


def _of_last_visit(episodes: Sequence[str], find: Callable[[str], Trajectory]) -> Trajectory | None:
    """The first valid trajectory of those of the last step; None if all of them were lost."""
    last = max(map(step_of, episodes))
    return next((one for name in episodes if step_of(name) == last and (one := find(name)).valid), None)


def _mastered(trajectory: Trajectory, inputs: EvolutionInputs, share: float) -> bool:
    """Whether `share` of the task's last visit solved it, where a reward of one half or more counts as solved, as for
    signals; beliefs and admission count rewards of 1 alone."""
    if replayed(trajectory) or not (visits := inputs.visits.get(trajectory.task.id)):
        return False
    played = visits[-1].solved + visits[-1].failed
    return played > 0 and visits[-1].solved >= share * played


def feeding(trajectories: Sequence[Trajectory]) -> set[tuple[str, str]]:
    """Pairs of different tools of which an output of the first was an argument of the second, later in one episode."""
    pairs: set[tuple[str, str]] = set()
    for trajectory in trajectories:
        told: dict[str, set[str]] = {}  # output → the tools that told it
        for turn in trajectory.turns:
            if not turn.observation.ok:
                continue
            for call in turn.action.calls:
                for value in map(str, call.arguments.values()):
                    pairs |= {(tool, call.name) for tool in told.get(value, ()) if tool != call.name}
            for call, message in zip(turn.action.calls, turn.observation.messages, strict=False):
                told.setdefault(message.content, set()).add(call.name)
    return pairs

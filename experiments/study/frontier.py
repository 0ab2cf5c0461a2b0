"""Frontier: expeditions around mastered tasks, each joined with another one, to train compositions of skills.

Their tasks have the origin "frontier". prefix_replay.py replays the first actions of such a task.
"""

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from cojax.registry import Range
from cojax.signals import step_of, task_of, tools_of
from cojax.synthesis import EvolutionInputs, Expedition, begins_at, reflect_on
from cojax.synthesis.evolutions import in_groups, offered_tools, partly_uniform
from cojax.types import Signal, Trajectory

# The origin of joined tasks, and the kind of their contexts: cojax.signals has guidance for it.
ORIGIN = "frontier"
# How many tasks are considered for each expedition.
_TASKS_PER_EXPEDITION = 8


@begins_at("episodes", "setups")
def frontier(
    inputs: EvolutionInputs,
    *,
    mastered: Annotated[float, "a share", Range(0.0, 1.0)] = 0.75,
    longest: Annotated[int, Range(2)] = 6,
    floor: Annotated[float, "a share", Range(0.0, 1.0)] = 0.2,
) -> Iterator[Expedition]:
    """Explores around mastered tasks, each joined with another (RL on compositions of skills: arXiv 2509.25123).

    A task is mastered if the policy solved at least the share `mastered` of the episodes of its last visit, without
    replayed actions. The expedition starts at the setup of the first task, and its plan is the tools of both solutions.
    So the first task's episode must offer the tools of the second. Both together have at most `longest` calls, without
    the ending, and each task found has all of them. Second tasks that a tool of the first one feeds
    (`feeding`) are preferred. The share `floor` is unguided, as in `uniform`, and so are all expeditions if
    no two tasks can be joined.
    """
    rng = random.Random(repr((ORIGIN, inputs.seed)))
    candidates = [
        trajectory
        for episodes in in_groups(inputs.episodes, task_of, rng)[: _TASKS_PER_EXPEDITION * inputs.contexts]
        if (trajectory := _find_last_visit(episodes, inputs.find)) and _is_mastered(trajectory, inputs, mastered)
    ]
    ending = inputs.explorer.ending
    tools_by_task = {
        one.task.id: [
            tool for action in one.task.solution for tool in tools_of(action, one.task.environment) if tool != ending
        ]
        for one in candidates
    }
    feeds = feeding(candidates)
    find_tools_at = functools.cache(lambda index: frozenset(offered_tools(inputs.environment, candidates[index].task)))

    def find_partners(index: int) -> list[Trajectory]:
        """Those that the task at this place can be joined with: only those that it feeds, if it feeds any."""
        own_tools = tools_by_task[candidates[index].task.id]
        others = [
            (other, other_tools)
            for other in candidates[:index] + candidates[index + 1 :]
            if (other_tools := tools_by_task[other.task.id])
            and find_tools_at(index).issuperset(other_tools)
            and len(own_tools) + len(other_tools) <= longest
        ]
        fed_partners = [other for other, other_tools in others if feeds & {*itertools.product(own_tools, other_tools)}]
        return (fed_partners or [other for other, _ in others]) if own_tools else []

    def draw_expedition() -> Expedition | None:
        # All tasks that can be joined are equally likely to be the first.
        for index in rng.sample(range(len(candidates)), len(candidates)):
            if partners := find_partners(index):
                first, second_trajectory = candidates[index], rng.choice(partners)
                evidence = f"mastered, as is {second_trajectory.task.query!r}"
                planned_tools = (*tools_by_task[first.task.id], *tools_by_task[second_trajectory.task.id])
                signal = Signal(ORIGIN, first.task.id, first.episode, evidence, tuple(dict.fromkeys(planned_tools)))
                return Expedition(first.task, ORIGIN, signal=evidence, reflect=reflect_on(first, signal, planned_tools))
        return None

    yield from partly_uniform(inputs, floor, rng, draw_expedition)


def _find_last_visit(episodes: Sequence[str], find_trajectory: Callable[[str], Trajectory]) -> Trajectory | None:
    """The first valid trajectory of the last step; None if all of them were lost."""
    last_step = max(map(step_of, episodes))
    return next((one for id in episodes if step_of(id) == last_step and (one := find_trajectory(id)).valid), None)


def _is_mastered(trajectory: Trajectory, inputs: EvolutionInputs, min_share: float) -> bool:
    """Whether at least `min_share` of the episodes of the task's last visit solved it.

    A reward of one half or more counts as solved, as for signals; beliefs and admission count only rewards of 1.
    """
    if trajectory.replayed or not (visits := inputs.visits.get(trajectory.task.id)):
        return False
    episode_count = visits[-1].solved + visits[-1].failed
    return episode_count > 0 and visits[-1].solved >= min_share * episode_count


def feeding(trajectories: Sequence[Trajectory]) -> set[tuple[str, str]]:
    """Pairs of different tools where an output of the first was later an argument of the second, in one episode."""
    tool_pairs: set[tuple[str, str]] = set()
    for trajectory in trajectories:
        tools_by_output: dict[str, set[str]] = {}  # output → the tools that returned it
        for turn in trajectory.turns:
            if not turn.observation.ok:
                continue
            for call in turn.action.calls:
                for value in map(str, call.arguments.values()):
                    tool_pairs |= {(tool, call.name) for tool in tools_by_output.get(value, ()) if tool != call.name}
            for call, message in zip(turn.action.calls, turn.observation.messages, strict=False):
                tools_by_output.setdefault(message.content, set()).add(call.name)
    return tool_pairs

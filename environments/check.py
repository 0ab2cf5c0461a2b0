"""python -m environments.check NAME: proves an environment's tasks sound by playing their own solutions.

For some tasks of every split: the solution earns reward 1, and again with the same observations; without one of the
actions that changed the state it does not. Exit code 0 if all hold, 1 if not, 2 for bad arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence

import environments
from cojax.environment import Actor, Environment, Episode, play
from cojax.types import Action, Message, Task, Trajectory, Turn, canonical


@dataclasses.dataclass
class Tally:
    """What was seen in one split; `faults` are readable lines."""

    tasks: int = 0
    actions: int = 0
    seconds: float = 0.0
    faults: list[str] = dataclasses.field(default_factory=list)


def check(environment: Environment, tasks: Iterable[Task]) -> Tally:
    """Plays every task's solution twice, and once without one effective action. Seconds are the environment's."""
    tally = Tally()
    for number, task in enumerate(tasks):
        tally.tasks += 1
        first, effective = _play(environment, task, task.solution)
        again, _ = _play(environment, task, task.solution)
        tally.actions += len(first.turns)
        tally.seconds += sum(turn.environment_seconds for turn in first.turns)
        if first.outcome != "finished" or first.reward != 1.0:
            ending = f"{first.outcome} with reward {first.reward} {first.error}".strip()
            tally.faults.append(f"{task.id}: the solution ends {ending}")
        elif _seen(first) != _seen(again):
            tally.faults.append(f"{task.id}: two plays of the solution differ")
        elif effective:
            dropped = effective[number % len(effective)]
            without = (*task.solution[:dropped], *task.solution[dropped + 1 :])
            if _play(environment, task, without)[0].reward == 1.0:
                tally.faults.append(f"{task.id}: the solution without action {dropped + 1} still earns reward 1")
    return tally


def _play(environment: Environment, task: Task, actions: Sequence[Action]) -> tuple[Trajectory, list[int]]:
    """The trajectory of these actions, and the indices of those that changed the state (the last is left out)."""
    states: list[str] = []
    trajectory = play(environment, task, _replay(actions, states), max_turns=len(actions))
    return trajectory, [index for index in range(len(states) - 1) if states[index] != states[index + 1]]


def _replay(actions: Sequence[Action], states: list[str]) -> Actor:
    remaining = iter(actions)

    def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        states.append(canonical(episode.state()))
        return Turn(next(remaining))

    return act


def _seen(trajectory: Trajectory) -> object:
    return trajectory.opening, [turn.observation for turn in trajectory.turns], trajectory.reward, trajectory.checks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m environments.check", description=__doc__.partition("\n")[0])
    parser.add_argument("name", help=f"one of {', '.join(environments.available())}")
    parser.add_argument("--splits", default="seed,dev,eval,challenge", help="comma-separated (default: %(default)s)")
    parser.add_argument("--count", type=int, default=200, help="tasks of each split (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        environment = environments.load(options.name)
        drawn = {split: environment.tasks(split, options.count) for split in options.splits.split(",")}
    except ValueError as error:
        parser.error(str(error))
    faults: list[str] = []
    for split, tasks in drawn.items():
        tally = check(environment, tasks)
        faults += tally.faults
        speed = tally.actions / tally.seconds if tally.seconds else 0.0
        print(f"{split:<12} {tally.tasks:5} tasks {tally.actions:6} actions {speed:9,.0f} a second")
        print("".join(f"  FAULT {fault}\n" for fault in tally.faults[:10]), end="")
    print(f"{options.name}: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

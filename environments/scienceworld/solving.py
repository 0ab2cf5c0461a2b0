"""The simulator's own solutions of official tasks, shortened until they fit into an episode.

    python -m environments.scienceworld.solving JVM TASK COUNT FILE

writes one JSON object: of each official split of a task, the first COUNT variations whose solution fits. It runs in the
wheel's own virtual environment, and discards what the simulator prints.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .engine import FULL, Simulator, prepare_to_solve
from .limits import limit_of

SIMPLIFICATIONS = "easy"
# The most variations to try for each one to find: if solutions are long, few of them fit.
_TRIED = 4
# A `wait` lasts as long as this many `wait1`.
_WAIT = 10
# Commands that a solution does not need: looks, and the opening of doors, which `easy` leaves open.
_IDLE = ("look", "examine", "open door")
# Commands that the simulator's solutions use to let time pass.
_WATCHING = ("use thermometer", "wait1")


def records(jvm: str, task: str, count: int) -> dict[str, Any]:
    """The variations of each official split, and for `count` of each their variation, description and solution."""
    splits = Simulator(jvm, task, 0, SIMPLIFICATIONS).splits()
    solutions = {split: _solve(jvm, task, numbers, count) for split, numbers in splits.items()}
    return {"task": task, "variations": splits, "solved": solutions}


def _solve(jvm: str, task: str, numbers: Sequence[int], count: int) -> list[dict[str, Any]]:
    solutions: list[dict[str, Any]] = []
    for number in numbers[: _TRIED * count]:
        solver = Simulator(jvm, task, number, SIMPLIFICATIONS, gold=True)
        solution = shortest(jvm, task, number, solver.gold())
        if solution:
            solutions.append({"variation": number, "description": solver.description, "solution": solution})
        if len(solutions) == count:
            break
    return solutions


def shortest(jvm: str, task: str, number: int, gold: Sequence[str]) -> list[str]:
    """The shortened solution if it reaches the full score in time, else the whole one if that does, else []."""
    for commands in (list(waiting(gold)), gold):
        solution = _play(jvm, task, number, commands)
        if solution and len(solution) <= limit_of(task):
            return solution
    return []


def waiting(gold: Sequence[str]) -> Iterator[str]:
    """The commands without idle ones. In a row of commands that let time pass, waits replace all but the last."""
    watches: list[str] = []
    for command in (*gold, ""):
        if command.startswith(_IDLE):
            continue
        if command.startswith(_WATCHING):
            watches.append(command)
            continue
        count = len(watches[:-1])
        yield from ["wait"] * (count // _WAIT) + ["wait1"] * (count % _WAIT) + watches[-1:]
        watches = []
        if command:
            yield command


def _play(jvm: str, task: str, number: int, commands: Sequence[str]) -> list[str]:
    """The commands up to the one that completes the task; none if the score is not full then."""
    simulator = Simulator(jvm, task, number, SIMPLIFICATIONS)
    for done, command in enumerate(commands, 1):
        simulator.step(command)
        if simulator.over:
            return list(commands[:done]) if simulator.score == FULL else []
    return []


def main(arguments: Sequence[str]) -> None:
    jvm, task, count, file = arguments
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    prepare_to_solve(jvm)
    part = Path(file).with_suffix(".part")
    part.write_text(json.dumps(records(jvm, task, int(count))))
    part.replace(file)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The simulator's own solutions of official tasks, shortened until they fit into an episode.

    python -m environments.scienceworld.solving JVM TASK COUNT FILE

writes the first COUNT variations of each official split of a task whose solution fits, as one JSON object. It runs in
the wheel's own virtual environment. The simulator prints whatever it does; that goes nowhere.
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
# Variations of a split that are tried for each one wanted: where the solutions are long, few fit.
_TRIED = 4
# A `wait` is so many times `wait1`.
_WAIT = 10
# Commands that a solution can do without: looks, and doors, which `easy` leaves open.
_IDLE = ("look", "examine", "open door")
# Commands with which the simulator lets time pass.
_WATCHING = ("use thermometer", "wait1")


def records(jvm: str, task: str, count: int) -> dict[str, Any]:
    """The variations of each official split, and `count` solved ones of each: variation, description, solution."""
    splits = Simulator(jvm, task, 0, SIMPLIFICATIONS).splits()
    solved = {split: _solved(jvm, task, numbers, count) for split, numbers in splits.items()}
    return {"task": task, "variations": splits, "solved": solved}


def _solved(jvm: str, task: str, numbers: Sequence[int], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in numbers[: _TRIED * count]:
        solver = Simulator(jvm, task, number, SIMPLIFICATIONS, gold=True)
        solution = shortest(jvm, task, number, solver.gold())
        if solution:
            found.append({"variation": number, "description": solver.description, "solution": solution})
        if len(found) == count:
            break
    return found


def shortest(jvm: str, task: str, number: int, gold: Sequence[str]) -> list[str]:
    """The first of the shortened solutions, or the whole one, that reaches the full score in time; none may."""
    for commands in (list(waiting(gold)), gold):
        reached = _play(jvm, task, number, commands)
        if reached and len(reached) <= limit_of(task):
            return reached
    return []


def waiting(gold: Sequence[str]) -> Iterator[str]:
    """The commands without idle ones, and with waits in place of all but the last of those that watch time pass."""
    watched: list[str] = []
    for command in (*gold, ""):
        if command.startswith(_IDLE):
            continue
        if command.startswith(_WATCHING):
            watched.append(command)
            continue
        passed = len(watched[:-1])
        yield from ["wait"] * (passed // _WAIT) + ["wait1"] * (passed % _WAIT) + watched[-1:]
        watched = []
        if command:
            yield command


def _play(jvm: str, task: str, number: int, commands: Sequence[str]) -> list[str]:
    """The commands up to the one that completes the task; none where the score is not full then."""
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

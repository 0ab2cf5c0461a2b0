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

from .engine import FULL_SCORE, Simulator, prepare_to_solve
from .limits import limit_of

SIMPLIFICATIONS = "easy"
# The most variations to try for each solution wanted, because long solutions often do not fit.
_MAX_TRIES_PER_SOLUTION = 4
# One `wait` equals this many `wait1`s.
_MOVES_PER_WAIT = 10
# Commands that a solution does not need: looks, and opening doors, which are already open under `easy`.
_IDLE_COMMANDS = ("look", "examine", "open door")
# Commands that the simulator's solutions use to let time pass.
_WAITING_COMMANDS = ("use thermometer", "wait1")


def records(jvm: str, task: str, solution_count: int) -> dict[str, Any]:
    """Returns the variations of each official split and, for `solution_count` of them, description and solution."""
    official_splits = Simulator(jvm, task, 0, SIMPLIFICATIONS).splits()
    solutions = {split: _solve(jvm, task, variations, solution_count) for split, variations in official_splits.items()}
    return {"task": task, "variations": official_splits, "solved": solutions}


def _solve(jvm: str, task: str, variations: Sequence[int], solution_count: int) -> list[dict[str, Any]]:
    solutions: list[dict[str, Any]] = []
    for variation in variations[: _MAX_TRIES_PER_SOLUTION * solution_count]:
        solver = Simulator(jvm, task, variation, SIMPLIFICATIONS, gold=True)
        solution = shortest(jvm, task, variation, solver.gold())
        if solution:
            solutions.append({"variation": variation, "description": solver.description, "solution": solution})
        if len(solutions) == solution_count:
            break
    return solutions


def shortest(jvm: str, task: str, variation: int, gold_commands: Sequence[str]) -> list[str]:
    """Returns the shortened solution if it reaches the full score in time, else the whole one if that does, else []."""
    for candidate in (list(shorten(gold_commands)), gold_commands):
        solution = _cut_at_full_score(jvm, task, variation, candidate)
        if solution and len(solution) <= limit_of(task):
            return solution
    return []


def shorten(gold_commands: Sequence[str]) -> Iterator[str]:
    """Yields the commands without idle ones; waits replace commands that let time pass, but the last of a series."""
    waits: list[str] = []
    for command in (*gold_commands, ""):
        if command.startswith(_IDLE_COMMANDS):
            continue
        if command.startswith(_WAITING_COMMANDS):
            waits.append(command)
            continue
        wait_count = len(waits[:-1])
        yield from ["wait"] * (wait_count // _MOVES_PER_WAIT) + ["wait1"] * (wait_count % _MOVES_PER_WAIT) + waits[-1:]
        waits = []
        if command:
            yield command


def _cut_at_full_score(jvm: str, task: str, variation: int, commands: Sequence[str]) -> list[str]:
    """Returns the commands up to the one that ends the episode; none if the score is not full then."""
    simulator = Simulator(jvm, task, variation, SIMPLIFICATIONS)
    for command_count, command in enumerate(commands, 1):
        simulator.step(command)
        if simulator.over:
            return list(commands[:command_count]) if simulator.score == FULL_SCORE else []
    return []


def main(arguments: Sequence[str]) -> None:
    jvm, task, solution_count, output_path = arguments
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 1)
    prepare_to_solve(jvm)
    partial_path = Path(output_path).with_suffix(".part")
    partial_path.write_text(json.dumps(records(jvm, task, int(solution_count))))
    partial_path.replace(output_path)


if __name__ == "__main__":
    main(sys.argv[1:])

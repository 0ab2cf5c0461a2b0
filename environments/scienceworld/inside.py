"""The environment and its worlds, which run in a worker inside the wheel's own virtual environment.

The simulator's object tree becomes the state of a world, as JSON that is equal for equal worlds.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Action, Check, Evaluation, Task, Triplet, canonical
from ..tools import ToolEnvironment, commands
from ..tools.commands import verb
from .data import load
from .engine import FULL_SCORE, Simulator
from .limits import limit_of
from .solving import SIMPLIFICATIONS

NAME = "scienceworld"
# A world is a JVM, with 200 MB of memory.
_CONCURRENCY = 16
# Verbs that a task cannot consist of: they only show something, let time pass, or concern the official task.
UNASKED = frozenset(("look", "examine", "read", "inventory", "task", "wait", "wait1", "focus", "reset"))
_GOING = frozenset(("go", "teleport"))
# Objects whose commands have no effect, or none that a state shows.
_FIXED = re.compile(r"\b(door|agent)\b")
# The simulator asks which of several meanings a command has.
_AMBIGUOUS = "Ambiguous request"


def worth_trying(valid: Iterable[str], rooms: Iterable[str]) -> list[str]:
    """The valid commands that a task may consist of, without those that have no effect.

    `focus` is not among them: it claims that the official task is about an object, and ends the episode if it is not.
    """
    pattern = re.compile("|".join((_FIXED.pattern, *(rf"\b(to|into|in|on|from) {re.escape(room)}$" for room in rooms))))
    return [
        command
        for command in valid
        if verb(command) not in UNASKED and (verb(command) in _GOING or not pattern.search(command))
    ]


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that these steps fulfil; None if there is none, or if a command had several meanings."""
    if any(step.observation.text.startswith(_AMBIGUOUS) for step in steps):
        return None
    return commands.phrase(steps, UNASKED)


_UNKNOWN = "No known action matches that input."


class World:
    """A single-use world of one episode. A command that the simulator does not know raises ValueError."""

    def __init__(self, jvm: str, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup that names no variation of a task."""
        if set(setup) != {"task", "variation", "simplifications"}:
            raise ValueError(f"the setup is {dict(setup)!r:.200}; expected task, variation and simplifications")
        self.simulator = Simulator(jvm, setup["task"], setup["variation"], setup["simplifications"])
        self._limit = limit_of(setup["task"])
        self._command_count = 0
        self._cached_state: Mapping[str, Any] | None = None

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Makes the command of a call; returns the simulator's reply."""
        if name == commands.ENDING:
            return ""
        command = commands.command_of(name, arguments)
        self._command_count += 1
        reply = self.simulator.step(command)
        self._cached_state = None
        if reply.startswith(_UNKNOWN):
            raise ValueError(reply)
        return reply

    def over(self) -> bool:
        """Whether the task is completed or failed, or the episode has used up its commands."""
        return self.simulator.over or self._command_count >= self._limit

    def state(self) -> Mapping[str, Any]:
        """Where the agent is, what it carries, what each room holds, and the score."""
        if self._cached_state is None:
            self._cached_state = state_of(self.simulator.objects(), self.simulator.score)
        return self._cached_state


def offers(world: World) -> list[tuple[str, dict[str, Any]]]:
    """The (tool, arguments) of commands worth trying now."""
    state = world.state()
    return commands.offers(worth_trying(world.simulator.valid(), state["rooms"]), canonical(state))


# The benchmark has no system message, so this one is ours.
system_message = functools.partial(commands.system_message, Path(__file__).with_name("commands.txt"))


def make(jvm: str, place: str, instructions: str = "full") -> ToolEnvironment:
    """The environment of the tasks in the folder `place`.

    It reads everything from disk now, but starts no JVM, as a process with a JVM cannot fork.
    """
    official = load(Path(place))
    splits = {split: _tasks(official, split) for split in ("train", "dev", "test")}
    return commands.environment(
        NAME,
        "open cupboard",
        _CONCURRENCY,
        {**splits, "eval": splits["test"], "held_out": splits["test"]},
        _judge,
        open=lambda setup: World(jvm, setup),
        setups=[_setup(record["task"], number) for record in official for number in record["variations"]["train"]],
        affordances=offers,
        phrase=phrase,
        instructions=system_message(instructions),
    )


def _tasks(official: list[dict[str, Any]], split: str) -> list[Task]:
    """The solved tasks of a split: the first variation of each task, then the second, and so on."""
    by_name = [[_task(record["task"], entry) for entry in record["solved"][split]] for record in official]
    return [task for layer in itertools.zip_longest(*by_name) for task in layer if task is not None]


def _task(name: str, entry: Mapping[str, Any]) -> Task:
    solution = tuple(Action(calls=(commands.call(command),)) for command in entry["solution"])
    return Task(NAME, entry["description"], _setup(name, entry["variation"]), solution)


def _setup(name: str, variation: int) -> dict[str, Any]:
    return {"task": name, "variation": variation, "simplifications": SIMPLIFICATIONS}


def _judge(world: World) -> Evaluation:
    """The official verdict: full reward for the full score; the score is the partial reward."""
    score = world.simulator.score
    checks = tuple(Check(name, success) for name, success in goals(world.simulator.progress))
    return Evaluation(float(score == FULL_SCORE), checks, max(0, score) / FULL_SCORE)


_AGENT, _INVENTORY = "agent", "inventory"
# Plants grow and drink whatever the agent does. So only the kind of a plant counts, and water in a flower pot does not.
_PLANT, _POT, _WATER = "plant matter", "flower pot", "water"


def state_of(universe: Mapping[str, Any], score: int) -> dict[str, Any]:
    """The agent's room, its inventory, and the objects of each room, from the official object tree.

    An object's name, its substance and phase, and whether it is open, on, broken, burning, burnt or connected count.
    Temperatures and ages do not: they change with every move, whatever the agent does.
    """
    names = dict(_names(universe))
    rooms: dict[str, list[Any]] = {}
    room_name, inventory = "", list[Any]()
    for room in _inside(universe):
        for entity in _inside(room):
            if entity["name"] == _AGENT:
                room_name = room["name"]
                bags = [bag for bag in _inside(entity) if bag["name"] == _INVENTORY]
                inventory = [_object(item, names) for bag in bags for item in _inside(bag)]
        rooms[room["name"]] = _sort(_object(entity, names) for entity in _inside(room) if entity["name"] != _AGENT)
    return {"place": room_name, "inventory": _sort(inventory), "rooms": rooms, "score": score}


def goals(progress: str) -> list[tuple[str, bool]]:
    """(goal, whether it is reached) for each goal that the task sets in a fixed order, from the simulator's report."""
    sequence = progress.partition("Sequential Subgoals:")[2].partition("Unordered")[0]
    rows = [line.split("\t") for line in sequence.splitlines() if line.count("\t") >= 3]
    return [(row[3].strip(), row[1].strip() == "true") for row in rows]


def _object(item: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any] | None:
    """One object and its contents; None for a terminal without connections, which every object has."""
    material = item["propMaterial"]
    if item["propLife"] and material and material["substanceName"] == _PLANT:
        return {"plant": item["propLife"]["lifeformType"]}
    summary: dict[str, Any] = {"object": item["name"]}
    if material:
        summary["is"] = " ".join((material["stateOfMatter"], material["color"], material["substanceName"]))
    if qualities := list(_qualities(item, names)):
        summary["also"] = qualities
    pot = _POT in item["name"]
    holds = _sort(_object(inner, names) for inner in _inside(item) if not (pot and inner["name"] == _WATER))
    if holds:
        summary["holds"] = holds
    terminal = item["name"] in ("anode", "cathode") or item["name"].startswith("terminal ")
    return None if terminal and summary == {"object": item["name"]} else summary


def _qualities(item: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[str]:
    material, container, device = item["propMaterial"] or {}, item["propContainer"] or {}, item["propDevice"] or {}
    if container.get("isClosable"):
        yield "open" if container["isOpen"] else "closed"
    if (item["propPortal"] or {}).get("isOpen") is not None:
        yield "open" if item["propPortal"]["isOpen"] else "closed"
    if device.get("isActivated"):
        yield "on"
    if device.get("isBroken"):
        yield "broken"
    if material.get("isCombusting"):
        yield "burning"
    if material.get("hasCombusted"):
        yield "burnt"
    for other in (item["propElectricalConnection"] or {}).get("connectedTo", ()):
        yield f"connected to {names.get(other, other)}"


def _names(item: Mapping[str, Any], holder: str = "") -> Iterator[tuple[str, str]]:
    """(id, name preceded by its holder's name) of all objects."""
    for inner in _inside(item):
        yield inner["uuid"], f"{holder} {inner['name']}".strip()
        yield from _names(inner, inner["name"])


def _inside(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [inner for inner in item["contents"].values() if not inner["isDeleted"]]


def _sort(objects: Any) -> list[Any]:
    """The objects in a canonical order: the simulator's differs from run to run."""
    return sorted((entity for entity in objects if entity), key=lambda entity: json.dumps(entity, sort_keys=True))

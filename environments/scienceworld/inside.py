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
from ..tools.commands import verb_of
from .data import load_tasks
from .engine import FULL_SCORE, Simulator
from .limits import limit_of
from .solving import SIMPLIFICATIONS

NAME = "scienceworld"
# A world is a JVM, with 200 MB of memory.
_MAX_WORLDS = 16
# Verbs that a task cannot consist of: they only show something, let time pass, or concern the official task.
UNASKED_VERBS = frozenset(("look", "examine", "read", "inventory", "task", "wait", "wait1", "focus", "reset"))
_GOING_VERBS = frozenset(("go", "teleport"))
# Commands on these objects have no effect, or none that a state shows.
_FIXTURES = re.compile(r"\b(door|agent)\b")
# The simulator then asks which of several meanings a command has.
_AMBIGUOUS_REPLY = "Ambiguous request"


def select_commands(valid_commands: Iterable[str], rooms: Iterable[str]) -> list[str]:
    """The valid commands that a task may consist of, without those that have no effect.

    `focus` is not among them: it claims that the official task is about an object, and ends the episode if it is not.
    """
    idle = re.compile("|".join((_FIXTURES.pattern, *(rf"\b(to|into|in|on|from) {re.escape(room)}$" for room in rooms))))
    return [
        command
        for command in valid_commands
        if verb_of(command) not in UNASKED_VERBS and (verb_of(command) in _GOING_VERBS or not idle.search(command))
    ]


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that these steps fulfil; None if there is none, or if a command had several meanings."""
    if any(step.observation.text.startswith(_AMBIGUOUS_REPLY) for step in steps):
        return None
    return commands.phrase(steps, UNASKED_VERBS)


_UNKNOWN_REPLY = "No known action matches that input."


class World:
    """A single-use world of one episode. A command that the simulator does not know raises ValueError."""

    def __init__(self, jvm_library: str, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup that names no variation of a task."""
        if set(setup) != {"task", "variation", "simplifications"}:
            raise ValueError(f"the setup is {dict(setup)!r:.200}; expected task, variation and simplifications")
        self.simulator = Simulator(jvm_library, setup["task"], setup["variation"], setup["simplifications"])
        self._max_commands = limit_of(setup["task"])
        self._command_count = 0
        self._cached_state: Mapping[str, Any] | None = None

    def call(self, tool_name: str, arguments: Mapping[str, Any]) -> str:
        """Makes the command of a call; returns the simulator's reply."""
        if tool_name == commands.ENDING_TOOL:
            return ""
        command = commands.read_command(tool_name, arguments)
        self._command_count += 1
        reply = self.simulator.step(command)
        self._cached_state = None
        if reply.startswith(_UNKNOWN_REPLY):
            raise ValueError(reply)
        return reply

    def over(self) -> bool:
        """Whether the task is completed or failed, or the episode has used up its commands."""
        return self.simulator.over or self._command_count >= self._max_commands

    def state(self) -> Mapping[str, Any]:
        """Where the agent is, what it carries, what each room holds, and the score."""
        if self._cached_state is None:
            self._cached_state = read_state(self.simulator.objects(), self.simulator.score)
        return self._cached_state


def propose_commands(world: World) -> list[tuple[str, dict[str, Any]]]:
    """The (tool, arguments) of commands worth trying now."""
    state = world.state()
    return commands.draw_offers(select_commands(world.simulator.valid(), state["rooms"]), canonical(state))


# The benchmark has no system message, so this one is ours.
system_message = functools.partial(commands.read_system_message, Path(__file__).with_name("commands.txt"))


def make(jvm_library: str, tasks_folder: str, instructions: str = "full") -> ToolEnvironment:
    """Makes the environment of the tasks in `tasks_folder`.

    It reads everything from disk now, but starts no JVM, because a process with a JVM cannot fork.
    """
    records = load_tasks(Path(tasks_folder))
    splits = {split: _make_tasks(records, split) for split in ("train", "dev", "test")}
    return commands.make_environment(
        NAME,
        "open cupboard",
        _MAX_WORLDS,
        {**splits, "eval": splits["test"], "held_out": splits["test"]},
        _judge,
        open=lambda setup: World(jvm_library, setup),
        setups=[_setup(record["task"], variation) for record in records for variation in record["variations"]["train"]],
        affordances=propose_commands,
        phrase=phrase,
        instructions=system_message(instructions),
    )


def _make_tasks(records: list[dict[str, Any]], split: str) -> list[Task]:
    """The solved tasks of a split: the first variation of each task, then the second, and so on."""
    task_lists = [[_make_task(record["task"], solution) for solution in record["solved"][split]] for record in records]
    return [task for layer in itertools.zip_longest(*task_lists) for task in layer if task is not None]


def _make_task(task_name: str, record: Mapping[str, Any]) -> Task:
    solution = tuple(Action(calls=(commands.make_call(command),)) for command in record["solution"])
    return Task(NAME, record["description"], _setup(task_name, record["variation"]), solution)


def _setup(task_name: str, variation: int) -> dict[str, Any]:
    return {"task": task_name, "variation": variation, "simplifications": SIMPLIFICATIONS}


def _judge(world: World) -> Evaluation:
    """The official verdict: full reward for the full score; the score is the partial reward."""
    score = world.simulator.score
    checks = tuple(Check(goal, is_reached) for goal, is_reached in read_goals(world.simulator.progress))
    return Evaluation(float(score == FULL_SCORE), checks, max(0, score) / FULL_SCORE)


_AGENT, _INVENTORY = "agent", "inventory"
# Plants grow and drink whatever the agent does. So only the kind of a plant counts, and water in a flower pot does not.
_PLANT, _POT, _WATER = "plant matter", "flower pot", "water"


def read_state(object_tree: Mapping[str, Any], score: int) -> dict[str, Any]:
    """The agent's room, its inventory, and the objects of each room, from the official object tree.

    An object's name, its substance and phase, and whether it is open, on, broken, burning, burnt or connected count.
    Temperatures and ages do not: they change with every move, whatever the agent does.
    """
    by_id = dict(_list_names_by_id(object_tree))
    rooms: dict[str, list[Any]] = {}
    room_name, inventory = "", list[Any]()
    for room in _contents(object_tree):
        for entity in _contents(room):
            if entity["name"] == _AGENT:
                room_name = room["name"]
                holders = [holder for holder in _contents(entity) if holder["name"] == _INVENTORY]
                inventory = [_describe(item, by_id) for holder in holders for item in _contents(holder)]
        rooms[room["name"]] = _sort(_describe(entity, by_id) for entity in _contents(room) if entity["name"] != _AGENT)
    return {"place": room_name, "inventory": _sort(inventory), "rooms": rooms, "score": score}


def read_goals(progress: str) -> list[tuple[str, bool]]:
    """(goal, whether it is reached) for each goal that the task sets in a fixed order, from the simulator's report."""
    goal_lines = progress.partition("Sequential Subgoals:")[2].partition("Unordered")[0]
    goal_rows = [line.split("\t") for line in goal_lines.splitlines() if line.count("\t") >= 3]
    return [(cells[3].strip(), cells[1].strip() == "true") for cells in goal_rows]


def _describe(item: Mapping[str, Any], by_id: Mapping[str, str]) -> dict[str, Any] | None:
    """One object and its contents; None for a terminal without connections, which every object has."""
    material = item["propMaterial"]
    if item["propLife"] and material and material["substanceName"] == _PLANT:
        return {"plant": item["propLife"]["lifeformType"]}
    summary: dict[str, Any] = {"object": item["name"]}
    if material:
        summary["is"] = " ".join((material["stateOfMatter"], material["color"], material["substanceName"]))
    if qualities := list(_list_qualities(item, by_id)):
        summary["also"] = qualities
    is_pot = _POT in item["name"]
    contents = _sort(_describe(inner, by_id) for inner in _contents(item) if not (is_pot and inner["name"] == _WATER))
    if contents:
        summary["holds"] = contents
    is_terminal = item["name"] in ("anode", "cathode") or item["name"].startswith("terminal ")
    return None if is_terminal and summary == {"object": item["name"]} else summary


def _list_qualities(item: Mapping[str, Any], by_id: Mapping[str, str]) -> Iterator[str]:
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
    for other_id in (item["propElectricalConnection"] or {}).get("connectedTo", ()):
        yield f"connected to {by_id.get(other_id, other_id)}"


def _list_names_by_id(item: Mapping[str, Any], holder_name: str = "") -> Iterator[tuple[str, str]]:
    """(id, name preceded by its holder's name) of all objects."""
    for content in _contents(item):
        yield content["uuid"], f"{holder_name} {content['name']}".strip()
        yield from _list_names_by_id(content, content["name"])


def _contents(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [content for content in item["contents"].values() if not content["isDeleted"]]


def _sort(summaries: Any) -> list[Any]:
    """The objects in a canonical order: the simulator's differs from run to run."""
    return sorted((entry for entry in summaries if entry), key=lambda entry: json.dumps(entry, sort_keys=True))

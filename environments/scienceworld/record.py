"""What the simulator tells of its objects → the state of a world, as JSON that is equal for equal worlds."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

_AGENT, _INVENTORY = "agent", "inventory"
# Plants grow and drink, whatever the agent does; so of a plant only its kind counts, and no water in a pot of plants.
_PLANT, _POT, _WATER = "plant matter", "flower pot", "water"


def state_of(universe: Mapping[str, Any], score: int) -> dict[str, Any]:
    """The room in which the agent is, what it carries, and the objects of each room, from the official object tree.

    Of an object its name, its substance and phase, and whether it is open, on, broken, burning, burnt or connected
    count. Temperatures and ages do not: they change with every move, whatever the agent does.
    """
    named = dict(_names(universe))
    rooms: dict[str, list[Any]] = {}
    place, carried = "", list[Any]()
    for room in _inside(universe):
        for one in _inside(room):
            if one["name"] == _AGENT:
                place = room["name"]
                bags = [held for held in _inside(one) if held["name"] == _INVENTORY]
                carried = [_object(item, named) for bag in bags for item in _inside(bag)]
        rooms[room["name"]] = _sorted(_object(one, named) for one in _inside(room) if one["name"] != _AGENT)
    return {"place": place, "inventory": _sorted(carried), "rooms": rooms, "score": score}


def goals(progress: str) -> list[tuple[str, bool]]:
    """(goal, whether it is reached) of the goals that the task has in a fixed order, from the simulator's report."""
    ordered = progress.partition("Sequential Subgoals:")[2].partition("Unordered")[0]
    rows = [line.split("\t") for line in ordered.splitlines() if line.count("\t") >= 3]
    return [(row[3].strip(), row[1].strip() == "true") for row in rows]


def _object(told: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any] | None:
    """One object with what it holds; None for a terminal to which nothing is connected: every object has some."""
    material = told["propMaterial"]
    if told["propLife"] and material and material["substanceName"] == _PLANT:
        return {"plant": told["propLife"]["lifeformType"]}
    found: dict[str, Any] = {"object": told["name"]}
    if material:
        found["is"] = " ".join((material["stateOfMatter"], material["color"], material["substanceName"]))
    if qualities := list(_qualities(told, named)):
        found["also"] = qualities
    pot = _POT in told["name"]
    holds = _sorted(_object(inner, named) for inner in _inside(told) if not (pot and inner["name"] == _WATER))
    if holds:
        found["holds"] = holds
    terminal = told["name"] in ("anode", "cathode") or told["name"].startswith("terminal ")
    return None if terminal and found == {"object": told["name"]} else found


def _qualities(told: Mapping[str, Any], named: Mapping[str, str]) -> Iterator[str]:
    material, container, device = told["propMaterial"] or {}, told["propContainer"] or {}, told["propDevice"] or {}
    if container.get("isClosable"):
        yield "open" if container["isOpen"] else "closed"
    if (told["propPortal"] or {}).get("isOpen") is not None:
        yield "open" if told["propPortal"]["isOpen"] else "closed"
    if device.get("isActivated"):
        yield "on"
    if device.get("isBroken"):
        yield "broken"
    if material.get("isCombusting"):
        yield "burning"
    if material.get("hasCombusted"):
        yield "burnt"
    for other in (told["propElectricalConnection"] or {}).get("connectedTo", ()):
        yield f"connected to {named.get(other, other)}"


def _names(told: Mapping[str, Any], holder: str = "") -> Iterator[tuple[str, str]]:
    """(id, name after the name of its holder) of all objects."""
    for inner in _inside(told):
        yield inner["uuid"], f"{holder} {inner['name']}".strip()
        yield from _names(inner, inner["name"])


def _inside(told: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [inner for inner in told["contents"].values() if not inner["isDeleted"]]


def _sorted(objects: Any) -> list[Any]:
    """Objects in an order of their own: the simulator's differs from run to run."""
    return sorted((one for one in objects if one), key=lambda one: json.dumps(one, sort_keys=True))

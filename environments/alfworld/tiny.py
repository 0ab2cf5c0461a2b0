"""Households of our own, in the form of ALFRED's, from which the official `alfworld-generate` makes games.

    python -m environments.alfworld.tiny PROBLEMS GAMES

writes an `initial_state.pddl` and a `traj_data.json` for each problem into the folder PROBLEMS. Then the official
script makes games of them in GAMES. All this runs in the wheel's own virtual environment: the installed package defines
which object fits where, what can be heated, and how each kind of task is stated.
"""

import importlib
import json
import random
import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Room → receptacle → the least and the most of them.
ROOMS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "kitchen": {
        "CounterTop": (1, 2), "Cabinet": (2, 4), "Drawer": (1, 3), "DiningTable": (1, 1), "Fridge": (1, 1),
        "Microwave": (1, 1), "SinkBasin": (1, 1), "GarbageCan": (1, 1), "StoveBurner": (0, 2),
    },
    "bedroom": {
        "Bed": (1, 1), "Desk": (1, 1), "Drawer": (2, 4), "Dresser": (1, 1), "SideTable": (1, 2), "Shelf": (1, 2),
        "GarbageCan": (1, 1),
    },
    "living room": {
        "Sofa": (1, 1), "ArmChair": (1, 2), "CoffeeTable": (1, 1), "SideTable": (1, 2), "Drawer": (1, 2),
        "Shelf": (0, 2), "GarbageCan": (1, 1),
    },
    "bathroom": {
        "SinkBasin": (1, 1), "CounterTop": (1, 1), "Cabinet": (2, 3), "Toilet": (1, 1), "Drawer": (0, 2),
        "GarbageCan": (1, 1),
    },
}  # fmt: skip
# Room → the objects that may lie in it.
_OBJECTS: Mapping[str, Sequence[str]] = {
    "kitchen": (
        "Apple", "Bowl", "Bread", "ButterKnife", "Cup", "DishSponge", "Egg", "Fork", "Knife", "Lettuce", "Mug", "Pan",
        "PepperShaker", "Plate", "Pot", "Potato", "SaltShaker", "Spatula", "Spoon", "Tomato",
    ),
    "bedroom": (
        "AlarmClock", "Book", "Bowl", "CD", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Mug", "Pen", "Pencil",
        "Pillow",
    ),
    "living room": (
        "Book", "CreditCard", "KeyChain", "Laptop", "Newspaper", "Pillow", "RemoteControl", "Statue", "Watch",
    ),
    "bathroom": ("Candle", "Cloth", "DishSponge", "SoapBar", "SoapBottle", "SprayBottle", "TissueBox", "ToiletPaper"),
}  # fmt: skip
# Kind of task → the rooms that have such tasks, and what must be possible with the object.
_KINDS: Mapping[str, tuple[Sequence[str], str]] = {
    "pick_and_place_simple": (("kitchen", "bedroom", "living room", "bathroom"), ""),
    "look_at_obj_in_light": (("bedroom", "living room"), ""),
    "pick_clean_then_place_in_recep": (("kitchen", "bathroom"), "Cleanable"),
    "pick_heat_then_place_in_recep": (("kitchen",), "Heatable"),
    "pick_cool_then_place_in_recep": (("kitchen",), "Coolable"),
    "pick_two_obj_and_place": (("kitchen", "bedroom", "living room", "bathroom"), ""),
}
_LAMPS = {"bedroom": ("DeskLamp", "Desk"), "living room": ("FloorLamp", "SideTable")}
# How the package's goals name the parts of a task.
_SHORT = {"obj": "object", "recep": "parent", "toggle": "toggle", "mrecep": "mrecep"}
# The package has no solvable task of this kind about a slice.
_WHOLE = "look_at_obj_in_light"
# Split → the numbers of its rooms; problems of each kind of task; further ones about a slice. Seen rooms are those of
# training.
SPLITS: Mapping[str, tuple[Sequence[int], int, int]] = {
    "train": (range(1, 5), 8, 2),
    "valid_seen": (range(1, 5), 3, 1),
    "valid_unseen": (range(5, 7), 3, 1),
}
# The most objects that lie in a room, and the most draws of a room until one has a task of the kind.
_LYING, _TRIES = 12, 1_000
_TREATED = ("Fridge", "Microwave", "SinkBasin")
_KNIVES = frozenset(("Knife", "ButterKnife"))


def problems() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(folder, PDDL, the record that `alfworld-generate` reads of a trajectory) of every problem; deterministic."""
    for split, (numbers, whole, slices) in SPLITS.items():
        for kind, (rooms, _) in _KINDS.items():
            for index in range(1, whole + 1 + (0 if kind == _WHOLE else slices)):
                rng, slicing = random.Random(repr((split, kind, index))), index > whole
                room = "kitchen" if slicing else rooms[index % len(rooms)]
                pddl, record = _problem(kind, slicing, room, rng.choice(numbers), rng)
                parts = [record["pddl_params"][f"{part}_target"] or "None" for part in ("object", "parent", "toggle")]
                # The folder's name must not say "Sliced", as the official script skips such folders: one of its experts
                # cannot slice.
                yield f"{split}/{'-'.join((kind, *parts))}/trial_{index}", pddl, record


def _problem(kind: str, slicing: bool, room: str, number: int, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A problem of a kind in a room. The room's number determines its receptacles, but not the objects in it."""
    fits, able = _constants().VAL_RECEPTACLE_OBJECTS, _constants().VAL_ACTION_OBJECTS
    abilities = list(filter(None, (_KINDS[kind][1], "Sliceable" if slicing else "")))
    standing = _standing(room, number)
    for _ in range(_TRIES):
        lying = _lying(room, standing, rng)
        thing, _ = rng.choice(lying)
        if kind == "pick_two_obj_and_place":
            lying.append((thing, rng.choice([place for place in standing if thing in fits[_kind(place)]])))
        params = {"object_target": thing, "parent_target": "", "toggle_target": "", "mrecep_target": ""}
        if kind == _WHOLE:
            params["toggle_target"] = _LAMPS[room][0]
        else:
            params["parent_target"] = target = rng.choice(sorted({_kind(place) for place in standing}))
            if thing not in fits[target] or any((other, _kind(place)) == (thing, target) for other, place in lying):
                continue
            if abilities and (any(thing not in able[ability] for ability in abilities) or target in _TREATED):
                continue
            if slicing and not _KNIVES & {other for other, _ in lying}:
                continue
        record = {"task_type": kind, "pddl_params": {**params, "object_sliced": slicing}, "scene": f"{room} {number}"}
        return _pddl(standing, lying, _LAMPS.get(room), _goal(f"{kind}_slice" if slicing else kind, params)), record
    raise RuntimeError(f"no {room} has a task of the kind {kind}")


def _standing(room: str, number: int) -> list[str]:
    """The receptacles of a room, such as CounterTop-1."""
    rng = random.Random(repr((room, number)))
    return [f"{kind}-{i}" for kind, (low, high) in ROOMS[room].items() for i in range(1, rng.randint(low, high) + 1)]


def _lying(room: str, standing: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """The (object, receptacle) pairs of a room, with different kinds of objects."""
    fits, objects = _constants().VAL_RECEPTACLE_OBJECTS, []
    for kind in rng.sample(_OBJECTS[room], min(_LYING, len(_OBJECTS[room]))):
        if places := [place for place in standing if kind in fits[_kind(place)]]:
            objects.append((kind, rng.choice(places)))
    return objects


def _goal(kind: str, params: Mapping[str, str]) -> str:
    """The goal as the installed package states it; its text also ends the PDDL of the problem."""
    template = importlib.import_module("alfworld.gen.goal_library").gdict[kind]["pddl"]
    names = {short: params[f"{long}_target"] for short, long in _SHORT.items()}
    return template.format(**names).replace("#", "-")


def _pddl(standing: Sequence[str], lying: Sequence[tuple[str, str]], lamp: tuple[str, str] | None, goal: str) -> str:
    """The problem, in the form of ALFRED's."""
    constants = _constants()
    fits, able = constants.VAL_RECEPTACLE_OBJECTS, constants.VAL_ACTION_OBJECTS
    objects = [(f"{kind}_bar_{number}", kind, place) for number, (kind, place) in enumerate(lying, 1)]
    if lamp:
        place = next(place for place in standing if _kind(place) == lamp[1])
        objects.append((f"{lamp[0]}_bar_{len(objects) + 1}", lamp[0], place))
    kinds, types = sorted({_kind(place) for place in standing}), sorted({kind for _, kind, _ in objects})
    names = [("agent1", "agent"), ("loc_bar_0", "location")]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_0)"]
    for number, place in enumerate(standing, 1):
        names += [(_identity(place), "receptacle"), (f"loc_bar_{number}", "location")]
        facts += [f"(receptacleType {_identity(place)} {_kind(place)}Type)"]
        facts += [f"(receptacleAtLocation {_identity(place)} loc_bar_{number})"]
        facts += [f"(openable {_identity(place)})"] if _kind(place) in constants.OPENABLE_CLASS_LIST else []
    for name, kind, place in objects:
        names.append((name, "object"))
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {_identity(place)})"]
        facts += [f"(objectAtLocation {name} loc_bar_{standing.index(place) + 1})"]
        facts += [f"({ability.lower()} {name})" for ability, members in sorted(able.items()) if kind in members]
        facts += [] if kind in able["Toggleable"] else [f"(pickupable {name})"]
    names += [(f"{kind}Type", "rtype") for kind in kinds] + [(f"{kind}Type", "otype") for kind in types]
    facts += [f"(canContain {kind}Type {other}Type)" for kind in kinds for other in types if other in fits[kind]]
    lines = [f"    {name} - {sort}" for name, sort in names]
    return "\n".join(
        ["(define (problem household)", "(:domain alfred)", "(:objects", *lines, ")", "(:init", *facts, ")", goal]
    )


def _kind(place: str) -> str:
    return place.partition("-")[0]


def _identity(place: str) -> str:
    """The name of a receptacle in PDDL. The package turns Sink_bar_1_bar_SinkBasin into `sinkbasin 1`."""
    kind, _, number = place.partition("-")
    basin = kind.removesuffix("Basin")
    return f"{kind}_bar_{number}" if basin == kind else f"{basin}_bar_{number}_bar_{kind}"


def _constants() -> Any:
    return importlib.import_module("alfworld.gen.constants")


def _generate(problems_at: str, games_at: str) -> None:
    """Runs the official script with the planner as its expert. The other one gives up on some tasks with two objects,
    and takes detours longer than an episode."""
    data = Path(str(importlib.import_module("alfworld").__file__)).parent / "data"
    script = str(Path(sys.executable).with_name("alfworld-generate"))
    # Without `end`, the script leaves out the last game.
    options = {"data_path": problems_at, "save_path": games_at, "expert_type": "planner", "end": "1000000"}
    options |= {"domain": str(data / "alfred.pddl"), "grammar": str(data / "alfred.twl2")}
    sys.argv = [script, *(part for name, value in options.items() for part in (f"--{name}", value))]
    # The script draws wordings at random.
    random.seed(0)
    runpy.run_path(script, run_name="__main__")


def main(arguments: Sequence[str]) -> None:
    problems_at, games_at = arguments
    for folder, pddl, record in problems():
        place = Path(problems_at) / folder
        place.mkdir(parents=True)
        (place / "initial_state.pddl").write_text(pddl)
        (place / "traj_data.json").write_text(json.dumps(record))
    _generate(problems_at, games_at)


if __name__ == "__main__":
    main(sys.argv[1:])

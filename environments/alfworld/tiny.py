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

# Room → receptacle → the fewest and the most of them.
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
_OBJECTS_BY_ROOM: Mapping[str, Sequence[str]] = {
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
_TASK_KINDS: Mapping[str, tuple[Sequence[str], str]] = {
    "pick_and_place_simple": (("kitchen", "bedroom", "living room", "bathroom"), ""),
    "look_at_obj_in_light": (("bedroom", "living room"), ""),
    "pick_clean_then_place_in_recep": (("kitchen", "bathroom"), "Cleanable"),
    "pick_heat_then_place_in_recep": (("kitchen",), "Heatable"),
    "pick_cool_then_place_in_recep": (("kitchen",), "Coolable"),
    "pick_two_obj_and_place": (("kitchen", "bedroom", "living room", "bathroom"), ""),
}
_LAMPS = {"bedroom": ("DeskLamp", "Desk"), "living room": ("FloorLamp", "SideTable")}
# The name of a task's parameter in the package's goals → its name in ALFRED's records.
_GOAL_NAMES = {"obj": "object", "recep": "parent", "toggle": "toggle", "mrecep": "mrecep"}
# The kind of task that cannot be about a slice: the package has no solvable one.
_UNSLICED_KIND = "look_at_obj_in_light"
# Split → the variants of its rooms; the number of problems of each kind of task; the number of further ones about a
# slice. Seen rooms are those of training.
SPLITS: Mapping[str, tuple[Sequence[int], int, int]] = {
    "train": (range(1, 5), 8, 2),
    "valid_seen": (range(1, 5), 3, 1),
    "valid_unseen": (range(5, 7), 3, 1),
}
# The most objects in a room, and the most draws of a room's objects until one has a task of the kind.
_MAX_OBJECTS, _MAX_DRAWS = 12, 1_000
# These clean, heat or cool objects.
_APPLIANCES = ("Fridge", "Microwave", "SinkBasin")
_KNIVES = frozenset(("Knife", "ButterKnife"))


def problems() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields (folder, PDDL, record) of every problem, deterministically; `alfworld-generate` reads the record."""
    for split, (variants, whole_count, slice_count) in SPLITS.items():
        for task_kind, (rooms, _) in _TASK_KINDS.items():
            for trial_number in range(1, whole_count + 1 + (0 if task_kind == _UNSLICED_KIND else slice_count)):
                rng, is_sliced = random.Random(repr((split, task_kind, trial_number))), trial_number > whole_count
                room = "kitchen" if is_sliced else rooms[trial_number % len(rooms)]
                pddl, record = _draw_problem(task_kind, is_sliced, room, rng.choice(variants), rng)
                targets = [record["pddl_params"][f"{role}_target"] or "None" for role in ("object", "parent", "toggle")]
                # The folder's name must not say "Sliced", as the official script skips such folders: one of its experts
                # cannot slice.
                yield f"{split}/{'-'.join((task_kind, *targets))}/trial_{trial_number}", pddl, record


def _draw_problem(kind: str, slicing: bool, room: str, variant: int, rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Draws a problem of a kind in a room. The room's variant determines its receptacles, but not the objects in it."""
    fits_in, able_to = _constants().VAL_RECEPTACLE_OBJECTS, _constants().VAL_ACTION_OBJECTS
    abilities = list(filter(None, (_TASK_KINDS[kind][1], "Sliceable" if slicing else "")))
    receps = _list_receptacles(room, variant)
    for _ in range(_MAX_DRAWS):
        placements = _draw_placements(room, receps, rng)
        obj, _ = rng.choice(placements)
        if kind == "pick_two_obj_and_place":
            placements.append((obj, rng.choice([recep for recep in receps if obj in fits_in[_kind(recep)]])))
        params = {"object_target": obj, "parent_target": "", "toggle_target": "", "mrecep_target": ""}
        if kind == _UNSLICED_KIND:
            params["toggle_target"] = _LAMPS[room][0]
        else:
            params["parent_target"] = target = rng.choice(sorted({_kind(recep) for recep in receps}))
            if obj not in fits_in[target] or any((other, _kind(recep)) == (obj, target) for other, recep in placements):
                continue
            if abilities and (any(obj not in able_to[ability] for ability in abilities) or target in _APPLIANCES):
                continue
            if slicing and not _KNIVES & {other for other, _ in placements}:
                continue
        record = {"task_type": kind, "pddl_params": {**params, "object_sliced": slicing}, "scene": f"{room} {variant}"}
        return _pddl(receps, placements, _LAMPS.get(room), _goal(f"{kind}_slice" if slicing else kind, params)), record
    raise RuntimeError(f"no {room} has a task of the kind {kind}")


def _list_receptacles(room: str, variant: int) -> list[str]:
    """Lists the receptacles of a room, such as CounterTop-1."""
    rng = random.Random(repr((room, variant)))
    return [f"{kind}-{i}" for kind, (low, high) in ROOMS[room].items() for i in range(1, rng.randint(low, high) + 1)]


def _draw_placements(room: str, receps: Sequence[str], rng: random.Random) -> list[tuple[str, str]]:
    """Draws the (object, receptacle) pairs of a room, with different kinds of objects."""
    fits_in, placements = _constants().VAL_RECEPTACLE_OBJECTS, []
    for obj in rng.sample(_OBJECTS_BY_ROOM[room], min(_MAX_OBJECTS, len(_OBJECTS_BY_ROOM[room]))):
        if fitting_receps := [recep for recep in receps if obj in fits_in[_kind(recep)]]:
            placements.append((obj, rng.choice(fitting_receps)))
    return placements


def _goal(goal_kind: str, params: Mapping[str, str]) -> str:
    """Returns the goal as the installed package states it; its text also ends the PDDL of the problem."""
    template = importlib.import_module("alfworld.gen.goal_library").gdict[goal_kind]["pddl"]
    targets = {goal_name: params[f"{param_name}_target"] for goal_name, param_name in _GOAL_NAMES.items()}
    return template.format(**targets).replace("#", "-")


def _pddl(receps: Sequence[str], placements: Sequence[tuple[str, str]], lamp: tuple[str, str] | None, goal: str) -> str:
    """Writes the problem in ALFRED's form."""
    constants = _constants()
    fits_in, able_to = constants.VAL_RECEPTACLE_OBJECTS, constants.VAL_ACTION_OBJECTS
    objects = [(f"{kind}_bar_{number}", kind, recep) for number, (kind, recep) in enumerate(placements, 1)]
    if lamp:
        recep = next(recep for recep in receps if _kind(recep) == lamp[1])
        objects.append((f"{lamp[0]}_bar_{len(objects) + 1}", lamp[0], recep))
    recep_kinds, obj_kinds = sorted({_kind(recep) for recep in receps}), sorted({kind for _, kind, _ in objects})
    declarations = [("agent1", "agent"), ("loc_bar_0", "location")]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_0)"]
    for number, recep in enumerate(receps, 1):
        declarations += [(_pddl_name(recep), "receptacle"), (f"loc_bar_{number}", "location")]
        facts += [f"(receptacleType {_pddl_name(recep)} {_kind(recep)}Type)"]
        facts += [f"(receptacleAtLocation {_pddl_name(recep)} loc_bar_{number})"]
        facts += [f"(openable {_pddl_name(recep)})"] if _kind(recep) in constants.OPENABLE_CLASS_LIST else []
    for obj, kind, recep in objects:
        declarations.append((obj, "object"))
        facts += [f"(objectType {obj} {kind}Type)", f"(inReceptacle {obj} {_pddl_name(recep)})"]
        facts += [f"(objectAtLocation {obj} loc_bar_{receps.index(recep) + 1})"]
        facts += [f"({ability.lower()} {obj})" for ability, able_kinds in sorted(able_to.items()) if kind in able_kinds]
        facts += [] if kind in able_to["Toggleable"] else [f"(pickupable {obj})"]
    declarations += [(f"{kind}Type", "rtype") for kind in recep_kinds] + [
        (f"{kind}Type", "otype") for kind in obj_kinds
    ]
    facts += [f"(canContain {kind}Type {obj}Type)" for kind in recep_kinds for obj in obj_kinds if obj in fits_in[kind]]
    lines = [f"    {obj} - {pddl_type}" for obj, pddl_type in declarations]
    return "\n".join(
        ["(define (problem household)", "(:domain alfred)", "(:objects", *lines, ")", "(:init", *facts, ")", goal]
    )


def _kind(receptacle: str) -> str:
    return receptacle.partition("-")[0]


def _pddl_name(receptacle: str) -> str:
    """Returns the name of a receptacle in PDDL. The package turns Sink_bar_1_bar_SinkBasin into `sinkbasin 1`."""
    kind, _, number = receptacle.partition("-")
    stem = kind.removesuffix("Basin")
    return f"{kind}_bar_{number}" if stem == kind else f"{stem}_bar_{number}_bar_{kind}"


def _constants() -> Any:
    return importlib.import_module("alfworld.gen.constants")


def _generate_games(problems_folder: str, games_folder: str) -> None:
    """Runs the official script with the planner as its expert. The other expert gives up on some tasks with two
    objects, and takes detours longer than an episode."""
    package_data = Path(str(importlib.import_module("alfworld").__file__)).parent / "data"
    script_path = str(Path(sys.executable).with_name("alfworld-generate"))
    # Without `end`, the script leaves out the last game.
    options = {"data_path": problems_folder, "save_path": games_folder, "expert_type": "planner", "end": "1000000"}
    options |= {"domain": str(package_data / "alfred.pddl"), "grammar": str(package_data / "alfred.twl2")}
    sys.argv = [script_path, *(argument for option, value in options.items() for argument in (f"--{option}", value))]
    # The script draws wordings at random.
    random.seed(0)
    runpy.run_path(script_path, run_name="__main__")


def main(arguments: Sequence[str]) -> None:
    problems_folder, games_folder = arguments
    for problem_name, pddl, record in problems():
        problem_folder = Path(problems_folder) / problem_name
        problem_folder.mkdir(parents=True)
        (problem_folder / "initial_state.pddl").write_text(pddl)
        (problem_folder / "traj_data.json").write_text(json.dumps(record))
    _generate_games(problems_folder, games_folder)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The system message of an episode. The benchmark has none; the words are ours."""

KINDS = ("full", "brief")
_BRIEF = """\
You are in a house with laboratories and a garden, and do an elementary science experiment there.
Each call of `act` carries out one command; `finish` ends the episode.\
"""
_COMMANDS = """
The rooms are kitchen, bathroom, hallway, living room, bedroom, workshop, art studio, greenhouse, foundry and outside.
The commands, where OBJ is an object in the room or the inventory:
look around | look at OBJ | look in OBJ | examine OBJ | read OBJ | inventory | task
teleport to ROOM | go to ROOM
open OBJ | close OBJ | activate OBJ | deactivate OBJ | use OBJ | use OBJ on OBJ
pick up OBJ | put down OBJ | move OBJ to OBJ | pour OBJ into OBJ | dunk OBJ in OBJ | mix OBJ
connect OBJ to OBJ | disconnect OBJ | eat OBJ | flush OBJ
wait (ten steps) | wait1 (one step)
focus on OBJ: says that the experiment is about this object; a wrong one ends the episode
Where a command has several meanings, the answer lists them with numbers; the next command is then a number.\
"""


def instructions(kind: str) -> str:
    """The system message with the list of commands (`full`), or without it (`brief`). Raises ValueError for another."""
    if kind not in KINDS:
        raise ValueError(f"instructions {kind!r} not found; available: {', '.join(KINDS)}")
    return _BRIEF + _COMMANDS if kind == "full" else _BRIEF

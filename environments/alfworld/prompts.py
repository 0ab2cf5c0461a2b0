"""The system message of an episode. The benchmark has none; the words are ours."""

KINDS = ("full", "brief")
_BRIEF = "You do a task in a household. Each call of `act` carries out one command; `finish` ends the episode."
_COMMANDS = """
The commands, where THING is named as it is shown, "apple 1" say, and PLACE is a receptacle:
go to PLACE | open PLACE | close PLACE | look | inventory | examine PLACE | examine THING
take THING from PLACE | move THING to PLACE | use THING
clean THING with PLACE | heat THING with PLACE | cool THING with PLACE | slice THING with THING
You can carry one thing. What is in a closed receptacle is seen when it is opened.\
"""


def instructions(kind: str) -> str:
    """The system message with the list of commands (`full`), or without it (`brief`). Raises ValueError for another."""
    if kind not in KINDS:
        raise ValueError(f"instructions {kind!r} not found; available: {', '.join(KINDS)}")
    return _BRIEF + _COMMANDS if kind == "full" else _BRIEF

"""Commands in place of tools: what is rare in a world with one tool is a verb."""

from cojax.signals import Rare
from cojax.signals.commands import ByVerb
from cojax.types import Action, Call, Group, Observation, Task, Trajectory, Turn

TASK = Task("maze", "find the lamp", {})


def trajectory(*commands, tool="act"):
    turns = tuple(Turn(Action(calls=(Call(tool, {"command": command}),)), Observation()) for command in commands)
    return Trajectory(TASK, "1-a-0", turns=turns, reward=1.0)


def test_patterns_are_made_of_the_verbs_of_commands():
    kind = ByVerb(Rare(percent=30.0, minimum=4, pattern=1), {"act": "command"})
    group = Group(TASK, (trajectory("go north", "Go  south", "go west", "take lamp"),))
    memory, signals = kind.update(kind.init(), [group])
    assert memory == {"act go": 3, "act take": 1, "(all)": 4}
    (signal,) = signals
    assert (signal.kind, signal.focus) == ("rare", ("act take",))
    assert signal.evidence == "act take: 1 of 4 patterns (25.00%, below 30%)"


def test_other_calls_and_commands_without_words_keep_their_names():
    kind = ByVerb(Rare(minimum=0, pattern=1), {"act": "command"})
    memory, _ = kind.update({}, [Group(TASK, (trajectory("go", tool="walk"), trajectory("", " ", None, 7)))])
    assert memory == {"walk": 1, "act": 4, "(all)": 5}


def test_it_is_the_kind_that_it_wraps():
    rare = Rare()
    kind = ByVerb(rare, {"act": "command"})
    assert (kind.name, kind.colour, kind.guidance) == (rare.name, rare.colour, rare.guidance)
    assert kind.confidence(None, []) == rare.confidence(None, [])

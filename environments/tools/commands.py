"""Worlds that take commands as text: the tool `act(command)`, one that ends the episode, offers, wording by verbs."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.environment import Traits
from cojax.types import Call, Evaluation, Task, Triplet
from .environment import ToolEnvironment
from .wording import JOINER, calls_with_observations

ACT, PARAMETER, ENDING = "act", "command", "finish"
# Limits on the characters of a command, and on the commands offered per verb.
_MOST_CHARS, _MOST_PER_VERB = 300, 8


def tools(example: str) -> list[dict[str, Any]]:
    """The documents of both tools; `example` is a command of the world."""
    command_schema = {"type": "string", "description": f'The command, "{example}" say.'}
    act_schema = {"type": "object", "properties": {PARAMETER: command_schema}, "required": [PARAMETER]}
    end_description = "Ends the episode. A task of the benchmark ends by itself when it is completed."
    return [
        {"name": ACT, "description": "Carries out one command in the world.", "parameters": act_schema},
        {"name": ENDING, "description": end_description, "parameters": {"type": "object", "properties": {}}},
    ]


def traits(concurrency: int) -> Traits:
    """The traits of such a world: its patterns are the commands' verbs, and its wording is plain."""
    return Traits(concurrency=concurrency, worded_alike=True, commands={ACT: PARAMETER})


def environment(
    name: str,
    example: str,
    concurrency: int,
    splits: Mapping[str, Sequence[Task]],
    judge: Callable[[Any], Evaluation],
    **other_arguments: Any,
) -> ToolEnvironment:
    """The environment of such a world. `judge`, world → verdict, decides on the tasks of `splits`.

    `example` is a command. `other_arguments` are further arguments of ToolEnvironment.
    """
    official_ids = {task.id for tasks in splits.values() for task in tasks}
    return ToolEnvironment(
        name,
        tools=tools(example),
        splits=splits,
        judge=lambda task, world, answer, finished: judge(world) if task.id in official_ids else None,
        lookups=(),
        ending=ENDING,
        traits=traits(concurrency),
        **other_arguments,
    )


# Kinds of a system message.
_MESSAGE_KINDS = ("full", "brief")


def system_message(file: Path, kind: str) -> str:
    """The text of a file. The kind `brief` leaves out the list of commands after the empty line.

    Raises ValueError for another kind.
    """
    if kind not in _MESSAGE_KINDS:
        raise ValueError(f"instructions {kind!r} not found; available: {', '.join(_MESSAGE_KINDS)}")
    brief_text, _, command_list = file.read_text(encoding="utf-8").removesuffix("\n").partition("\n\n")
    return f"{brief_text}\n{command_list}" if kind == "full" else brief_text


def call(command: str) -> Call:
    return Call(ACT, {PARAMETER: command})


def command_of(name: str, arguments: Mapping[str, Any]) -> str:
    """The command of a call, with single spaces between its words. Raises ValueError for a call that has none."""
    command = arguments.get(PARAMETER)
    if name != ACT or set(arguments) != {PARAMETER} or not isinstance(command, str):
        raise ValueError(f"{ACT} takes a text called {PARAMETER}")
    if len(command) > _MOST_CHARS:
        raise ValueError(f"the command has {len(command):,} characters; at most {_MOST_CHARS} are taken")
    return " ".join(command.split())


def verb(command: str) -> str:
    """The first word of a command."""
    return command.strip().casefold().partition(" ")[0]


def offers(commands: Iterable[str], salt: str) -> list[tuple[str, dict[str, Any]]]:
    """(tool, arguments) of some of the commands, drawn by `salt`: of each verb one, then a second, and so on."""
    commands_by_verb: dict[str, list[str]] = {}
    for command in sorted(set(commands)):
        commands_by_verb.setdefault(verb(command), []).append(command)
    samples = [
        random.Random(repr((salt, command_verb))).sample(verb_commands, min(_MOST_PER_VERB, len(verb_commands)))
        for command_verb, verb_commands in sorted(commands_by_verb.items())
    ]
    selection = [sample[rank] for rank in range(_MOST_PER_VERB) for sample in samples if rank < len(sample)]
    return [(ACT, {PARAMETER: command}) for command in selection]


def phrase(steps: Sequence[Triplet], unasked_verbs: Collection[str]) -> str | None:
    """The query that these steps answer: the commands in their order.

    None if a command was refused, if the verb of one is in `unasked_verbs`, or if there is no command.
    """
    calls = [call for call, _ in calls_with_observations(steps) if call.name != ENDING]
    commands = [call.arguments.get(PARAMETER, "") for call in calls]
    if not all(isinstance(text, str) and verb(text) and verb(text) not in unasked_verbs for text in commands):
        return None
    return f"Please {JOINER.join(' '.join(command.split()) for command in commands)}." if commands else None

"""Worlds that take commands as text: the tool `act(command)`, one that ends the episode, offers, wording by verbs."""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.environment import Traits
from cojax.types import Call, Evaluation, Task, Triplet
from .environment import ToolEnvironment
from .wording import JOINER, pair_calls

ACT_TOOL, COMMAND_PARAMETER, ENDING_TOOL = "act", "command", "finish"
# Limits on the characters of a command, and on the commands offered per verb.
_MAX_COMMAND_CHARS, _MAX_OFFERS_PER_VERB = 300, 8


def document_tools(example_command: str) -> list[dict[str, Any]]:
    """The documents of both tools; `example_command` is a command of the world."""
    command_schema = {"type": "string", "description": f'The command, "{example_command}" say.'}
    act_schema = {"type": "object", "properties": {COMMAND_PARAMETER: command_schema}, "required": [COMMAND_PARAMETER]}
    end_description = "Ends the episode. A task of the benchmark ends by itself when it is completed."
    return [
        {"name": ACT_TOOL, "description": "Carries out one command in the world.", "parameters": act_schema},
        {"name": ENDING_TOOL, "description": end_description, "parameters": {"type": "object", "properties": {}}},
    ]


def make_traits(concurrency: int) -> Traits:
    """The traits of such a world: its patterns are the commands' verbs, and its wording is plain."""
    return Traits(concurrency=concurrency, worded_alike=True, commands={ACT_TOOL: COMMAND_PARAMETER})


def make_environment(
    environment_name: str,
    example_command: str,
    concurrency: int,
    splits: Mapping[str, Sequence[Task]],
    judge: Callable[[Any], Evaluation],
    **other_arguments: Any,
) -> ToolEnvironment:
    """The environment of such a world. `judge`, world → verdict, decides on the tasks of `splits`.

    `example_command` is a command. `other_arguments` are further arguments of ToolEnvironment.
    """
    official_ids = {task.id for tasks in splits.values() for task in tasks}
    return ToolEnvironment(
        environment_name,
        tools=document_tools(example_command),
        splits=splits,
        judge=lambda task, world, answer, finished: judge(world) if task.id in official_ids else None,
        lookups=(),
        trials=False,
        ending=ENDING_TOOL,
        traits=make_traits(concurrency),
        **other_arguments,
    )


# Kinds of a system message.
_MESSAGE_KINDS = ("full", "brief")


def read_system_message(path: Path, message_kind: str) -> str:
    """The text of a file. The kind `brief` leaves out the list of commands after the empty line.

    Raises ValueError for another kind.
    """
    if message_kind not in _MESSAGE_KINDS:
        raise ValueError(f"instructions {message_kind!r} not found; available: {', '.join(_MESSAGE_KINDS)}")
    brief_text, _, command_list = path.read_text(encoding="utf-8").removesuffix("\n").partition("\n\n")
    return f"{brief_text}\n{command_list}" if message_kind == "full" else brief_text


def make_call(command: str) -> Call:
    return Call(ACT_TOOL, {COMMAND_PARAMETER: command})


def read_command(tool_name: str, arguments: Mapping[str, Any]) -> str:
    """The command of a call, with single spaces between its words. Raises ValueError for a call that has none."""
    command = arguments.get(COMMAND_PARAMETER)
    if tool_name != ACT_TOOL or set(arguments) != {COMMAND_PARAMETER} or not isinstance(command, str):
        raise ValueError(f"{ACT_TOOL} takes a text called {COMMAND_PARAMETER}")
    if len(command) > _MAX_COMMAND_CHARS:
        raise ValueError(f"the command has {len(command):,} characters; at most {_MAX_COMMAND_CHARS} are taken")
    return " ".join(command.split())


def verb_of(command: str) -> str:
    """The first word of a command."""
    return command.strip().casefold().partition(" ")[0]


def draw_offers(commands: Iterable[str], salt: str) -> list[tuple[str, dict[str, Any]]]:
    """(tool, arguments) of some of the commands, drawn by `salt`: of each verb one, then a second, and so on."""
    commands_by_verb: dict[str, list[str]] = {}
    for command in sorted(set(commands)):
        commands_by_verb.setdefault(verb_of(command), []).append(command)
    samples = [
        random.Random(repr((salt, command_verb))).sample(verb_commands, min(_MAX_OFFERS_PER_VERB, len(verb_commands)))
        for command_verb, verb_commands in sorted(commands_by_verb.items())
    ]
    selection = [sample[rank] for rank in range(_MAX_OFFERS_PER_VERB) for sample in samples if rank < len(sample)]
    return [(ACT_TOOL, {COMMAND_PARAMETER: command}) for command in selection]


def phrase(steps: Sequence[Triplet], unasked_verbs: Collection[str]) -> str | None:
    """The query that these steps answer: the commands in their order.

    None if a command was refused, if the verb of one is in `unasked_verbs`, or if there is no command.
    """
    calls = [call for call, _ in pair_calls(steps) if call.name != ENDING_TOOL]
    commands = [call.arguments.get(COMMAND_PARAMETER, "") for call in calls]
    if not all(isinstance(text, str) and verb_of(text) and verb_of(text) not in unasked_verbs for text in commands):
        return None
    return f"Please {JOINER.join(' '.join(command.split()) for command in commands)}." if commands else None

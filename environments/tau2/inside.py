"""The environment, as it runs in a worker inside the wheel's own virtual environment."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from cojax.environment import Environment, Episode
from cojax.environment.wrapping import Wrapped
from cojax.types import Check, Evaluation, Task
from ..tools import ToolEnvironment
from ..tools.toolset import toolset
from . import official, official_texts, prompts, wordings
from .conversation import Conversation
from .offers import offers
from .official import Domain
from .tasks import ENDING, NAME, REPLY, conversation_of, scenarios, strangers, task_of
from .world import World

_DONE = {"name": ENDING, "description": "Call this function when you are done with the task.", "parameters": {}}
_REPLY = {
    "name": REPLY,
    "description": "Sends the customer a message with what they asked to know. They read it and do not answer.",
    "parameters": {
        "type": "object",
        "properties": {"message": {"type": "string", "description": "What the customer is told."}},
        "required": ["message"],
    },
}


def make(domain: str = "telecom", instructions: str = "official", user: str = "written") -> Environment:
    """The environment of one domain. Reads everything from disk now; raises ValueError for a setting it has not.

    With `user` model the official tasks are conversations; what the customer says in them comes from outside.
    """
    if domain not in official.DOMAINS:
        raise ValueError(f"domain {domain!r} not found; available: {', '.join(official.DOMAINS)}")
    wheel, talks = official.load(domain), user == "model"
    records = {name: task.model_dump(mode="json") for name, task in wheel.tasks.items()}
    tasks = {name: (conversation_of if talks else task_of)(domain, record) for name, record in records.items()}
    names = {"eval": wheel.splits["base"], "dev": wheel.splits.get("small", wheel.splits["train"])}
    names |= {split: wheel.splits[split] for split in ("base", "train", "test")}
    names["held_out"] = [name for name in names["base"] if name not in set(names["dev"])]
    known = {tasks[name].id: name for split in names.values() for name in split}
    environment = ToolEnvironment(
        NAME,
        tools=[*wheel.tools, *([] if wheel.solo else [_REPLY]), _DONE],
        open=lambda setup: World(wheel, setup),
        setups=_setups(wheel, records, {name for split in names.values() for name in split}),
        splits={split: [tasks[name] for name in ids] for split, ids in names.items()},
        judge=lambda task, world, answer, finished: _judge(wheel, known, task, world, finished),
        fork=World.fork,
        lookups=wheel.lookups,
        # The other domains have the generic ones.
        affordances=offers if domain == "telecom" else None,
        phrase=wordings.phrase if domain == "telecom" else None,
        instructions=prompts.instructions(wheel, instructions),
        ending=ENDING,
    )
    return _conversations(environment, wheel, known, instructions) if talks else environment


def _conversations(
    environment: ToolEnvironment, wheel: Domain, known: Mapping[str, str], instructions: str
) -> Environment:
    """The environment, in which an episode of an official task is a conversation."""
    texts, tools = official_texts.conversation(), toolset(wheel.tools)
    system = prompts.of_conversation(wheel, instructions, texts)

    def judge(task: Task, world: World, finished: bool) -> Evaluation:
        verdict = _judge(wheel, known, task, world, finished)
        assert verdict is not None  # the task is an official one
        return verdict

    def start(task: Task) -> Episode:
        if task.id not in known:
            return environment.start(task)
        told = texts.told(str(wheel.tasks[known[task.id]].user_scenario))
        world = World(wheel, task.setup)
        return Conversation(world, tools, system, told, texts, functools.partial(judge, task, world))

    return Wrapped(environment, start)


def _setups(wheel: Domain, records: Mapping[str, Mapping[str, Any]], evaluated: set[str]) -> list[dict[str, Any]]:
    """Where an explorer may start: initial states, or users, of no official split that is evaluated."""
    if wheel.solo:
        return scenarios(wheel.name, records, evaluated)
    users = {key: user.model_dump(mode="json") for key, user in wheel.databases[0].users.items()}
    return strangers(wheel.name, users, records.values())


def _judge(wheel: Domain, known: Mapping[str, str], task: Task, world: World, finished: bool) -> Evaluation | None:
    """The official verdict on an official task; None, and so a replay of its solution, for any other.

    `finished` says that the agent ended the episode, or the customer a conversation. The partial reward of an episode
    that nobody ended is that of what was done.
    """
    if task.id not in known:
        return None
    stopped = Evaluation(0.0, (Check("ended by its agent", False),))
    if world.failed >= official.MOST_ERRORS:
        return stopped
    verdict = wheel.judge(wheel.tasks[known[task.id]], world.messages)
    return verdict if finished else dataclasses.replace(stopped, partial=verdict.partial)

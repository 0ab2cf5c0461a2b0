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
from . import official, wordings
from .conversation import Conversation
from .official import Domain, Texts
from .tasks import ENDING, NAME, REPLY, conversation_of, scenarios, strangers, task_of
from .world import World, offers

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
    known = {tasks[name].id: wheel.tasks[name] for split in names.values() for name in split}
    environment = ToolEnvironment(
        NAME,
        tools=[*wheel.tools, *([] if wheel.solo else [_REPLY]), _DONE],
        open=lambda setup: World(wheel, setup),
        setups=_setups(wheel, records, {name for split in names.values() for name in split}),
        splits={split: [tasks[name] for name in ids] for split, ids in names.items()},
        # Any task that is not official is judged by a replay of its solution.
        judge=lambda task, world, answer, finished: (
            _judge(wheel, known[task.id], world, finished) if task.id in known else None
        ),
        fork=World.fork,
        lookups=wheel.lookups,
        # The other domains have the generic ones.
        affordances=offers if domain == "telecom" else None,
        phrase=wordings.phrase if domain == "telecom" else None,
        instructions=system_message(wheel, instructions),
        ending=ENDING,
    )
    return _conversations(environment, wheel, known, instructions) if talks else environment


def _conversations(
    environment: ToolEnvironment, wheel: Domain, known: Mapping[str, Any], instructions: str
) -> Environment:
    """The environment, in which an episode of an official task is a conversation."""
    texts, tools = official.conversation_texts(), toolset(wheel.tools)
    system = conversation_message(wheel, instructions, texts)

    def start(task: Task) -> Episode:
        if task.id not in known:
            return environment.start(task)
        told = texts.told(str(known[task.id].user_scenario))
        world = World(wheel, task.setup)
        return Conversation(world, tools, system, told, texts, functools.partial(_judge, wheel, known[task.id], world))

    return Wrapped(environment, start)


def _setups(wheel: Domain, records: Mapping[str, Mapping[str, Any]], evaluated: set[str]) -> list[dict[str, Any]]:
    """Where an explorer may start: initial states, or users, of no official split that is evaluated."""
    if wheel.solo:
        return scenarios(wheel.name, records, evaluated)
    users = {key: user.model_dump(mode="json") for key, user in wheel.databases[0].users.items()}
    return strangers(wheel.name, users, records.values())


def _judge(wheel: Domain, task: Any, world: World, finished: bool) -> Evaluation:
    """The official verdict on an official task, the wheel's own record.

    `finished` says that the agent ended the episode, or the customer a conversation. The partial reward of an episode
    that nobody ended is that of what was done.
    """
    stopped = Evaluation(0.0, (Check("ended by its agent", False),))
    if world.failed >= official.MOST_ERRORS:
        return stopped
    verdict = wheel.judge(task, world.messages)
    return verdict if finished else dataclasses.replace(stopped, partial=verdict.partial)


KINDS = ("official", "workflow", "brief")
_TICKET = "\n<ticket>\n{ticket}\n</ticket>"
_WRITTEN = """\
You are a customer service agent that helps the user according to the <policy> provided below.
You will be provided with the user's request in writing, and what is known of the user.
You will need to plan and call the appropriate tools to fulfil the request as far as the policy allows it.

Nobody answers questions. Where the policy asks for a confirmation, take it as given if it agrees with the request.
What the user asked to know goes into a call of `reply`. When nothing is left to do, call `done`.

Always follow the policy. Always make sure you generate valid JSON only."""


def system_message(domain: Domain, kind: str) -> str:
    """The system message: the official prompt with a policy text, and without the ticket, which is the user's message.

    `official` has the policy of the domain, `workflow` its variant of the telecom domain, `brief` none. Raises
    ValueError for any other, and for a policy that the domain has not.
    """
    told = domain.instruction if domain.solo else _WRITTEN
    policy = _policy(domain, kind)
    if policy is None:
        return told
    if _TICKET not in domain.prompt:
        raise ValueError("the official prompt has no <ticket> section any more; adapt environments/tau2/inside.py")
    return domain.prompt.replace(_TICKET, "").format(agent_instruction=told, domain_policy=policy)


def conversation_message(domain: Domain, kind: str, texts: Texts) -> str:
    """The system message of an agent that talks with a customer: the official prompt. Raises ValueError as above."""
    policy = _policy(domain, kind)
    if policy is None:
        return texts.instruction
    return texts.prompt.format(agent_instruction=texts.instruction, domain_policy=policy)


def _policy(domain: Domain, kind: str) -> str | None:
    """The policy text of a kind, None where it is left out."""
    if kind not in KINDS:
        raise ValueError(f"instructions {kind!r} not found; available: {', '.join(KINDS)}")
    if kind == "brief":
        return None
    if kind not in domain.policies:
        raise ValueError(f"the domain {domain.name} has no policy {kind!r}; it has {', '.join(domain.policies)}")
    return domain.policies[kind]

"""The environment, as it runs in a worker inside the wheel's own virtual environment."""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.environment import Environment, Episode
from cojax.environment.wrapping import Wrapped
from cojax.types import Action, Check, Evaluation, Message, Observation, Task
from ..tools import ToolEnvironment
from ..tools.toolset import Refused, Tool, perform_call, read_tools
from ..worker.served import PlainEpisode
from . import official
from .official import Domain
from .world import ENDING_TOOL, NAME, REPLY, World, conversation_of, offers, phrase, scenarios, strangers, task_of

# The most calls of an action that are carried out.
_MAX_CALLS = 64
_OWN_DOCUMENTS = json.loads(Path(__file__).with_name("tools.json").read_text(encoding="utf-8"))


def make(domain: str = "telecom", instructions: str = "official", user: str = "written") -> Environment:
    """The environment of one domain. Reads everything from disk now; raises ValueError for an unknown domain.

    With `user` model the official tasks are conversations; what the customer says in them comes from outside.
    """
    if domain not in official.DOMAINS:
        raise ValueError(f"domain {domain!r} not found; available: {', '.join(official.DOMAINS)}")
    wheel, has_user = official.load(domain), user == "model"
    records = {task_id: task.model_dump(mode="json") for task_id, task in wheel.tasks.items()}
    tasks = {task_id: (conversation_of if has_user else task_of)(domain, record) for task_id, record in records.items()}
    ids_by_split = {"eval": wheel.splits["base"], "dev": wheel.splits.get("small", wheel.splits["train"])}
    ids_by_split |= {split: wheel.splits[split] for split in ("base", "train", "test")}
    ids_by_split["held_out"] = [task_id for task_id in ids_by_split["base"] if task_id not in set(ids_by_split["dev"])]
    official_tasks = {tasks[task_id].id: wheel.tasks[task_id] for ids in ids_by_split.values() for task_id in ids}
    environment = ToolEnvironment(
        NAME,
        tools=[*wheel.tools, *([] if wheel.is_solo else [_OWN_DOCUMENTS[REPLY]]), _OWN_DOCUMENTS[ENDING_TOOL]],
        open=lambda setup: World(wheel, setup),
        setups=_list_setups(wheel, records, {task_id for ids in ids_by_split.values() for task_id in ids}),
        splits={split: [tasks[task_id] for task_id in task_ids] for split, task_ids in ids_by_split.items()},
        # Any task that is not official is judged by a replay of its solution.
        judge=lambda task, world, answer, is_finished: (
            _judge(wheel, official_tasks[task.id], world, is_finished) if task.id in official_tasks else None
        ),
        fork=World.fork,
        lookups=wheel.lookup_tools,
        trials=False,
        # The other domains have the generic ones.
        affordances=offers if domain == "telecom" else None,
        phrase=phrase if domain == "telecom" else None,
        instructions=system_message(wheel, instructions),
        ending=ENDING_TOOL,
    )
    return _add_conversations(environment, wheel, official_tasks, instructions) if has_user else environment


def _add_conversations(
    environment: ToolEnvironment, domain: Domain, tasks: Mapping[str, Any], instructions: str
) -> Environment:
    """The environment, with a conversation as the episode of each official task."""
    texts, stop_texts, tools = official.read_conversation_texts(), official.read_stop_texts(), read_tools(domain.tools)
    system_text = _insert_policy(domain, instructions, texts["instruction"], texts["prompt"])

    def start(task: Task) -> Episode:
        if task.id not in tasks:
            return environment.start(task)
        prompt = texts["customer"].replace("{instructions}", str(tasks[task.id].user_scenario))
        opening = (Message("system", system_text), Message("assistant", texts["greeting"]), Message("user", prompt))
        world = World(domain, task.setup)
        return conversation(world, tools, opening, stop_texts, functools.partial(_judge, domain, tasks[task.id], world))

    return Wrapped(environment, start)


def conversation(
    world: World,
    tools: Mapping[str, Tool],
    opening: tuple[Message, ...],
    stop_texts: Sequence[str],
    judge: Callable[[bool], Evaluation],
) -> PlainEpisode:
    """The episode of an official task as a conversation. `judge` is told whether the customer has ended it.

    `opening` holds the agent's system message, its first message and, last, what the customer is told, which is not for
    the agent. The trainer's process asks for what the customer says later (dialogue.py), because a worker has no
    network; a message of theirs with one of the `stop_texts` ends the conversation. What an agent may say is not
    listed, and no explorer starts from an official task.

    An action with calls is the agent's. One without calls is the trainer's, never a policy's: its text is JSON, a list
    of messages that were said, each as [who says it, text], where who is "agent" or "customer".
    """
    transcript: list[tuple[str, str]] = []

    def hear(speaker: str, text: str) -> None:
        transcript.append((speaker, text))
        world.hear(speaker, text)

    def is_over() -> bool:
        return any(speaker == "customer" and stop in text for speaker, text in transcript for stop in stop_texts)

    def step(action: Action) -> Observation:
        """Carries out the calls in order, even after a refused one. Each call gets a message."""
        if is_over():
            return Observation((Message("tool", "error: the customer has ended the conversation"),), False, True)
        if not action.calls:
            for speaker, text in json.loads(action.text):
                hear(speaker, text)
            return Observation(done=is_over())
        messages, all_ok = [], len(action.calls) <= _MAX_CALLS
        for call in action.calls[:_MAX_CALLS]:
            try:
                reply_text = perform_call(tools, world, call)
            except Refused as refusal:
                all_ok, reply_text = False, f"error: {refusal}"
            messages.append(Message("tool", reply_text))
        if len(action.calls) > _MAX_CALLS:
            messages.append(Message("tool", f"error: only {_MAX_CALLS} calls at once; the rest were not carried out"))
        return Observation(tuple(messages), all_ok)

    hear("agent", opening[1].content)
    return PlainEpisode(
        step,
        reset=lambda: opening,
        tools=lambda: tuple(tool.document() for tool in tools.values()),
        state=lambda: {"world": world.state(), "said": [list(turn) for turn in transcript], "finished": is_over()},
        evaluate=lambda: judge(is_over()),
    )


def _list_setups(domain: Domain, records: Mapping[str, Mapping[str, Any]], eval_ids: set[str]) -> list[dict[str, Any]]:
    """Where an explorer may start: initial states, or users, of no official split that is evaluated."""
    if domain.is_solo:
        return scenarios(domain.name, records, eval_ids)
    users = {user_id: user.model_dump(mode="json") for user_id, user in domain.databases[0].users.items()}
    return strangers(domain.name, users, records.values())


def _judge(domain: Domain, task: Any, world: World, is_finished: bool) -> Evaluation:
    """The official verdict on an official task, the wheel's own record.

    `is_finished`: the agent ended the episode, or the customer a conversation. The partial reward of an episode
    that nobody ended is that of what was done.
    """
    unended_verdict = Evaluation(0.0, (Check("ended by its agent", False),))
    if world.failed >= official.MAX_ERRORS:
        return unended_verdict
    verdict = domain.judge(task, world.messages)
    return verdict if is_finished else dataclasses.replace(unended_verdict, partial=verdict.partial)


POLICY_KINDS = ("official", "workflow", "brief")
_TICKET_SECTION = "\n<ticket>\n{ticket}\n</ticket>"
# What an agent is told if it gets the request in writing.
_WRITTEN_INSTRUCTION = Path(__file__).with_name("written.txt").read_text(encoding="utf-8").removesuffix("\n")


def system_message(domain: Domain, policy_kind: str) -> str:
    """The system message: the official prompt with a policy text, and without the ticket, which is the user's message.

    `official` has the policy of the domain, `workflow` its variant of the telecom domain, `brief` none. Raises
    ValueError for any other, and for a policy that the domain lacks.
    """
    if policy_kind != "brief" and _TICKET_SECTION not in domain.policy_prompt:
        raise ValueError("the official prompt no longer has a <ticket> section; adapt environments/tau2/inside.py")
    instruction = domain.instruction if domain.is_solo else _WRITTEN_INSTRUCTION
    return _insert_policy(domain, policy_kind, instruction, domain.policy_prompt.replace(_TICKET_SECTION, ""))


def _insert_policy(domain: Domain, policy_kind: str, instruction: str, prompt: str) -> str:
    """A prompt with its instruction and the policy of that kind; the instruction alone for `brief`."""
    if policy_kind not in POLICY_KINDS:
        raise ValueError(f"instructions {policy_kind!r} not found; available: {', '.join(POLICY_KINDS)}")
    if policy_kind == "brief":
        return instruction
    if policy_kind not in domain.policies:
        raise ValueError(f"the domain {domain.name} has no policy {policy_kind!r}; it has {', '.join(domain.policies)}")
    return prompt.format(agent_instruction=instruction, domain_policy=domain.policies[policy_kind])

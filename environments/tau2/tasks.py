"""Official records → tasks and setups. They are read as JSON, in the form of the wheel's own files."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cojax.types import Action, Call, Task, canonical

NAME = "tau2"
# The official tool that ends an episode of the solo mode, and one of ours for domains without a solo mode.
ENDING, REPLY = "done", "reply"
# In the setup of an official task that is a conversation: the task's official id.
CUSTOMER = "customer"


def task_of(domain: str, record: Mapping[str, Any]) -> Task:
    """The task of an official record, with its reference actions as the solution.

    The query is the official ticket; where there is none, it is made of what the benchmark tells its simulated user.
    """
    criteria = record["evaluation_criteria"]
    actions = [Action(calls=(Call(one["name"], one["arguments"]),)) for one in criteria.get("actions") or ()]
    if told := criteria.get("communicate_info"):
        actions.append(Action(calls=(Call(REPLY, {"message": ", ".join(told)}),)))
    return Task(
        NAME,
        record.get("ticket") or _request(record["user_scenario"]["instructions"]),
        setup_of(domain, record),
        (*actions, Action(calls=(Call(ENDING),))),
    )


def conversation_of(domain: str, record: Mapping[str, Any]) -> Task:
    """The task of an official record as a conversation.

    It has no solution to be replayed, as the customer decides how it ends. The query is the same as in writing, so that
    no other task is worded alike, but no agent sees it.
    """
    task = task_of(domain, record)
    return dataclasses.replace(task, setup={**task.setup, CUSTOMER: record["id"]}, solution=())


def setup_of(domain: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The setup of a record: its domain and the official initial state, without what is empty there."""
    initial = {key: value for key, value in (record.get("initial_state") or {}).items() if value}
    return {"domain": domain, **({"initial_state": initial} if initial else {})}


def scenarios(domain: str, records: Mapping[str, Mapping[str, Any]], evaluated: Iterable[str]) -> list[dict[str, Any]]:
    """The different setups of the records that share no initial state with a record in `evaluated`."""
    closed = {canonical(setup_of(domain, records[name])) for name in evaluated}
    found = {canonical(setup := setup_of(domain, record)): setup for record in records.values()}
    return [setup for key, setup in found.items() if key not in closed]


def strangers(
    domain: str, users: Mapping[str, Mapping[str, Any]], records: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A setup for each user whom no record mentions, by id, name, address or any of the user's orders or bookings."""
    said = json.dumps(list(records), ensure_ascii=False).casefold()

    def mentioned(user: Mapping[str, Any]) -> bool:
        name = user["name"]
        marks = [user["user_id"], user["email"], f"{name['first_name']} {name['last_name']}"]
        marks += [*user.get("orders", ()), *user.get("reservations", ())]
        return any(mark.casefold() in said for mark in marks)

    return [{"domain": domain, "user_id": key} for key, user in users.items() if not mentioned(user)]


def _request(told: Mapping[str, Any]) -> str:
    """What the simulated user is told, as a request in writing."""
    parts: Sequence[tuple[str, str]] = (
        ("Reason for the request", "reason_for_call"),
        ("What the customer knows", "known_info"),
        ("What the customer does not know", "unknown_info"),
        ("How the customer would behave", "task_instructions"),
    )
    return "\n\n".join(f"{title}: {told[key].strip()}" for title, key in parts if told.get(key))

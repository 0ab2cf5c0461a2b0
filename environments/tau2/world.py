"""Official records → tasks and setups, and one world: an official environment, the messages that its evaluators read,
and its state as JSON. For the telecom domain, also the calls worth trying, and what a customer would ask for in their
place, by wordings.txt.

Records are read as JSON, in the form of the wheel's own files.
"""

import copy
import dataclasses
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.types import Action, Call, Task, Triplet, canonical
from ..tools.wording import JOINER, pair_calls
from . import official
from .official import Domain, Table

_TRANSFER_TOOL = "transfer_to_human_agents"
# The arguments of a call take at most this many bytes.
_MAX_ARGUMENT_BYTES = 100_000


class World:
    """A world of one episode, single-use. A call that the official tools refuse raises ValueError."""

    def __init__(self, domain: Domain, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup of another domain, or an impossible initial state."""
        if setup.get("domain") != domain.name:
            raise ValueError(f"the setup is of the domain {setup.get('domain')!r}; this environment has {domain.name}")
        self.domain = domain
        self.environment = domain.make_world(setup.get("initial_state"))
        self.messages: list[Any] = []
        self.failed = 0
        self.transferred = False

    def call(self, tool_name: str, arguments: Mapping[str, Any]) -> str:
        """The official reply to a call. Raises ValueError with its text if it is an error."""
        if tool_name == ENDING_TOOL:
            return ""
        _check_arguments(arguments)
        if tool_name == REPLY:
            return self._record_reply(arguments)
        call, message = official.make_tool_call(len(self.messages), tool_name, arguments)
        reply = self.environment.get_response(call)
        self.environment.sync_tools()
        self.messages += [message, reply]
        self.failed += reply.error
        if reply.error:
            raise ValueError(reply.content.removeprefix("Error: "))
        self.transferred |= tool_name == _TRANSFER_TOOL
        return reply.content

    def hear(self, speaker: str, text: str) -> None:
        """Records the official message of the "agent" or the "customer" that says this text."""
        self.messages.append(official.make_message(speaker, text))

    def state(self) -> dict[str, Any]:
        """The databases, and whether the request was handed over. Of a large database, it has only changed records."""
        tools, user_tools = self.environment.tools, self.environment.user_tools
        toolkits = {"company": tools, **({"customer": user_tools} if user_tools is not None else {})}
        return {**{owner: _to_json(toolkit.db) for owner, toolkit in toolkits.items()}, "transferred": self.transferred}

    def fork(self) -> "World":
        """An independent copy."""
        clone = copy.copy(self)
        clone.environment, clone.messages = official.fork_environment(self.environment), list(self.messages)
        return clone

    def _record_reply(self, arguments: Mapping[str, Any]) -> str:
        text = arguments.get("message")
        if set(arguments) != {"message"} or not isinstance(text, str) or not text.strip():
            raise ValueError(f"{REPLY} takes a text that is not empty, called message")
        self.hear("agent", text)
        return "The customer has read it and does not answer."


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments that are not JSON, or so large that copies of the world would fill memory."""
    try:
        byte_count = len(json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the arguments are no JSON: {error}") from error
    if byte_count > _MAX_ARGUMENT_BYTES:
        raise ValueError(f"the arguments take {byte_count:,} bytes; at most {_MAX_ARGUMENT_BYTES:,} are taken")


def _to_json(database: Any) -> Any:
    """The database as JSON; for tables that share their records, only the changes."""
    tables = {table_name: table.changes() for table_name, table in vars(database).items() if isinstance(table, Table)}
    text = json.dumps(tables or database.model_dump(mode="json"), default=lambda record: record.model_dump(mode="json"))
    # JSON has no infinity, which sums of large numbers can reach.
    return json.loads(text, parse_constant=str)


_SUSPENSION_REASONS = ("the phone was lost", "the line is not needed this month", "the customer is away for some weeks")
_TRANSFER_SUMMARIES = ("The customer asks for a person.", "The customer disputes a bill.", "The phone is damaged.")
_GIGABYTES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
_NETWORK_MODES = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only")


def offers(world: World) -> list[tuple[str, dict[str, Any]]]:
    """(tool, arguments) of calls that work now. Calls of one tool differ in their arguments."""
    return [(tool, arguments) for tool, arguments in _propose_calls(world) if _call_works(world, tool, arguments)]


def _propose_calls(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    options = _list_argument_values(world)
    for document in world.domain.tools:
        tool, parameters = document["function"]["name"], document["function"]["parameters"].get("required", ())
        value_lists = [options.get((tool, parameter)) or options.get(("", parameter), ()) for parameter in parameters]
        for values in itertools.product(*value_lists):
            yield tool, dict(zip(parameters, values, strict=True))


def _list_argument_values(world: World) -> Mapping[tuple[str, str], Sequence[Any]]:
    """(tool, parameter) → values, where the tool "" stands for every tool."""
    state = world.state()
    company, phone = state["company"], state["customer"]["device"]
    number = state["customer"]["surroundings"]["phone_number"]
    line_ids = [line["line_id"] for line in company["lines"] if line["phone_number"] == number]
    users = [row for row in company["customers"] if number == row["phone_number"] or set(line_ids) & {*row["line_ids"]}]
    own_ids = {field: [record_id for user in users for record_id in user[field]] for field in ("line_ids", "bill_ids")}
    customer_ids = [user["customer_id"] for user in users]
    plans = [line["plan_id"] for line in company["lines"] if line["line_id"] in own_ids["line_ids"]]
    return {
        ("", "phone_number"): [number],
        ("", "customer_id"): customer_ids,
        ("", "line_id"): own_ids["line_ids"],
        ("", "bill_id"): own_ids["bill_ids"],
        ("get_details_by_id", "id"): [*customer_ids, *own_ids["line_ids"], *own_ids["bill_ids"], *dict.fromkeys(plans)],
        ("", "full_name"): [user["full_name"] for user in users],
        ("", "dob"): [user["date_of_birth"] for user in users],
        ("suspend_line", "reason"): _SUSPENSION_REASONS,
        ("transfer_to_human_agents", "summary"): _TRANSFER_SUMMARIES,
        ("refuel_data", "gb_amount"): _GIGABYTES,
        ("set_network_mode_preference", "mode"): _NETWORK_MODES,
        ("", "app_name"): list(phone["app_statuses"]),
        ("", "permission"): ["sms", "storage", "phone", "network"],
    }


def _call_works(world: World, tool_name: str, arguments: Mapping[str, Any]) -> bool:
    try:
        return not world.fork().call(tool_name, arguments).startswith("Error")
    except ValueError:
        return False


_WORDINGS_TEXT = Path(__file__).with_name("wordings.txt").read_text(encoding="utf-8")
WORDINGS: Mapping[str, str] = dict(re.findall(r"^(\w+): (.+)$", _WORDINGS_TEXT, re.MULTILINE))
_SWITCH_PATTERN = re.compile(r" is now (ON|OFF)\b")


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that these steps answer; None for a look-up, which a customer does not ask for, and a refused call."""
    exchanges = pair_calls(steps)
    clauses = [_word_call(call, observation) for call, observation in exchanges if call.name != ENDING_TOOL]
    if not clauses or None in clauses:
        return None
    return f"Please {JOINER.join(filter(None, clauses))}."


def _word_call(call: Call, observation: str) -> str | None:
    """One call as a request, None if there is no wording. A switch is worded by what it leads to."""
    slots = {name: json.dumps(value, ensure_ascii=False, sort_keys=True) for name, value in call.arguments.items()}
    if match := _SWITCH_PATTERN.search(observation):
        slots["switched"] = match[1].lower()
    try:
        return WORDINGS[call.name].format(**slots)
    except KeyError:
        return None


NAME = "tau2"
# The official tool that ends an episode of the solo mode, and one of ours for domains without a solo mode.
ENDING_TOOL, REPLY = "done", "reply"
# In the setup of an official task that is a conversation: the task's official id.
CUSTOMER_SPEAKER = "customer"


def task_of(domain: str, record: Mapping[str, Any]) -> Task:
    """The task of an official record, with its reference actions as the solution.

    The query is the official ticket; if there is none, it is made of what the benchmark tells its simulated user.
    """
    criteria = record["evaluation_criteria"]
    actions = [Action(calls=(Call(action["name"], action["arguments"]),)) for action in criteria.get("actions") or ()]
    if facts := criteria.get("communicate_info"):
        actions.append(Action(calls=(Call(REPLY, {"message": ", ".join(facts)}),)))
    return Task(
        NAME,
        record.get("ticket") or _format_request(record["user_scenario"]["instructions"]),
        make_setup(domain, record),
        (*actions, Action(calls=(Call(ENDING_TOOL),))),
    )


def conversation_of(domain: str, record: Mapping[str, Any]) -> Task:
    """The task of an official record as a conversation.

    It has no solution to replay, because the customer decides how it ends. The query is the same as in writing, so that
    no other task is worded alike, but no agent sees it.
    """
    task = task_of(domain, record)
    return dataclasses.replace(task, setup={**task.setup, CUSTOMER_SPEAKER: record["id"]}, solution=())


def make_setup(domain_name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """The setup of a record: its domain and the official initial state, without empty parts."""
    initial_state = {key: value for key, value in (record.get("initial_state") or {}).items() if value}
    return {"domain": domain_name, **({"initial_state": initial_state} if initial_state else {})}


def scenarios(domain: str, records: Mapping[str, Mapping[str, Any]], eval_ids: Iterable[str]) -> list[dict[str, Any]]:
    """The different setups of the records that share no initial state with a record in `eval_ids`."""
    evaluated_keys = {canonical(make_setup(domain, records[task_id])) for task_id in eval_ids}
    setups = {canonical(setup := make_setup(domain, record)): setup for record in records.values()}
    return [setup for setup_key, setup in setups.items() if setup_key not in evaluated_keys]


def strangers(
    domain: str, users: Mapping[str, Mapping[str, Any]], records: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A setup for each user whom no record mentions, by id, name, address or any of the user's orders or bookings."""
    records_text = json.dumps(list(records), ensure_ascii=False).casefold()

    def is_mentioned(user: Mapping[str, Any]) -> bool:
        full_name = user["name"]
        mentions = [user["user_id"], user["email"], f"{full_name['first_name']} {full_name['last_name']}"]
        mentions += [*user.get("orders", ()), *user.get("reservations", ())]
        return any(mention.casefold() in records_text for mention in mentions)

    return [{"domain": domain, "user_id": user_id} for user_id, user in users.items() if not is_mentioned(user)]


def _format_request(instructions: Mapping[str, Any]) -> str:
    """What the simulated user is told, as a request in writing."""
    sections: Sequence[tuple[str, str]] = (
        ("Reason for the request", "reason_for_call"),
        ("What the customer knows", "known_info"),
        ("What the customer does not know", "unknown_info"),
        ("How the customer would behave", "task_instructions"),
    )
    return "\n\n".join(f"{title}: {instructions[key].strip()}" for title, key in sections if instructions.get(key))

"""Calls worth trying in the telecom domain: those that work now, for the customer who calls."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .world import World

_REASONS = ("the phone was lost", "the line is not needed this month", "the customer is away for some weeks")
_SUMMARIES = ("The customer asks for a person.", "The customer disputes a bill.", "The phone is damaged.")
_GIGABYTES = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
_MODES = ("4g_5g_preferred", "4g_only", "3g_only", "2g_only")


def offers(world: World) -> list[tuple[str, dict[str, Any]]]:
    """(tool, arguments) of calls that work now. Calls of one tool differ in their arguments."""
    return [(name, arguments) for name, arguments in _worth_trying(world) if _works(world, name, arguments)]


def _worth_trying(world: World) -> Iterator[tuple[str, dict[str, Any]]]:
    known = _known(world)
    for document in world.domain.tools:
        name, needed = document["function"]["name"], document["function"]["parameters"].get("required", ())
        sources = [known.get((name, parameter)) or known.get(("", parameter), ()) for parameter in needed]
        for values in itertools.product(*sources):
            yield name, dict(zip(needed, values, strict=True))


def _known(world: World) -> Mapping[tuple[str, str], Sequence[Any]]:
    """(tool, parameter) → values, where the tool "" stands for every tool."""
    state = world.state()
    company, phone = state["company"], state["customer"]["device"]
    number = state["customer"]["surroundings"]["phone_number"]
    lines = [line["line_id"] for line in company["lines"] if line["phone_number"] == number]
    callers = [one for one in company["customers"] if number == one["phone_number"] or set(lines) & {*one["line_ids"]}]
    own = {part: [key for caller in callers for key in caller[part]] for part in ("line_ids", "bill_ids")}
    customers = [caller["customer_id"] for caller in callers]
    plans = [line["plan_id"] for line in company["lines"] if line["line_id"] in own["line_ids"]]
    return {
        ("", "phone_number"): [number],
        ("", "customer_id"): customers,
        ("", "line_id"): own["line_ids"],
        ("", "bill_id"): own["bill_ids"],
        ("get_details_by_id", "id"): [*customers, *own["line_ids"], *own["bill_ids"], *dict.fromkeys(plans)],
        ("", "full_name"): [caller["full_name"] for caller in callers],
        ("", "dob"): [caller["date_of_birth"] for caller in callers],
        ("suspend_line", "reason"): _REASONS,
        ("transfer_to_human_agents", "summary"): _SUMMARIES,
        ("refuel_data", "gb_amount"): _GIGABYTES,
        ("set_network_mode_preference", "mode"): _MODES,
        ("", "app_name"): list(phone["app_statuses"]),
        ("", "permission"): ["sms", "storage", "phone", "network"],
    }


def _works(world: World, name: str, arguments: Mapping[str, Any]) -> bool:
    try:
        return not world.fork().call(name, arguments).startswith("Error")
    except ValueError:
        return False

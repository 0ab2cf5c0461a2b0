"""Official records become tasks and setups; the records here are invented, in the form of the wheel's files."""

from typing import Any

from cojax.types import Action, Call
from environments.tau2.world import conversation_of, make_setup, scenarios, strangers, task_of

FLIGHT_MODE = {"env_type": "user", "func_name": "turn_airplane_mode_on", "arguments": {}}
NO_DATA = {"env_type": "user", "func_name": "turn_data_off", "arguments": {}}


def record(*initial: dict[str, Any], **others: Any) -> dict[str, Any]:
    state = {"initialization_data": None, "initialization_actions": list(initial), "message_history": None}
    criteria = {
        "actions": [
            {"name": "toggle_data", "arguments": {}, "requestor": "user"},
            {"name": "refuel_data", "arguments": {"line_id": "L7", "gb_amount": 2.0}, "requestor": "assistant"},
        ],
        "communicate_info": None,
    }
    return {"ticket": "No network.", "initial_state": state, "evaluation_criteria": criteria, **others}


def test_a_ticket_is_the_query_and_the_reference_actions_end_with_done() -> None:
    task = task_of("telecom", record(FLIGHT_MODE))
    assert (task.environment, task.query) == ("tau2", "No network.")
    assert task.setup == {"domain": "telecom", "initial_state": {"initialization_actions": [FLIGHT_MODE]}}
    assert task.solution == (
        Action(calls=(Call("toggle_data"),)),
        Action(calls=(Call("refuel_data", {"line_id": "L7", "gb_amount": 2.0}),)),
        Action(calls=(Call("done"),)),
    )


def test_without_a_ticket_the_query_is_what_the_user_is_told_and_numbers_to_say_are_replied() -> None:
    told = {
        "domain": "retail",
        "reason_for_call": "You want a refund. ",
        "known_info": "You are Ada Bell.",
        "unknown_info": None,
        "task_instructions": "Be brief.",
    }
    criteria = {"actions": None, "communicate_info": ["10", "red"]}
    task = task_of(
        "retail",
        {
            "ticket": None,
            "initial_state": None,
            "evaluation_criteria": criteria,
            "user_scenario": {"persona": None, "instructions": told},
        },
    )
    assert task.query == (
        "Reason for the request: You want a refund.\n\n"
        "What the customer knows: You are Ada Bell.\n\n"
        "How the customer would behave: Be brief."
    )
    assert task.setup == {"domain": "retail"}
    assert task.solution == (Action(calls=(Call("reply", {"message": "10, red"}),)), Action(calls=(Call("done"),)))


def test_a_conversation_is_another_task_with_the_same_query_and_no_solution_to_replay() -> None:
    told = {"reason_for_call": "You want a refund.", "task_instructions": "Be brief."}
    scenario = {"persona": None, "instructions": told}
    official = {**record(), "ticket": None, "id": "7", "user_scenario": scenario}
    written, spoken = task_of("retail", official), conversation_of("retail", official)
    assert spoken.query == written.query
    assert (spoken.setup, spoken.solution) == ({"domain": "retail", "customer": "7"}, ())
    assert spoken.id != written.id


def test_an_explorer_starts_in_no_state_of_an_evaluated_record_whatever_else_differs() -> None:
    records = {
        "evaluated": record(FLIGHT_MODE),
        "same state": record(FLIGHT_MODE, ticket="Something else."),
        "open": record(FLIGHT_MODE, NO_DATA),
        "open again": record(FLIGHT_MODE, NO_DATA, ticket="Another."),
        "healthy": record(),
    }
    assert scenarios("telecom", records, ["evaluated"]) == [
        {"domain": "telecom", "initial_state": {"initialization_actions": [FLIGHT_MODE, NO_DATA]}},
        {"domain": "telecom"},
    ]
    assert make_setup("telecom", records["healthy"]) == {"domain": "telecom"}


def test_users_whom_a_record_names_in_any_way_are_closed() -> None:
    def user(key: str, first: str, last: str, email: str, **owned: list[str]) -> dict[str, Any]:
        return {"user_id": key, "name": {"first_name": first, "last_name": last}, "email": email, **owned}

    users = {
        "by_id_1": user("by_id_1", "Ann", "Ash", "a@x", orders=["#W1"]),
        "b2": user("b2", "Bob", "Named", "b@x", orders=[]),
        "c3": user("c3", "Cid", "Cole", "c@mail.example", orders=[]),
        "d4": user("d4", "Dan", "Dee", "d@x", orders=["#W44"]),
        "e5": user("e5", "Eve", "Elm", "e@x", reservations=["ZFA04Y"]),
        "f6": user("f6", "Fay", "Fox", "f@x", orders=["#W66"]),
    }
    records = [
        {"text": "You are BOB NAMED.", "arguments": {"user_id": "by_id_1"}},
        {"text": "write to C@mail.example about #W44 and ZFA04Y"},
    ]
    assert strangers("retail", users, records) == [{"domain": "retail", "user_id": "f6"}]

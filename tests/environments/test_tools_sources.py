"""Where values of parameters come from, in worlds that do not say it, and what the check says of them."""

from __future__ import annotations

import contextlib
import threading

import pytest
import strange_worlds
from strange_worlds import BOOKS, READERS

from cojax.environment import ask
from environments import advice
from environments.soundness import SetupReport
from environments.tools import ToolEnvironment
from environments.tools.arguments import Source


def find(world):
    return getattr(strange_worlds, world)().find_sources()


def places(world, tool, parameter):
    return find(world)[tool][parameter].places


@pytest.mark.parametrize(
    ("world", "tool", "parameter", "place"),
    [
        ("library", "lend", "book", "books/*"),  # by name, though a loan is kept elsewhere
        ("library", "reserve", "reader", "readers/*"),
        ("bank", "transfer", "src", "balances/*"),  # other names are refused
        ("bank", "freeze", "acct", "balances/*"),  # as its namesake in another tool
        ("clinic", "book", "patient_id", "patients/*/0"),  # the first column of whole numbers
        ("clinic", "find_patient", "name", "patients/*/1"),  # other names find nothing
        ("store", "pick", "sku", "stock/*/sku"),
        ("store", "move", "to", "stock/*/bin"),  # where it goes
        ("tickets", "assign", "ticket_id", "tickets/*/id"),
        ("tickets", "assign", "to", "staff/*/login"),  # who is assigned is on the staff
        ("favourites", "favour", "title", "favourites/*"),  # what is there is removed
    ],
)
def test_values_come_from_places_that_the_world_knows(world, tool, parameter, place):
    assert places(world, tool, parameter) == (place,)


def test_a_tool_that_creates_something_gets_new_words_and_an_amount_numbers():
    assert find("tickets")["hire"]["login"] == find("clinic")["register"]["name"] == Source(creates=True)
    assert find("bank")["transfer"]["amt"] == Source(numbers=(1, 2, 3))
    assert find("bank")["freeze"]["reason"] == find("clinic")["book"]["slot"] == Source()


def offers(environment):
    calls = []
    for task in environment.tasks("seed", 3):
        with contextlib.closing(environment.start(task)) as episode:
            ask(episode.reset)
            calls += [action.calls[0] for action in ask(episode.affordances)]
    return calls


def test_only_such_values_are_offered_and_no_text_twice_in_a_call():
    for call in offers(strange_worlds.library())[:-1]:
        if call.name != "finish":
            assert call.arguments["book"] in BOOKS
            assert call.arguments["reader"] in READERS
    transfers = [call.arguments for call in offers(strange_worlds.bank()) if call.name == "transfer"]
    assert transfers
    assert all(arguments["src"] != arguments["dst"] for arguments in transfers)


def test_a_tool_that_changes_something_only_after_others_is_no_look_up():
    clinic = strange_worlds.clinic()
    assert [tool for tool in ("book", "register", "cancel", "find_patient") if clinic.is_lookup(tool)] == [
        "find_patient"
    ]


def test_an_unknown_look_up_is_refused():
    with pytest.raises(ValueError, match="lookups names 'serach', which is not a tool; the tools are lend"):
        ToolEnvironment("x", [strange_worlds.lend], dict, [{}], lookups=["serach"])


def advise(environment):
    report, setups = SetupReport(), environment.tasks("seed", 10)
    report.examine(environment, setups)
    line = report.line(environment, environment.name, "seed", 0.0)
    return (
        advice.word_examples(environment, setups, report),
        advice.warn_of_values(environment, setups, report),
        advice.explain_refusals(environment, setups, line.get("untried", ())),
    )


def test_the_check_shows_tasks_and_names_values_from_nowhere():
    examples, (first, second), refusals = advise(strange_worlds.clinic())
    assert len(examples) == len(set(examples)) == 10
    assert any("register with name" in example for example in examples)
    assert first.startswith("'slot' of book is neither in the schema nor in the state: words such as 'amber' are tried")
    assert "slot: Literal[…] or Annotated[str, Field(examples=[…])]" in first
    assert "put 'slots' into the state" in first
    assert second.startswith("the world takes any value for book.patient_id, also one that is not there")
    assert refusals == []


def test_a_tool_that_always_raises_is_shown_with_its_exception():
    _, warnings, (refusal,) = advise(strange_worlds.store())
    assert refusal.startswith("scan: scan(code=")
    assert refusal.endswith("→ error: KeyError: 'missing'")
    assert warnings[0].startswith("'n' of pick is neither in the schema nor in the state: 1, 2 and 3 are tried")


def test_a_world_that_checks_its_values_gets_no_warning():
    def water(world, bed: str, litres: int):
        if litres > 2:
            raise ValueError("too much")
        world["beds"][bed]["water"] += litres

    beds = {"north": {"water": 0}, "south": {"water": 1}}
    environment = ToolEnvironment("garden", [water], dict, [{"beds": beds}])
    examples, warnings, refusals = advise(environment)
    assert (warnings, refusals) == ([], [])
    assert all(example.startswith("water with bed") for example in examples)


def test_the_trials_of_all_tools_do_not_count_as_the_trial_of_the_first_look_up(monkeypatch):
    callers, world = [], strange_worlds.bank()
    find_sources = world.find_sources
    monkeypatch.setattr(world, "find_sources", lambda: callers.append(threading.current_thread()) or find_sources())
    assert world.is_lookup("balance")
    assert callers[0] is threading.current_thread()  # not the thread that has ten seconds


def test_a_tool_that_hangs_leaves_the_choice_to_names(monkeypatch):
    from environments.tools import environment as tools_environment

    monkeypatch.setattr(tools_environment, "_TRIAL_TIMEOUT_S", 0.1)
    going_on = threading.Event()

    def wait(world, seconds: int):
        going_on.wait(60)

    try:
        assert ToolEnvironment("waiting", [wait], dict, [{"seconds": 1}]).find_sources() == {}
    finally:
        going_on.set()

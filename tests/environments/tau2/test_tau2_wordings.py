"""The wordings of the telecom domain, and its system messages."""

import dataclasses

import pytest

from cojax.types import Action, Call, Message, Observation, Triplet
from environments.tau2 import inside
from environments.tau2.official import Domain
from environments.tau2.world import phrase


def step(name: str, shown: str = "", ok: bool = True, **arguments: object) -> Triplet:
    action = Action(calls=(Call(name, arguments),))
    return Triplet(action, Observation((Message("tool", shown),), ok=ok), 0)


DONE = step("done")
MODE = step("set_network_mode_preference", "Preferred Network Mode set to: 4g_only", mode="4g_only")


def test_calls_are_asked_for_in_their_order_with_all_values() -> None:
    refuel = step("refuel_data", "{}", customer_id="C1", line_id="L2", gb_amount=2.0)
    assert phrase([MODE, refuel, DONE]) == (
        'Please set the preferred network mode of the phone to "4g_only", '
        'then add 2.0 GB of data to line "L2" of customer "C1".'
    )


def test_a_switch_is_worded_by_what_it_leads_to() -> None:
    on = step("toggle_data", "Mobile Data is now ON.\nStatus Bar: Airplane Mode is now OFF")
    off = step("toggle_airplane_mode", "Airplane Mode is now OFF.")
    assert phrase([on, off]) == "Please switch mobile data on, then switch airplane mode off."
    assert phrase([step("toggle_wifi", "Cannot change Wi-Fi settings while Airplane Mode is ON.")]) is None


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [DONE],
        [step("check_status_bar", "No Signal"), MODE],
        [step("set_network_mode_preference", "error", ok=False, mode="4g_only")],
        [step("set_network_mode_preference", "without its argument")],
        [Triplet(Action("prose"), Observation(), 0)],
    ],
)
def test_what_no_customer_asks_for_has_no_wording(steps: list[Triplet]) -> None:
    assert phrase(steps) is None


DOMAIN = Domain(
    "telecom",
    is_solo=True,
    tools=(),
    lookup_tools=frozenset(),
    tasks={},
    splits={},
    policies={"official": "Be kind.", "workflow": "Step 1."},
    instruction="You are an agent. Call `done`.",
    policy_prompt="<instructions>\n{agent_instruction}\n</instructions>\n<policy>\n{domain_policy}\n</policy>\n"
    "<ticket>\n{ticket}\n</ticket>",
    databases=(),
    construct=lambda solo_mode=False: None,
)


@pytest.mark.parametrize(
    ("kind", "policy"),
    [("official", "\n<policy>\nBe kind.\n</policy>"), ("workflow", "\n<policy>\nStep 1.\n</policy>")],
)
def test_the_system_message_is_the_official_prompt_without_its_ticket(kind: str, policy: str) -> None:
    expected = f"<instructions>\nYou are an agent. Call `done`.\n</instructions>{policy}"
    assert inside.system_message(DOMAIN, kind) == expected


def test_a_brief_system_message_has_no_policy() -> None:
    assert inside.system_message(DOMAIN, "brief") == "You are an agent. Call `done`."
    written = inside.system_message(dataclasses.replace(DOMAIN, name="retail", is_solo=False), "brief")
    assert "Nobody answers questions." in written


def test_unknown_instructions_and_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="instructions 'long' not found; available: official, workflow, brief"):
        inside.system_message(DOMAIN, "long")
    with pytest.raises(ValueError, match="the domain retail has no policy 'workflow'; it has official"):
        inside.system_message(dataclasses.replace(DOMAIN, name="retail", policies={"official": ""}), "workflow")
    with pytest.raises(ValueError, match="the official prompt no longer has a <ticket> section"):
        inside.system_message(dataclasses.replace(DOMAIN, policy_prompt="{domain_policy}"), "official")

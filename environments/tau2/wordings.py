"""ONE table of wordings for the telecom domain: calls → what a customer would ask for."""

import json
import re
from collections.abc import Mapping, Sequence

from cojax.types import Call, Triplet
from .tasks import ENDING

JOINER = ", then "
# A call that changes something, with slots for its arguments.
WORDINGS: Mapping[str, str] = {
    "suspend_line": "suspend line {line_id} of customer {customer_id} for the reason {reason}",
    "resume_line": "resume the suspended line {line_id} of customer {customer_id}",
    "send_payment_request": "send customer {customer_id} a payment request for bill {bill_id}",
    "enable_roaming": "allow line {line_id} of customer {customer_id} to roam abroad",
    "disable_roaming": "stop line {line_id} of customer {customer_id} from roaming abroad",
    "transfer_to_human_agents": "hand the request over to a human agent with the summary {summary}",
    "refuel_data": "add {gb_amount} GB of data to line {line_id} of customer {customer_id}",
    "set_network_mode_preference": "set the preferred network mode of the phone to {mode}",
    "reseat_sim_card": "take the SIM card out of the phone and put it back in",
    "reset_apn_settings": "have the APN settings of the phone reset at its next restart",
    "connect_vpn": "connect the phone to its VPN",
    "disconnect_vpn": "disconnect the phone from its VPN",
    "grant_app_permission": "give the app {app_name} on the phone the permission {permission}",
    "reboot_device": "restart the phone",
    "make_payment": "pay the bill that a payment request is open for",
}
# A switch of the phone, by what it switches. Whether that is now on or off is in the observation.
SWITCHES: Mapping[str, str] = {
    "toggle_airplane_mode": "airplane mode",
    "toggle_data": "mobile data",
    "toggle_roaming": "data roaming",
    "toggle_data_saver_mode": "data saver mode",
    "toggle_wifi": "Wi-Fi",
    "toggle_wifi_calling": "Wi-Fi calling",
}
_SWITCHED = re.compile(r" is now (ON|OFF)\b")


def phrase(steps: Sequence[Triplet]) -> str | None:
    """The query that these steps answer; None for a look-up, which a customer does not ask for, and a refused call."""
    clauses = []
    for step in steps:
        calls, messages = step.action.calls, step.observation.messages
        if not step.observation.ok or not calls or len(calls) != len(messages):
            return None
        for call, message in zip(calls, messages, strict=True):
            if call.name != ENDING:
                clauses.append(_clause(call, message.content))
    if not clauses or None in clauses:
        return None
    return f"Please {JOINER.join(filter(None, clauses))}."


def _clause(call: Call, observation: str) -> str | None:
    """One call as a request, None where there is no wording. A switch is worded by what it leads to."""
    if call.name in SWITCHES:
        found = _SWITCHED.search(observation)
        return found and f"switch {SWITCHES[call.name]} {found[1].lower()}"
    if call.name not in WORDINGS:
        return None
    values = {name: json.dumps(value, ensure_ascii=False, sort_keys=True) for name, value in call.arguments.items()}
    try:
        return WORDINGS[call.name].format(**values)
    except KeyError:
        return None

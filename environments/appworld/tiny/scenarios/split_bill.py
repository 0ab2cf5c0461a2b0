"""Ask a group for their shares: who they are is in one app, the money in another."""

import random
from typing import Any

from ..people import Person, contacts
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 2
INSTRUCTION = (
    'I paid ${total} for "{purpose}", for my {relationship}s and me. Send each {relationship} in my phone contacts a '
    'Venmo payment request for an equal share, mine included in the count, with "{purpose}" as the description.'
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    relationship = ("roommate", "coworker", "roommate")[number]
    group = [other for other, kind in contacts(person) if kind == relationship]
    share = chance.randrange(8, 60)
    purpose = ("Heating bill", "Team lunch", "New curtains")[number]
    receivers = sorted(models.venmo.User.find_one(email=other.email).id for other in group)
    return Drawn(
        {"total": share * (len(group) + 1), "purpose": purpose, "relationship": relationship},
        {"share": share, "receivers": receivers},
    )


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    requests, updated, removed = models.changed_records("venmo.PaymentRequest")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("one request goes to each of the group, from me"):
        user = models.end.venmo.User.find_one(email=main_user.email)
        test.case([request.sender_id for request in requests], "all ==", user.id)
        test.case(sorted(request.receiver_id for request in requests), "==", private_data.receivers)

    with test("each is for an equal share"):
        test.case([request.amount for request in requests], "all ==", private_data.share)

    with test("each has the description"):
        test.case([request.description for request in requests], "all ==", public_data.purpose)

    with test("nothing but new requests and their notifications has changed"):
        test.case(updated + removed, "==", [])
        test.case(models.changed_model_names(), "==", {"venmo.PaymentRequest", "venmo.Notification"})


SOLUTION = (
    login("phone", "venmo"),
    """
group = pages(apis.phone.search_contacts, access_token=phone, relationship=<relationship>)
print([(contact["first_name"], contact["email"], contact["relationships"]) for contact in group])
""",
    """
share = <total> / (len(group) + 1)
for contact in group:
    made = apis.venmo.create_payment_request(
        user_email=contact["email"], amount=share, description=<purpose>, access_token=venmo
    )
    print(made["message"], share)
apis.supervisor.complete_task()
""",
)

"""Approve or deny what others ask for: a condition on each row, two kinds of change."""

import random
from typing import Any

from ..people import Person
from ..rows import REASONS
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "train", 2
INSTRUCTION = (
    "Go through the Venmo payment requests that are waiting for me: approve each one of ${limit} or less "
    "from my Venmo balance, and deny the others."
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    venmo = models.venmo
    user = venmo.User.find_one(email=person.email)
    others = [other.id for other in venmo.User.all() if other.id != user.id]
    limit = (25, 40, 30)[number]
    amounts = chance.sample(range(5, limit + 1), 3) + chance.sample(range(limit + 1, 90), 3)
    chance.shuffle(amounts)
    requests = [
        venmo.PaymentRequest.create_save(
            sender_id=chance.choice(others), receiver_id=user.id, amount=amount, description=chance.choice(REASONS)
        )
        for amount in amounts
    ]
    approved = [request for request in requests if request.amount <= limit]
    return Drawn(
        {"limit": limit},
        {
            "approved": [request.id for request in approved],
            "denied": [request.id for request in requests if request.amount > limit],
            "payments": sorted([request.sender_id, request.amount] for request in approved),
        },
    )


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    _, requests, _ = models.changed_records("venmo.PaymentRequest")
    payments, _, _ = models.changed_records("venmo.Transaction")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the small requests are approved"):
        test.case(sorted(request.id for request in requests if request.approved), "==", private_data.approved)

    with test("the large requests are denied"):
        test.case(sorted(request.id for request in requests if request.denied), "==", private_data.denied)

    with test("the money of the approved requests, and no other, is sent"):
        sent = sorted([payment.receiver_id, payment.amount] for payment in payments)
        test.case(sent, "==", private_data.payments)

    with test("nothing but requests, payments, balances and notifications has changed"):
        changed = {"venmo.PaymentRequest", "venmo.Transaction", "venmo.User", "venmo.Notification"}
        test.case(models.changed_model_names(), "==", changed)


SOLUTION = (
    login("venmo"),
    """
waiting = pages(apis.venmo.show_received_payment_requests, access_token=venmo, status="pending")
for request in waiting:
    print(request["payment_request_id"], request["sender"]["name"], request["amount"])
""",
    """
for request in waiting:
    if request["amount"] <= <limit>:
        apis.venmo.approve_payment_request(payment_request_id=request["payment_request_id"], access_token=venmo)
    else:
        apis.venmo.deny_payment_request(payment_request_id=request["payment_request_id"], access_token=venmo)
apis.supervisor.complete_task()
""",
)

"""How much a group has sent since a day: an answer over two apps."""

import random
from typing import Any

from ..people import Person, contacts
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "dev", 2
INSTRUCTION = (
    "How many dollars have my {relationship}s sent me on Venmo since {date}, that day included? My phone contacts say "
    "who is a {relationship}. Answer with the number."
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    relationship, date = (("coworker", "2023-04-01"), ("roommate", "2023-02-15"), ("coworker", "2023-03-01"))[number]
    venmo = models.venmo
    group = [other for other, kind in contacts(person) if kind == relationship]
    senders = [venmo.User.find_one(email=other.email).id for other in group]
    user = venmo.User.find_one(email=person.email)
    # Enough to add up in each task, whatever the rows say.
    for sender in senders:
        amount, at = chance.randrange(10, 70), {"created_at": f"2023-05-{chance.randrange(2, 15):02}T09:30:00"}
        venmo.Transaction.create_save(sender_id=sender, receiver_id=user.id, amount=amount, description="Shared", **at)
    received = [payment for sender in senders for payment in venmo.Transaction.find_all(sender_id=sender)]
    received = [payment for payment in received if payment.receiver_id == user.id]
    total = sum(payment.amount for payment in received if payment.created_at.strftime("%Y-%m-%d") >= date)
    return Drawn(
        {"relationship": relationship, "date": date},
        {"ever": sum(payment.amount for payment in received)},
        round(total),
    )


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    answer = models.end.supervisor.Task.first().answer

    with test("the answer is a number, and no more than what they sent at any time"):
        number = float(answer.strip('"'))
        test.subcases([(number, ">", 0), (number, "<=", private_data.ever)])

    with test("the answer is their sum since that day"):
        test.answer(answer, ground_truth_answer)

    with test("no data of any app has changed"):
        test.case(models.changed_model_names(), "==", set())


SOLUTION = (
    login("phone", "venmo"),
    """
group = pages(apis.phone.search_contacts, access_token=phone, relationship=<relationship>)
print([contact["email"] for contact in group])
""",
    """
total = 0
for contact in group:
    received = pages(
        apis.venmo.show_transactions,
        access_token=venmo,
        user_email=contact["email"],
        direction="received",
        min_created_at=<date>,
    )
    print(contact["first_name"], [(payment["created_at"], payment["amount"]) for payment in received])
    total += sum(payment["amount"] for payment in received)
apis.supervisor.complete_task(answer=round(total))
""",
)

"""Settle what a note says: three apps, two kinds of change, one for each kind of line."""

import random
from typing import Any

from ..people import Person, contacts
from ..rows import note
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "test_challenge", 3
INSTRUCTION = (
    'My note "{title}" says who owes whom how many dollars. Settle all of it on Venmo: send what I owe, and request '
    'what I am owed, each with the description "{purpose}". My phone contacts have the email addresses.'
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    title = ("Debts", "Holiday money", "Shared costs")[number]
    purpose = ("Settled", "Holiday", "Costs of May")[number]
    people = chance.sample([other for other, _ in contacts(person)], 4)
    owed = chance.sample(people, 2)
    lines: list[str] = []
    requests: list[list[int]] = []
    payments: list[list[int]] = []
    for other in people:
        amount = chance.randrange(5, 80)
        lines.append(f"{other.name} owes me {amount}" if other in owed else f"I owe {other.name} {amount}")
        receiver = models.venmo.User.find_one(email=other.email).id
        (requests if other in owed else payments).append([receiver, amount])
    note(models, person.email, title, "\n".join(lines), 1)
    return Drawn({"title": title, "purpose": purpose}, {"requests": sorted(requests), "payments": sorted(payments)})


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    payments, _, _ = models.changed_records("venmo.Transaction")
    requests, updated, removed = models.changed_records("venmo.PaymentRequest")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("what I owe is sent to those I owe it"):
        test.case(sorted([row.receiver_id, int(row.amount)] for row in payments), "==", private_data.payments)

    with test("what I am owed is requested from those who owe it"):
        test.case(sorted([row.receiver_id, int(row.amount)] for row in requests), "==", private_data.requests)

    with test("both have the description"):
        test.case([row.description for row in payments + requests], "all ==", public_data.purpose)

    with test("nothing but payments, requests, balances and notifications has changed"):
        test.case(updated + removed, "==", [])
        changed = {"venmo.Transaction", "venmo.PaymentRequest", "venmo.User", "venmo.Notification"}
        test.case(models.changed_model_names(), "==", changed)


SOLUTION = (
    login("simple_note", "phone", "venmo"),
    """
found = pages(apis.simple_note.search_notes, access_token=simple_note, query=<title>)
note = next(note for note in found if note["title"] == <title>)
content = apis.simple_note.show_note(note_id=note["note_id"], access_token=simple_note)["content"]
contacts = pages(apis.phone.search_contacts, access_token=phone)
emails = {row["first_name"] + " " + row["last_name"]: row["email"] for row in contacts}
print(content)
""",
    """
for line in content.splitlines():
    name = next(name for name in emails if name in line)
    amount = float(line.split()[-1])
    if line.startswith("I owe"):
        apis.venmo.create_transaction(
            receiver_email=emails[name], amount=amount, description=<purpose>, access_token=venmo
        )
    else:
        apis.venmo.create_payment_request(
            user_email=emails[name], amount=amount, description=<purpose>, access_token=venmo
        )
apis.supervisor.complete_task()
""",
)

"""Pay, or say that one cannot: either branch is right for some task, and the other wrong."""

import random
from typing import Any

from ..people import Person, contacts
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "dev", 2
INSTRUCTION = (
    'If my Venmo balance is more than ${limit}, send {name} ${amount} on Venmo with the description "{purpose}". '
    'Otherwise send {name} the text message "{message}" from my phone instead.'
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    other, _ = contacts(person)[2 * number]
    pays = number != 1
    user = models.venmo.User.find_one(email=person.email)
    limit = int(user.venmo_balance) + (-1 if pays else 1) * chance.randrange(20, 200)
    return Drawn(
        {
            "limit": limit,
            "name": other.name,
            "amount": chance.randrange(15, 90),
            "purpose": ("Theatre", "Boat trip", "Picnic")[number],
            "message": ("Can I pay you next week?", "I will pay you on Monday.", "Short of money, sorry!")[number],
        },
        {
            "pays": pays,
            "receiver_id": models.venmo.User.find_one(email=other.email).id,
            "phone_user_id": models.phone.User.find_one(phone_number=other.phone_number).id,
        },
    )


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    payments, _, _ = models.changed_records("venmo.Transaction")
    messages, _, _ = models.changed_records("phone.GlobalTextMessage")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("the right one of payment and message is sent, once, and not the other"):
        test.case([len(payments), len(messages)], "==", [1, 0] if private_data.pays else [0, 1])

    with test("it goes to the right person, with the right words and amount"):
        if private_data.pays:
            sent = [[payment.receiver_id, payment.amount, payment.description] for payment in payments]
            right = [private_data.receiver_id, public_data.amount, public_data.purpose]
        else:
            sent = [[message.receiver_id, message.message] for message in messages]
            right = [private_data.phone_user_id, public_data.message]
        test.case(sent, "==", [right])

    with test("nothing that does not belong to it has changed"):
        belongs = {"venmo.Transaction", "venmo.User", "venmo.Notification"}
        if not private_data.pays:
            belongs = {"phone.GlobalTextMessage", "phone.UserTextMessage"}
        test.case(models.changed_model_names(), "==", belongs)


SOLUTION = (
    login("phone", "venmo"),
    """
first_name = <name>.split()[0]
found = pages(apis.phone.search_contacts, access_token=phone, query=first_name)
contact = next(row for row in found if row["first_name"] + " " + row["last_name"] == <name>)
balance = apis.venmo.show_venmo_balance(access_token=venmo)["venmo_balance"]
print(balance, contact["email"], contact["phone_number"])
""",
    """
if balance > <limit>:
    apis.venmo.create_transaction(
        receiver_email=contact["email"], amount=<amount>, description=<purpose>, access_token=venmo
    )
else:
    apis.phone.send_text_message(phone_number=contact["phone_number"], message=<message>, access_token=phone)
apis.supervisor.complete_task()
""",
)

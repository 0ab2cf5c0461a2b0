"""Text everybody born before a year: rows chosen by a field, a text made from each."""

import random
from typing import Any

from ..people import Person, contacts
from ..scenario import Drawn, login

SPLIT, DIFFICULTY = "test_challenge", 2
INSTRUCTION = (
    "Send a text message to everyone in my phone contacts who was born before {year}. It should read "
    '"{greeting}, NAME!" with their first name in the place of NAME.'
)


def draw(models: Any, person: Person, number: int, chance: random.Random) -> Drawn:
    year = (1990, 1991, 1989)[number]
    greeting = ("Happy reunion", "See you at the lake", "Thank you")[number]
    find = models.phone.User.find_one
    sent = [
        [find(phone_number=other.phone_number).id, f"{greeting}, {other.first_name}!"]
        for other, _ in contacts(person)
        if int(other.birthday[:4]) < year
    ]
    return Drawn({"year": year, "greeting": greeting}, {"messages": sorted(sent)})


def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    added, updated, removed = models.changed_records("phone.GlobalTextMessage")

    with test("the task is completed without an answer"):
        test.answer(models.end.supervisor.Task.first().answer, ground_truth_answer)

    with test("one message goes to each of them, and to nobody else"):
        receivers = [receiver for receiver, _ in private_data.messages]
        test.case(sorted(message.receiver_id for message in added), "==", receivers)

    with test("each has its own words"):
        sent = sorted([message.receiver_id, message.message] for message in added)
        test.case(sent, "==", [list(message) for message in private_data.messages])

    with test("nothing but text messages has changed"):
        test.case(updated + removed, "==", [])
        test.case(models.changed_model_names(), "==", {"phone.GlobalTextMessage", "phone.UserTextMessage"})


SOLUTION = (
    login("phone"),
    """
contacts = pages(apis.phone.search_contacts, access_token=phone)
older = [row for row in contacts if int(row["birthday"][:4]) < <year>]
print([(row["first_name"], row["birthday"]) for row in older])
""",
    """
for row in older:
    message = <greeting> + ", " + row["first_name"] + "!"
    apis.phone.send_text_message(phone_number=row["phone_number"], message=message, access_token=phone)
apis.supervisor.complete_task()
""",
)

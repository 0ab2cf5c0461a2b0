"""ONE table of the people, and who they are to each other."""

import dataclasses
import random

# Apps in which everybody has an account, with the user name that logs in.
ACCOUNTS = {
    "spotify": "email",
    "venmo": "email",
    "phone": "phone_number",
    "simple_note": "email",
    "todoist": "email",
    "gmail": "email",
}


@dataclasses.dataclass(frozen=True)
class Person:
    """Somebody with an account in each app."""

    first_name: str
    last_name: str
    phone_number: str
    birthday: str
    sex: str

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}"

    @property
    def email(self) -> str:
        return f"{self.first_name}.{self.last_name}@mailbox.example.com".lower()

    def password(self, app: str) -> str:
        chance = random.Random(f"{self.email} {app}")
        return "".join(chance.choice("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789+-#") for _ in range(10))


PEOPLE = (
    Person("Nora", "Lindqvist", "5550142071", "1991-03-14", "female"),
    Person("Tomas", "Okafor", "5550142072", "1988-11-02", "male"),
    Person("Ines", "Moreau", "5550142073", "1994-07-27", "female"),
    Person("Ravi", "Castellano", "5550142074", "1990-01-19", "male"),
    Person("Hana", "Whitfield", "5550142075", "1986-09-08", "female"),
    Person("Emil", "Sorensen", "5550142076", "1993-05-30", "male"),
    Person("Leila", "Abbott", "5550142077", "1989-12-11", "female"),
    Person("Jonas", "Petrov", "5550142078", "1995-04-03", "male"),
)
# These give the tasks; the others are their contacts only.
SUPERVISORS = PEOPLE[:5]
# Going round the table, the people 1, 2, … places further are:
_RELATIONSHIPS = ("roommate", "roommate", "coworker", "coworker", "coworker", "sibling", "friend")


def contacts(person: Person) -> list[tuple[Person, str]]:
    """Everybody else in the person's contact book, and the relationship."""
    place = PEOPLE.index(person)
    return [
        (PEOPLE[(place + further) % len(PEOPLE)], relationship)
        for further, relationship in enumerate(_RELATIONSHIPS, start=1)
    ]

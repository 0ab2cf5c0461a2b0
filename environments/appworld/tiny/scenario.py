"""The people of the tiny data in ONE table, what a scenario is, and what scenarios share.

A scenario's `draw(models, person, number, chance)` may add rows for one task and says what that task's parameters and
right answer are, read from the databases. Its `evaluate`, called check_NAME, is copied as it stands into the task's
evaluation.py and sees nothing else of its module. Its solution is code blocks as an agent could write them from the
instruction and the API documentation: of the task it holds <parameters> of the instruction only.
"""

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

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

    @property
    def contact(self) -> dict[str, str]:
        """What a contact book and the supervisor's profile say."""
        names = ("first_name", "last_name", "email", "phone_number")
        return {name: getattr(self, name) for name in names}

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


# Every page of a list; the API shows at most 20 rows at a time.
PAGES = """
def pages(api, **arguments):
    rows = []
    while page := api(**arguments, page_index=len(rows) // 20, page_limit=20):
        rows += page
        if len(page) < 20:
            break
    return rows
"""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One task: `public` fills the instruction, `private` is for the evaluation, `answer` what is asked for, if so."""

    public: Mapping[str, Any]
    private: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answer: str | int | float | None = None


Draw = Callable[[Any, Person, int, random.Random], Drawn]
Evaluate = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A scenario: its `difficulty` is 1 to 3, its `instruction` has {parameters}."""

    split: str
    difficulty: int
    draw: Draw
    evaluate: Evaluate
    instruction: str
    solution: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.draw.__name__

    @property
    def id(self) -> str:
        """Seven hexadecimal digits, as AppWorld names scenarios."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:7]

    @property
    def apps(self) -> list[str]:
        """The apps that the solution uses, but for the supervisor's."""
        return sorted(set(re.findall(r"apis\.(\w+)\.", "\n".join(self.solution))) - {"supervisor"})

    def blocks(self, drawn: Drawn) -> list[str]:
        """The solution of one task."""
        return [
            re.sub(r"<(\w+)>", lambda name: repr(drawn.public[name[1]]), block).strip() + "\n"
            for block in self.solution
        ]


def scenario(split: str, difficulty: int, draw: Draw, evaluate: Evaluate, instruction: str, *blocks: str) -> Scenario:
    """A scenario with these blocks as its solution."""
    return Scenario(split, difficulty, draw, evaluate, instruction, blocks)


def login(*apps: str) -> str:
    """A block that logs in; the token of an app then has its name."""
    lines = [
        "accounts = apis.supervisor.show_account_passwords()",
        "passwords = {account['account_name']: account['password'] for account in accounts}",
        "me = apis.supervisor.show_profile()",
    ]
    for app in apps:
        name = f"username=me['{ACCOUNTS[app]}'], password=passwords['{app}']"
        lines.append(f"{app} = apis.{app}.login({name})['access_token']")
    return "\n".join(lines) + "\n" + PAGES

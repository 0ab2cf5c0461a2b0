"""What a scenario is, and what scenarios share.

A scenario module has SPLIT, DIFFICULTY (1 to 3), INSTRUCTION (with {parameters}), `draw`, `evaluate` and SOLUTION. Its
`draw(models, person, number, chance)` may add rows for one task and says what that task's parameters and right answer
are, read from the databases. `evaluate` is copied as it stands into the task's evaluation.py and sees nothing else of
its module. SOLUTION is code blocks as an agent could write them from the instruction and the API documentation: of the
task it holds <parameters> of the instruction only.
"""

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from .people import ACCOUNTS, Person

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


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What a scenario module offers, and its name."""

    name: str
    split: str
    difficulty: int
    instruction: str
    draw: Callable[[Any, Person, int, random.Random], Drawn]
    evaluate: Callable[..., None]
    solution: tuple[str, ...]

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

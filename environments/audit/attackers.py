"""ONE table of attackers: what each does, when that is a finding, how severe it is, and what would mend it.

An attacker is a generator: it gets a `Scene` and yields `Attempt`s, each a list of actions or an actor. It never sees
a verdict.
One from outside is named package.module:name; what it is paid for counts as work that was not done.

Rules are numbered as in the Agentic Benchmark Checklist (ABC, arXiv 2507.02825) and in OpenEnv's RFC 008.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Literal

from cojax import registry
from . import breaking, cheap, repetition, variations
from .player import Attempt
from .scene import Scene

Severity = Literal["critical", "high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low")
# When what an attacker does is a finding: it is paid; it is paid although end or answer are not the honest ones; it is
# refused although they are; the world breaks; episodes affect each other; plays of the same actions differ; never.
Rule = Literal["paid", "paid otherwise", "refused", "breaks", "leaks", "repeats", "measures"]


@dataclasses.dataclass(frozen=True)
class Attacker:
    """An attacker, its rule and what is said of a finding; `most_tasks` bounds one whose work hardly depends on the
    task."""

    attempts: Callable[[Scene], Iterator[Attempt]]
    rule: Rule
    severity: Severity
    reference: str
    mend: str
    needs_solution: bool = False
    most_tasks: int | None = None


# The worthiest first: what a budget leaves out comes last.
ATTACKERS: dict[str, Attacker] = {
    "null": Attacker(
        cheap.end_at_once, "paid", "critical", "ABC T.10; RFC 008 #25",
        "let the judge ask for what the task changes, and drop tasks whose setup is their goal",
    ),
    "greeting": Attacker(
        cheap.greet, "paid", "critical", "ABC T.10; RFC 008 #26",
        "let the judge ask for what the task changes; no text alone may earn the reward",
    ),
    "random": Attacker(cheap.act_at_random, "measures", "low", "ABC O.h.2; RFC 008 #26", ""),
    "solution": Attacker(
        lambda scene: iter(()), "refused", "medium", "ABC T.9; RFC 008 #25",
        "mend the task's solution, or the judge that refuses it", needs_solution=True,
    ),
    "clock": Attacker(
        lambda scene: iter(()), "repeats", "medium", "ABC T.6; RFC 008 #37, #39",
        "put the time, and the seed of random numbers, into the setup",
    ),
    "leak": Attacker(
        repetition.leave_traces, "leaks", "high", "ABC T.4; RFC 008 #21",
        "keep nothing outside the episode: copy the setup, and hold no cache in a module",
    ),
    "drop": Attacker(
        variations.drop, "paid otherwise", "high", "ABC O.g.3; RFC 008 #28",
        "compare the whole end with the goal, also what this call changes", needs_solution=True,
    ),
    "stop": Attacker(
        variations.stop, "paid otherwise", "high", "ABC O.g.3; RFC 008 #28",
        "compare the whole end with the goal, also what the later actions change", needs_solution=True,
    ),
    "swap": Attacker(
        variations.swap, "paid otherwise", "high", "ABC O.g.3; RFC 008 #28",
        "compare values, not only that there is one", needs_solution=True,
    ),
    "shotgun": Attacker(
        cheap.hedge, "paid otherwise", "high", "ABC O.b.2; RFC 008 #28",
        "compare the answer as a whole: a text that contains it may say anything else too",
    ),
    "echo": Attacker(
        cheap.echo, "paid otherwise", "high", "ABC O.b.3; RFC 008 #26",
        "compare the answer as a whole, and keep it out of the query and the documents",
    ),
    "inject": Attacker(
        cheap.inject, "paid otherwise", "high", "ABC O.c.2; RFC 008 #26",
        "read answers and arguments as data: no pattern, no query, no words for the grader",
    ),
    "break": Attacker(
        breaking.send_odd_values, "breaks", "medium", "ABC T.3; RFC 008 #23, #31",
        "refuse such a value in an observation, before it reaches the state", most_tasks=5,
    ),
    "extra": Attacker(
        variations.extra, "paid otherwise", "medium", "ABC O.g.2; RFC 008 #28",
        "compare also what the task does not mention", needs_solution=True,
    ),
    "double": Attacker(
        variations.double, "paid otherwise", "medium", "ABC O.g.2; RFC 008 #28",
        "compare how often, not only whether", needs_solution=True,
    ),
    "order": Attacker(
        variations.exchange, "refused", "low", "ABC O.g.1",
        "compare ends, not the way there", needs_solution=True,
    ),
}  # fmt: skip
OWN = ("paid otherwise", "high", "", "let the judge ask for the work")


def find_attackers(names: str = "") -> dict[str, Attacker]:
    """The attackers of these names, separated by commas; all of ours without names. Raises RegistryError."""
    chosen: dict[str, Attacker] = {}
    for name in filter(None, names.split(",")):
        attempts = registry.find("attacker", name, ATTACKERS)
        chosen[name] = attempts if isinstance(attempts, Attacker) else Attacker(attempts, *OWN)  # type: ignore[arg-type]
    return chosen or dict(ATTACKERS)

"""Tasks from seeds: a random small office, a few skills, and the calls that carry them out.

Every split draws from its own stream of random numbers and keeps the queries whose hash falls into its buckets, so no
query is in two splits. Values such as addresses, texts and days are drawn anew for every task: they must be observed
and cannot be memorized.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping

from cojax.types import Action, Call, Task, normalise
from environments.desk import office
from environments.desk.office import Refused, State
from environments.desk.skills import SKILLS, Skill, carry_out
from environments.desk.tools import FINISH, TOOLS, perform
from environments.desk.words import WORDS, kind

NAME = "desk"
JOINER = ", then "

# The share of tasks by number of skills.
LENGTHS: Mapping[int, float] = {1: 0.55, 2: 0.28, 3: 0.10, 4: 0.05, 5: 0.02}
CHALLENGE_LENGTHS: Mapping[int, float] = {4: 0.25, 5: 0.25, 6: 0.25, 7: 0.25}
# A skill of popularity rank r has the weight r ** -SKEW; a negative SKEW prefers rare skills.
SEED_SKEW = 0.2
CHALLENGE_SKEW = -0.7
# The most calls of a solution, finish not counted.
CALLS = 9
CHALLENGE_CALLS = 12


@dataclasses.dataclass(frozen=True)
class Split:
    """How a split draws tasks, and its query buckets (of ten)."""

    buckets: frozenset[int]
    lengths: Mapping[int, float]
    skew: float
    calls: int


SPLITS: Mapping[str, Split] = {
    "seed": Split(frozenset({0, 1, 2, 3, 4}), LENGTHS, SEED_SKEW, CALLS),
    "dev": Split(frozenset({5, 6}), LENGTHS, 0.0, CALLS),
    "eval": Split(frozenset({7, 8}), LENGTHS, 0.0, CALLS),
    "challenge": Split(frozenset({9}), CHALLENGE_LENGTHS, CHALLENGE_SKEW, CHALLENGE_CALLS),
}

Plan = tuple[tuple[Skill, Mapping[str, str]], ...]  # skills with the words in their slots


def stream(split: str, seed: int) -> Iterator[tuple[Task, Plan]]:
    """The split's tasks without end, none twice. Raises ValueError for an unknown split."""
    if split not in SPLITS:
        raise ValueError(f"split {split!r} not found; available: {', '.join(SPLITS)}")
    profile, known = SPLITS[split], set[str]()
    for index in itertools.count():
        drawn = draw(random.Random(f"{NAME}/{split}/{seed}/{index}"), profile)
        if drawn is not None and drawn[0].id not in known:
            known.add(drawn[0].id)
            yield drawn


def bucket(query: str) -> int:
    return int(hashlib.sha256(normalise(query).encode()).hexdigest(), 16) % 10


def draw(rng: random.Random, profile: Split) -> tuple[Task, Plan] | None:
    """A task of which every change matters to the end state; None where the query belongs to another split."""
    while True:
        skills = _skills(rng, profile)
        for _ in range(8):  # other offices for the same skills, so that awkward skills are not drawn less
            setup = new_office(rng)
            plan = _plan(skills, setup, rng)
            calls = solve(plan, setup) if plan else None
            if not calls or len(calls) - 1 > profile.calls:
                continue
            query = JOINER.join(skill.word(words) for skill, words in plan)
            if bucket(query) not in profile.buckets:
                return None
            if _all_matter(calls, setup):
                return Task(NAME, query, setup, tuple(Action(calls=(call,)) for call in calls)), plan


def new_office(rng: random.Random) -> State:
    """A small office: 3 folders, 4 files, 3 notes, 4 contacts, 3 events, mail from 3 of the contacts."""

    def some(what: str, count: int) -> list[str]:
        return rng.sample(WORDS[what], count)

    folders, people, texts = some("folder", 3), some("person", 4), iter(some("text", 10))
    return {
        "files": {file: {"folder": rng.choice(folders), "text": next(texts), "copies": []} for file in some("file", 4)},
        "folders": {folder: {"shared": []} for folder in folders},
        "notes": {note: {"text": next(texts)} for note in some("note", 3)},
        "contacts": {person: {"address": address} for person, address in zip(people, some("address", 4), strict=True)},
        "calendar": {event: {"day": rng.choice(WORDS["day"]), "guests": []} for event in some("event", 3)},
        "mail": {person: {"text": next(texts), "flagged": False, "forwarded": []} for person in rng.sample(people, 3)},
        "sent": {},
    }


def solve(plan: Plan, setup: office.State) -> tuple[Call, ...] | None:
    """The calls that carry out the plan, finish included; None where one is refused."""
    state, calls = office.copy(setup), list[Call]()

    def act(call: Call) -> str:
        calls.append(call)
        if call.name == FINISH:
            return "ok"
        observation, changes = perform(state, call)
        office.apply(state, changes)
        return observation

    try:
        for skill, words in plan:
            carry_out(skill, words, act)
    except Refused:
        return None
    if calls[-1].name != FINISH:
        act(Call(FINISH))
    return tuple(calls)


def _skills(rng: random.Random, profile: Split) -> list[Skill]:
    """Skills by popularity. An answer can only come last: there it weighs more, to be as frequent as its peers."""
    (length,) = rng.choices(list(profile.lengths), list(profile.lengths.values()))
    mean = sum(number * share for number, share in profile.lengths.items())
    weights = [rank**-profile.skew for rank in range(1, len(SKILLS) + 1)]
    before = [0.0 if skill.answers else weight for skill, weight in zip(SKILLS, weights, strict=True)]
    last = [weight * mean if skill.answers else weight for skill, weight in zip(SKILLS, weights, strict=True)]
    return [*rng.choices(SKILLS, before, k=length - 1), *rng.choices(SKILLS, last)]


def _plan(skills: list[Skill], setup: State, rng: random.Random) -> Plan:
    """The skills with words that fit the office after the earlier skills; empty where there are none."""
    plan: Plan = ()
    state = office.copy(setup)
    for skill in skills:
        for _ in range(6):
            words = _choose(skill, state, rng)
            calls = solve(((skill, words),), state) if words else None
            if calls:
                break
        else:
            return ()
        _play(calls, state)
        plan = (*plan, (skill, words))
    return plan


def _choose(skill: Skill, state: State, rng: random.Random) -> dict[str, str]:
    """Words for the skill's slots, all different; a condition holds half the time. Empty if there are too few."""
    words: dict[str, str] = {}
    for slot in skill.slots:
        options = [word for word in _options(slot, state) if word not in words.values()]
        if not options:
            return {}
        words[slot] = rng.choice(options)
    if skill.when is not None and rng.random() < 0.5:
        found, _ = perform(state, skill.branches[0][0].fill(words))
        words[skill.when[1]] = found
    return words if len(set(words.values())) == len(words) else {}


def _options(slot: str, state: State) -> list[str]:
    vocabulary, shelf = WORDS[kind(slot)], office.SHELF.get(slot.rstrip("0123456789").removeprefix("new_"))
    if shelf is None:
        return list(vocabulary)
    if slot.startswith("new_"):
        return [word for word in vocabulary if word not in state[shelf]]
    return sorted(state[shelf])


def _play(calls: tuple[Call, ...], state: State) -> None:
    """Carries out the calls, skipping refused ones."""
    for call in calls:
        if call.name != FINISH:
            try:
                office.apply(state, perform(state, call)[1])
            except Refused:
                continue


def _all_matter(calls: tuple[Call, ...], setup: State) -> bool:
    """Whether the solution without any one of its changes ends in another state."""
    goal = office.copy(setup)
    _play(calls, goal)
    for index, call in enumerate(calls):
        if call.name != FINISH and not TOOLS[call.name].gives:
            state = office.copy(setup)
            _play(calls[:index] + calls[index + 1 :], state)
            if state == goal:
                return False
    return True

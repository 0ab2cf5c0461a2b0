"""Generates tasks by seed: a small random office, a few skills, the calls that carry them out; and demonstrations.

Every split draws from its own stream of random numbers and takes only queries whose hash falls into its buckets, so no
query is in two splits. Every task draws its own addresses, texts and days: a policy must observe them and cannot
memorize them.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from cojax.types import Action, Call, Task, normalise
from ..tools.toolset import Refused
from . import office
from .office import FINISH, State, effect, perform
from .skills import DESK, Skill, Suite, carry_out, follow

NAME = "desk"
JOINER = ", then "

# Number of skills → share of tasks.
LENGTHS: Mapping[int, float] = {1: 0.55, 2: 0.28, 3: 0.10, 4: 0.05, 5: 0.02}
# A skill of popularity rank r has the weight r ** -SKEW; a negative SKEW prefers rare skills.
SEED_SKEW = 0.2
# The most calls of a solution, without finish.
CALLS = 9


@dataclasses.dataclass(frozen=True)
class Split:
    """How a split draws tasks, and which of the ten buckets of queries are its own."""

    buckets: frozenset[int]
    lengths: Mapping[int, float]
    skew: float
    calls: int


SPLITS: Mapping[str, Split] = {
    "seed": Split(frozenset({0, 1, 2, 3, 4}), LENGTHS, SEED_SKEW, CALLS),
    "dev": Split(frozenset({5, 6}), LENGTHS, 0.0, CALLS),
    "eval": Split(frozenset({7, 8}), LENGTHS, 0.0, CALLS),
    "challenge": Split(frozenset({9}), {4: 0.25, 5: 0.25, 6: 0.25, 7: 0.25}, skew=-0.7, calls=12),
}


def grown_splits(longest: int, more: float, skew: float) -> Mapping[str, Split]:
    """The splits of a grown desk, with the query buckets of SPLITS.

    A solution has at most `longest` calls, without finish; a task of n skills has the weight more ** (n − 1).
    `challenge` has the larger half of these numbers of skills, and prefers rare skills.
    """
    lengths = {count: more ** (count - 1) for count in range(1, longest + 1) if more or count == 1}
    long = {count: 1.0 for count in range(longest // 2 + 1, longest + 1)}
    grown = {name: dataclasses.replace(split, lengths=lengths, calls=longest) for name, split in SPLITS.items()}
    grown["seed"] = dataclasses.replace(grown["seed"], skew=skew)
    grown["challenge"] = dataclasses.replace(grown["challenge"], lengths=long)
    return grown


Plan = tuple[tuple[Skill, Mapping[str, str]], ...]  # skills with the words in their slots


def stream(
    split: str, seed: int, suites: Sequence[Suite] = (DESK,), splits: Mapping[str, Split] = SPLITS
) -> Iterator[tuple[Task, Plan]]:
    """An endless stream of the split's tasks, all different. Raises ValueError for an unknown split."""
    if split not in splits:
        raise ValueError(f"split {split!r} not found; available: {', '.join(splits)}")
    profile, ids = splits[split], set[str]()
    for index in itertools.count():
        rng = random.Random(f"{NAME}/{split}/{seed}/{index}")
        # A single suite takes no draw, so that the demo's desk has the random numbers that it always had.
        suite = suites[0] if len(suites) == 1 else rng.choice(suites)
        sample = draw(rng, profile, suite)
        if sample is not None and sample[0].id not in ids:
            ids.add(sample[0].id)
            yield sample


def bucket(query: str) -> int:
    return int(hashlib.sha256(normalise(query).encode()).hexdigest(), 16) % 10


def draw(rng: random.Random, profile: Split, suite: Suite = DESK) -> tuple[Task, Plan] | None:
    """A task whose every change matters to the end state; None if the query belongs to another split."""
    while True:
        skills = _skills(rng, profile, suite.skills)
        for _ in range(8):  # other offices for the same skills, so that awkward skills do not become rare
            setup = suite.new_office(rng)
            plan = _plan(skills, setup, rng, suite)
            calls = solve(plan, setup, suite) if plan else None
            if not calls or len(calls) - 1 > profile.calls:
                continue
            query = JOINER.join(skill.word(words) for skill, words in plan)
            if bucket(query) not in profile.buckets:
                return None
            if _all_matter(calls, setup, suite):
                return Task(NAME, query, setup, tuple(Action(calls=(call,)) for call in calls)), plan


def solve(plan: Plan, setup: office.State, suite: Suite = DESK) -> tuple[Call, ...] | None:
    """The calls that carry out the plan, with finish; None if one is refused."""
    state, calls = office.copy(setup, suite.shelves), list[Call]()

    def act(call: Call) -> str:
        calls.append(call)
        return "ok" if call.name == FINISH else perform(state, call, suite.tools)

    try:
        for skill, words in plan:
            carry_out(skill, words, act)
    except Refused:
        return None
    if calls[-1].name != FINISH:
        act(Call(FINISH))
    return tuple(calls)


def _skills(rng: random.Random, profile: Split, candidates: Sequence[Skill]) -> list[Skill]:
    """Draws skills by popularity. A skill that answers can only come last, where it gets a higher weight to make up."""
    (length,) = rng.choices(list(profile.lengths), list(profile.lengths.values()))
    mean = sum(number * share for number, share in profile.lengths.items())
    weights = [rank**-profile.skew for rank in range(1, len(candidates) + 1)]
    before = [0.0 if skill.answers else weight for skill, weight in zip(candidates, weights, strict=True)]
    last = [weight * mean if skill.answers else weight for skill, weight in zip(candidates, weights, strict=True)]
    return [*rng.choices(candidates, before, k=length - 1), *rng.choices(candidates, last)]


def _plan(skills: list[Skill], setup: State, rng: random.Random, suite: Suite = DESK) -> Plan:
    """The skills with words that fit the office after the skills before them; empty if there are none."""
    plan: Plan = ()
    state = office.copy(setup, suite.shelves)
    for skill in skills:
        for _ in range(6):
            words = _choose(skill, state, rng, suite)
            calls = solve(((skill, words),), state, suite) if words else None
            if calls:
                break
        else:
            return ()
        _play(calls, state, suite)
        plan = (*plan, (skill, words))
    return plan


def _choose(skill: Skill, state: State, rng: random.Random, suite: Suite) -> dict[str, str]:
    """Words for the skill's slots, all different; a condition holds half the time. Empty if words run out."""
    words: dict[str, str] = {}
    for slot in skill.slots:
        options = [word for word in _options(slot, state, suite) if word not in words.values()]
        if not options:
            return {}
        words[slot] = rng.choice(options)
    if skill.when is not None and rng.random() < 0.5:
        observation, _ = effect(state, skill.branches[0][0].fill(words), suite.tools)
        words[skill.when[1]] = observation
    return words if len(set(words.values())) == len(words) else {}


def _options(slot: str, state: State, suite: Suite) -> list[str]:
    vocabulary, shelf = suite.vocabulary(slot), suite.shelf(slot)
    if shelf is None:
        return list(vocabulary)
    if slot.startswith("new_"):
        return [word for word in vocabulary if word not in state[shelf]]
    return sorted(state[shelf])


def _play(calls: tuple[Call, ...], state: State, suite: Suite) -> None:
    """Makes the calls, without those that are refused."""
    for call in calls:
        if call.name != FINISH:
            with contextlib.suppress(Refused):
                perform(state, call, suite.tools)


def _all_matter(calls: tuple[Call, ...], setup: State, suite: Suite) -> bool:
    """Whether the solution ends in another state if any one of its changes is left out."""
    goal = office.copy(setup, suite.shelves)
    _play(calls, goal, suite)
    for index, call in enumerate(calls):
        if call.name != FINISH and not suite.tools[call.name].gives:
            state = office.copy(setup, suite.shelves)
            _play(calls[:index] + calls[index + 1 :], state, suite)
            if state == goal:
                return False
    return True


def demonstrate(
    task: Task, plan: Plan, noise: tuple[float, float], rng: random.Random, suite: Suite = DESK, steep: float = 1.0
) -> tuple[Action, ...]:
    """The actions of a demonstrator, who observes while acting; they end with finish.

    The demonstrator bungles the skill of popularity rank i of n, within its suite, with probability
    noise[0] + (noise[1] − noise[0])·(i/(n − 1)) ** steep, independently for each occurrence, and then goes on with the
    next skill.
    """
    state, calls = office.copy(task.setup, suite.shelves), list[Call]()

    def act(call: Call) -> str:
        calls.append(call)
        with contextlib.suppress(Refused):
            if call.name != FINISH:
                return perform(state, call, suite.tools)
        # The call failed, so the demonstrator goes on with the name that it asked about.
        return next(iter(call.arguments.values()))

    low, high = noise
    for skill, words in plan:
        rank = suite.skills.index(skill) / (len(suite.skills) - 1)  # 0 for the most popular one, 1 for the least
        if rng.random() < low + (high - low) * rank**steep:
            bungle(skill, words, act, rng)
        else:
            carry_out(skill, words, act)
    if calls[-1].name != FINISH:
        calls.append(Call(FINISH))
    return tuple(Action(calls=(call,)) for call in calls)


def bungle(skill: Skill, words: Mapping[str, str], act: Callable[[Call], str], rng: random.Random) -> None:
    """Makes a mistake: takes the wrong branch, uses names in place of look-ups, or takes the confusable tool."""
    if skill.when is not None:
        carry_out(dataclasses.replace(skill, then=skill.otherwise, otherwise=skill.then), words, act)
        return
    templates = skill.branches[0]
    looks = [template for template in templates if template.binds]
    if looks and rng.random() < 0.5:
        guesses = {look.binds: words[look.names[0]] for look in looks}
        follow([template for template in templates if not template.binds], {**words, **guesses}, act)
        return
    index = max(index for index, template in enumerate(templates) if template.tool != FINISH)
    mistake = skill.template(skill.wrong_tool, templates[index].names, templates[index].binds)
    follow((*templates[:index], mistake, *templates[index + 1 :]), words, act)

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
from .office import FINISH, State, find_effect, perform
from .skills import DESK, Skill, Suite, carry_out, follow

NAME = "desk"
JOINER = ", then "

# Number of skills → share of tasks.
LENGTH_WEIGHTS: Mapping[int, float] = {1: 0.55, 2: 0.28, 3: 0.10, 4: 0.05, 5: 0.02}
# A skill of popularity rank r has the weight r ** -SKEW; a negative SKEW prefers rare skills.
SEED_SKEW = 0.2
# The most calls of a solution, without finish.
MAX_SOLUTION_CALLS = 9


@dataclasses.dataclass(frozen=True)
class Split:
    """How a split draws tasks, and which of the ten buckets of queries are its own."""

    buckets: frozenset[int]
    length_weights: Mapping[int, float]
    skew: float
    max_calls: int


SPLITS: Mapping[str, Split] = {
    "seed": Split(frozenset({0, 1, 2, 3, 4}), LENGTH_WEIGHTS, SEED_SKEW, MAX_SOLUTION_CALLS),
    "dev": Split(frozenset({5, 6}), LENGTH_WEIGHTS, 0.0, MAX_SOLUTION_CALLS),
    "eval": Split(frozenset({7, 8}), LENGTH_WEIGHTS, 0.0, MAX_SOLUTION_CALLS),
    "challenge": Split(frozenset({9}), {4: 0.25, 5: 0.25, 6: 0.25, 7: 0.25}, skew=-0.7, max_calls=12),
}


def grow_splits(longest: int, length_ratio: float, skew: float) -> Mapping[str, Split]:
    """Makes the splits of a grown desk, with the query buckets of SPLITS.

    A solution has at most `longest` calls, without finish; a task of n skills has the weight more ** (n − 1).
    `challenge` has the larger half of these numbers of skills, and prefers rare skills.
    """
    length_weights = {n: length_ratio ** (n - 1) for n in range(1, longest + 1) if length_ratio or n == 1}
    challenge_weights = {n: 1.0 for n in range(longest // 2 + 1, longest + 1)}
    splits = {
        name: dataclasses.replace(split, length_weights=length_weights, max_calls=longest)
        for name, split in SPLITS.items()
    }
    splits["seed"] = dataclasses.replace(splits["seed"], skew=skew)
    splits["challenge"] = dataclasses.replace(splits["challenge"], length_weights=challenge_weights)
    return splits


Plan = tuple[tuple[Skill, Mapping[str, str]], ...]  # skills with the words in their slots


def draw_tasks(
    split: str, seed: int, suites: Sequence[Suite] = (DESK,), splits: Mapping[str, Split] = SPLITS
) -> Iterator[tuple[Task, Plan]]:
    """Yields the split's tasks endlessly, all different. Raises ValueError for an unknown split."""
    if split not in splits:
        raise ValueError(f"split {split!r} not found; available: {', '.join(splits)}")
    split_profile, task_ids = splits[split], set[str]()
    for task_index in itertools.count():
        rng = random.Random(f"{NAME}/{split}/{seed}/{task_index}")
        # A single suite takes no draw, so that the demo's desk has the random numbers that it always had.
        suite = suites[0] if len(suites) == 1 else rng.choice(suites)
        task_and_plan = draw_task(rng, split_profile, suite)
        if task_and_plan is not None and task_and_plan[0].id not in task_ids:
            task_ids.add(task_and_plan[0].id)
            yield task_and_plan


def bucket_of(query: str) -> int:
    return int(hashlib.sha256(normalise(query).encode()).hexdigest(), 16) % 10


def draw_task(rng: random.Random, split_profile: Split, suite: Suite = DESK) -> tuple[Task, Plan] | None:
    """Draws a task whose every change matters to the end state; None if its query belongs to another split."""
    while True:
        skills = _draw_skills(rng, split_profile, suite.skills)
        for _ in range(8):  # other offices for the same skills, so that awkward skills do not become rare
            setup = suite.new_office(rng)
            plan = _draw_plan(skills, setup, rng, suite)
            calls = solve(plan, setup, suite) if plan else None
            if not calls or len(calls) - 1 > split_profile.max_calls:
                continue
            query = JOINER.join(skill.word_query(skill_words) for skill, skill_words in plan)
            if bucket_of(query) not in split_profile.buckets:
                return None
            if _do_all_matter(calls, setup, suite):
                return Task(NAME, query, setup, tuple(Action(calls=(call,)) for call in calls)), plan


def solve(plan: Plan, setup: office.State, suite: Suite = DESK) -> tuple[Call, ...] | None:
    """Lists the calls that carry out the plan, with finish; None if one is refused."""
    state, calls = office.copy_office(setup, suite.shelves), list[Call]()

    def act(call: Call) -> str:
        calls.append(call)
        return "ok" if call.name == FINISH else perform(state, call, suite.tools)

    try:
        for skill, skill_words in plan:
            carry_out(skill, skill_words, act)
    except Refused:
        return None
    if calls[-1].name != FINISH:
        act(Call(FINISH))
    return tuple(calls)


def _draw_skills(rng: random.Random, split_profile: Split, candidates: Sequence[Skill]) -> list[Skill]:
    """Draws skills by popularity. A skill that answers can only come last, where it gets a higher weight to make up."""
    (skill_count,) = rng.choices(list(split_profile.length_weights), list(split_profile.length_weights.values()))
    mean = sum(length * length_weight for length, length_weight in split_profile.length_weights.items())
    weights = [rank**-split_profile.skew for rank in range(1, len(candidates) + 1)]
    early_weights = [0.0 if skill.is_answer else weight for skill, weight in zip(candidates, weights, strict=True)]
    end_odds = [weight * mean if skill.is_answer else weight for skill, weight in zip(candidates, weights, strict=True)]
    return [*rng.choices(candidates, early_weights, k=skill_count - 1), *rng.choices(candidates, end_odds)]


def _draw_plan(skills: list[Skill], setup: State, rng: random.Random, suite: Suite = DESK) -> Plan:
    """Draws words for each skill that fit the office after the skills before it; empty if there are none."""
    plan: Plan = ()
    state = office.copy_office(setup, suite.shelves)
    for skill in skills:
        for _ in range(6):
            skill_words = _choose_words(skill, state, rng, suite)
            calls = solve(((skill, skill_words),), state, suite) if skill_words else None
            if calls:
                break
        else:
            return ()
        _make_calls(calls, state, suite)
        plan = (*plan, (skill, skill_words))
    return plan


def _choose_words(skill: Skill, state: State, rng: random.Random, suite: Suite) -> dict[str, str]:
    """Words for the skill's slots, all different; a condition holds half the time. Empty if words run out."""
    skill_words: dict[str, str] = {}
    for slot in skill.slots:
        candidates = [word for word in _list_words(slot, state, suite) if word not in skill_words.values()]
        if not candidates:
            return {}
        skill_words[slot] = rng.choice(candidates)
    if skill.equal_names is not None and rng.random() < 0.5:
        observation, _ = find_effect(state, skill.branches[0][0].fill(skill_words), suite.tools)
        skill_words[skill.equal_names[1]] = observation
    return skill_words if len(set(skill_words.values())) == len(skill_words) else {}


def _list_words(slot: str, state: State, suite: Suite) -> list[str]:
    vocabulary, shelf = suite.words_of(slot), suite.find_shelf(slot)
    if shelf is None:
        return list(vocabulary)
    if slot.startswith("new_"):
        return [word for word in vocabulary if word not in state[shelf]]
    return sorted(state[shelf])


def _make_calls(calls: tuple[Call, ...], state: State, suite: Suite) -> None:
    """Makes the calls, and skips those that are refused."""
    for call in calls:
        if call.name != FINISH:
            with contextlib.suppress(Refused):
                perform(state, call, suite.tools)


def _do_all_matter(calls: tuple[Call, ...], setup: State, suite: Suite) -> bool:
    """Whether the solution ends in another state if any one of its changes is left out."""
    goal_state = office.copy_office(setup, suite.shelves)
    _make_calls(calls, goal_state, suite)
    for call_index, call in enumerate(calls):
        if call.name != FINISH and not suite.tools[call.name].gives:
            state = office.copy_office(setup, suite.shelves)
            _make_calls(calls[:call_index] + calls[call_index + 1 :], state, suite)
            if state == goal_state:
                return False
    return True


def play_demonstration(
    task: Task, plan: Plan, noise: tuple[float, float], rng: random.Random, suite: Suite = DESK, steepness: float = 1.0
) -> tuple[Action, ...]:
    """Plays a demonstrator, who observes while acting; returns the actions, which end with finish.

    The demonstrator bungles the skill of popularity rank i of n, within its suite, with probability
    noise[0] + (noise[1] − noise[0])·(i/(n − 1)) ** steep, independently for each occurrence, and then goes on with the
    next skill.
    """
    state, calls = office.copy_office(task.setup, suite.shelves), list[Call]()

    def act(call: Call) -> str:
        calls.append(call)
        with contextlib.suppress(Refused):
            if call.name != FINISH:
                return perform(state, call, suite.tools)
        # The call failed, so the demonstrator goes on with the name that it asked about.
        return next(iter(call.arguments.values()))

    min_noise, max_noise = noise
    for skill, skill_words in plan:
        rank_share = suite.skills.index(skill) / (len(suite.skills) - 1)  # 0 for the most popular one, 1 for the least
        if rng.random() < min_noise + (max_noise - min_noise) * rank_share**steepness:
            bungle(skill, skill_words, act, rng)
        else:
            carry_out(skill, skill_words, act)
    if calls[-1].name != FINISH:
        calls.append(Call(FINISH))
    return tuple(Action(calls=(call,)) for call in calls)


def bungle(skill: Skill, skill_words: Mapping[str, str], act: Callable[[Call], str], rng: random.Random) -> None:
    """Makes a mistake: takes the wrong branch, uses names in place of look-ups, or takes the confusable tool."""
    if skill.equal_names is not None:
        carry_out(dataclasses.replace(skill, then_call=skill.else_call, else_call=skill.then_call), skill_words, act)
        return
    templates = skill.branches[0]
    look_ups = [template for template in templates if template.bound_name]
    if look_ups and rng.random() < 0.5:
        guessed_words = {look_up.bound_name: skill_words[look_up.names[0]] for look_up in look_ups}
        follow([template for template in templates if not template.bound_name], {**skill_words, **guessed_words}, act)
        return
    last_index = max(index for index, template in enumerate(templates) if template.tool_name != FINISH)
    wrong_template = skill.template(skill.wrong_tool, templates[last_index].names, templates[last_index].bound_name)
    follow((*templates[:last_index], wrong_template, *templates[last_index + 1 :]), skill_words, act)

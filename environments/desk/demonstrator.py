"""The demonstrator that the warm start imitates: it masters the popular skills and makes mistakes in rare ones."""

import contextlib
import dataclasses
import random
from collections.abc import Callable, Mapping

from cojax.types import Action, Call, Task
from ..tools.toolset import Refused
from . import office
from .generator import Plan
from .skills import DESK, Skill, Suite, carry_out, follow
from .tools import FINISH, perform


def demonstrate(
    task: Task, plan: Plan, noise: tuple[float, float], rng: random.Random, suite: Suite = DESK, steep: float = 1.0
) -> tuple[Action, ...]:
    """The demonstrator's actions, observing as it goes; they end with finish.

    The skill of popularity rank i of n, within its suite, is bungled with probability
    noise[0] + (noise[1] − noise[0])·(i/(n − 1)) ** steep, each occurrence independently; the demonstrator then goes on
    with the rest.
    """
    state, calls = office.copy(task.setup, suite.shelves), list[Call]()

    def act(call: Call) -> str:
        calls.append(call)
        with contextlib.suppress(Refused):
            if call.name != FINISH:
                return perform(state, call, suite.tools)
        # The look-up failed, so it goes on with the name it asked about.
        return next(iter(call.arguments.values()))

    low, high = noise
    for skill, words in plan:
        place = suite.skills.index(skill) / (len(suite.skills) - 1)  # 0 for the most popular one, 1 for the least
        if rng.random() < low + (high - low) * place**steep:
            bungle(skill, words, act, rng)
        else:
            carry_out(skill, words, act)
    if calls[-1].name != FINISH:
        calls.append(Call(FINISH))
    return tuple(Action(calls=(call,)) for call in calls)


def bungle(skill: Skill, words: Mapping[str, str], act: Callable[[Call], str], rng: random.Random) -> None:
    """Makes a mistake: takes the wrong branch, or uses names in place of look-ups, or takes the confusable tool."""
    if skill.when is not None:
        carry_out(dataclasses.replace(skill, then=skill.otherwise, otherwise=skill.then), words, act)
        return
    templates = skill.branches[0]
    looks = [template for template in templates if template.binds]
    if looks and rng.random() < 0.5:
        guessed = {look.binds: words[look.names[0]] for look in looks}
        follow([template for template in templates if not template.binds], {**words, **guessed}, act)
        return
    wrong = max(index for index, template in enumerate(templates) if template.tool != FINISH)
    confused = skill.template(skill.confused, templates[wrong].names, templates[wrong].binds)
    follow((*templates[:wrong], confused, *templates[wrong + 1 :]), words, act)

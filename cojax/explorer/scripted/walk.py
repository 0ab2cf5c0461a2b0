"""One exploratory run: choosing among the actions that would work now."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence

from cojax.environment import EnvironmentFailure, Episode, affordances
from cojax.explorer.guidance import signature
from cojax.types import Action, Message, Turn

# A planned call takes what the last observation told, if it can, this often.
_USES_OBSERVED = 0.9


class Walk:
    """The actor of one run; single-use, like the episode it walks through.

    It first follows `plan` (tool names), then chooses a tool by `weight` and an action of that tool. `chase` is the
    chance of acting on what the last observation told; half of it, on what the last action touched. Actions already
    taken, or whose signature is in `avoided`, come only when nothing else is left, and `ending` calls likewise.
    """

    def __init__(
        self,
        weight: Callable[[str], float],
        rng: random.Random,
        *,
        ending: str,
        chase: float,
        plan: Iterable[str] = (),
        avoided: Iterable[str] = (),
    ) -> None:
        self.weight, self.rng, self.ending, self.chase = weight, rng, ending, chase
        self.plan = list(plan)
        self.avoided = set(avoided)
        self.touched: frozenset[str] = frozenset()

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        possible = affordances(episode)
        if not possible:
            raise EnvironmentFailure(
                "the episode offers no affordances; the scripted explorer needs some to choose from"
            )
        options = [action for action in possible if tool_of(action) != self.ending] or list(possible)
        # Names are cheap to compare, whole signatures are not.
        names = {line.partition("(")[0] for line in self.avoided}
        options = [a for a in options if tool_of(a) not in names or signature(a) not in self.avoided] or options
        # The opening words are the task's, not the answer to an action.
        told = {word for message in messages for word in words_of(message.content)} if self.touched else set[str]()
        action = self._choose(options, told)
        self.avoided.add(signature(action))
        self.touched = values(action)
        return Turn(action)

    def _choose(self, options: Sequence[Action], told: Collection[str]) -> Action:
        while self.plan:
            tool = self.plan.pop(0)
            if planned := [action for action in options if tool_of(action) == tool]:
                fitting = mentioning(planned, told) if self.rng.random() < _USES_OBSERVED else []
                return self.rng.choice(fitting or planned)
        using = mentioning(options, told) if self.rng.random() < self.chase else []
        if not using and self.rng.random() < self.chase / 2:
            using = mentioning(options, self.touched)
        return self._weighted(using or options)

    def _weighted(self, options: Sequence[Action]) -> Action:
        """A tool by its weight, then any action of it: a tool with many arguments is not the likelier for it."""
        by_tool: dict[str, list[Action]] = {}
        for action in options:
            by_tool.setdefault(tool_of(action), []).append(action)
        tools = list(by_tool)
        weights = [self.weight(tool) for tool in tools]
        tool = self.rng.choices(tools, weights)[0] if any(weights) else self.rng.choice(tools)
        return self.rng.choice(by_tool[tool])


def tool_of(action: Action) -> str:
    """The tool of the first call; empty for an action without one."""
    return action.calls[0].name if action.calls else ""


def values(action: Action) -> frozenset[str]:
    """The values of the action's arguments, as text."""
    return frozenset(str(value) for call in action.calls for value in call.arguments.values())


def words_of(text: str) -> set[str]:
    """The words of an observation, also without the punctuation that JSON puts around them."""
    words = text.split()
    return {*words, *(word.strip("\"'{}[](),:") for word in words)} - {""}


def mentioning(actions: Sequence[Action], words: Collection[str]) -> list[Action]:
    """The actions with one of these words among the values of their arguments."""
    return [
        action
        for action in actions
        if any(str(value) in words for call in action.calls for value in call.arguments.values())
    ]

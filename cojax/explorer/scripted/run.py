"""The scripted actor of one exploratory run: it chooses among the actions that would work now."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence

from cojax.environment import EnvironmentFailure, Episode, affordances
from cojax.types import Action, Message, Turn, signature

# The probability that a planned call uses a value from the last observation, if it can.
_USES_OBSERVED = 0.9


class ExplorationRun:
    """The actor of one run; single-use, like its episode.

    It first follows `plan` (tool names), then chooses a tool by `weight` and an action of that tool. With probability
    `chase` the action has an argument from the last observation; otherwise, with half of that probability, one from
    the last action. Three kinds of actions are a last resort: those already taken, those whose signature is in
    `avoided`, and calls of `ending`. Raises EnvironmentFailure if the episode offers no action.
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
        # Names are compared first: signatures are expensive to build.
        names = {line.partition("(")[0] for line in self.avoided}
        options = [a for a in options if tool_of(a) not in names or signature(a) not in self.avoided] or options
        # Before the first action the messages are the task's text, not an observation.
        observed = {word for message in messages for word in words_of(message.content)} if self.touched else set[str]()
        action = self._choose(options, observed)
        self.avoided.add(signature(action))
        self.touched = argument_values(action)
        return Turn(action)

    def _choose(self, options: Sequence[Action], observed: Collection[str]) -> Action:
        while self.plan:
            tool = self.plan.pop(0)
            if planned := [action for action in options if tool_of(action) == tool]:
                fitting = mentioning(planned, observed) if self.rng.random() < _USES_OBSERVED else []
                return self.rng.choice(fitting or planned)
        using = mentioning(options, observed) if self.rng.random() < self.chase else []
        if not using and self.rng.random() < self.chase / 2:
            using = mentioning(options, self.touched)
        return self._draw(using or options)

    def _draw(self, options: Sequence[Action]) -> Action:
        """A tool by its weight, then any action of it: a tool with more possible arguments is not drawn more often."""
        by_tool: dict[str, list[Action]] = {}
        for action in options:
            by_tool.setdefault(tool_of(action), []).append(action)
        tools = list(by_tool)
        weights = [self.weight(tool) for tool in tools]
        tool = self.rng.choices(tools, weights)[0] if any(weights) else self.rng.choice(tools)
        return self.rng.choice(by_tool[tool])


def tool_of(action: Action) -> str:
    """The tool of the first call; "" for an action without calls."""
    return action.calls[0].name if action.calls else ""


def argument_values(action: Action) -> frozenset[str]:
    """The values of the action's arguments, as text."""
    return frozenset(str(value) for call in action.calls for value in call.arguments.values())


def words_of(text: str) -> set[str]:
    """The words of an observation, both unchanged and without the punctuation that JSON puts around them."""
    words = text.split()
    return {*words, *(word.strip("\"'{}[](),:") for word in words)} - {""}


def mentioning(actions: Sequence[Action], words: Collection[str]) -> list[Action]:
    """The actions that have one of these words as an argument."""
    return [
        action
        for action in actions
        if any(str(value) in words for call in action.calls for value in call.arguments.values())
    ]

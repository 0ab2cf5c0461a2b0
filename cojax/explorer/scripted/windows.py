"""Windows: sequences of explored actions that could be tasks of their own; and the endings that can follow them."""

import dataclasses
import random
import types
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, ask
from cojax.types import Action, Call, Message, Observation, Triplet


@dataclasses.dataclass(frozen=True)
class Ending:
    """The tool that ends an episode, and the parameter that carries the answer, if it has one.

    An empty `tool` means that an action without calls ends the user's turn, and after the last one the episode.
    """

    tool: str
    parameter: str | None = None

    @classmethod
    def of(cls, environment: Environment, tool: str) -> "Ending":
        """The ending by this tool, whose first parameter carries the answer. Raises ValueError for an unknown tool."""
        if not tool:
            return cls(tool)
        tools = tool_documentation(environment)
        if tool not in tools:
            raise ValueError(
                f"environment {environment.name!r} has no tool {tool!r} to end an episode; "
                f'it has {", ".join(tools)}. Name one of them by explorer.ending, or "" where an action without calls '
                "ends it."
            )
        return cls(tool, next(iter(tools[tool].get("parameters", {}).get("properties", {})), None))

    def after(self, step: Triplet) -> Iterator[Triplet]:
        """The possible last steps after this step: without an answer, or with its observation as the answer."""
        if not self.tool:
            yield Triplet(Action(), Observation(done=True), step.run)
            return
        answers = [{}] if self.parameter is None else [{}, {self.parameter: step.observation.text}]
        for arguments in answers:
            yield Triplet(
                Action(calls=(Call(self.tool, arguments),)), Observation((Message("tool", ""),), done=True), step.run
            )


def tool_documentation(environment: Environment) -> dict[str, Mapping[str, Any]]:
    """The documentation of the environment's tools, by name."""
    return {entry["function"]["name"]: entry["function"] for entry in environment.tools()}


def phrase_steps(environment: Environment, steps: Sequence[Triplet]) -> str | None:
    """The query by which the environment asks for these steps; None if it has no words for them.

    Every exception of the environment becomes EnvironmentFailure.
    """
    return ask(environment.phrase, steps)


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


def draft_lengths(base: int, stretch: Sequence[int], longest: int, rng: random.Random) -> Iterator[int]:
    """Yields without end: `base` plus a random entry of `stretch`, clipped to 1 … `longest`."""
    while True:
        yield min(longest, max(1, base + rng.choice(stretch)))


def split_turns(window: Sequence[Triplet], probability: float, rng: random.Random) -> tuple[Triplet, ...]:
    """The window, with the user's turn ended after each step with this probability, but never after the last one."""
    steps: list[Triplet] = []
    for step in window[:-1]:
        steps.append(step)
        if rng.random() < probability:
            steps.append(Triplet(Action(), Observation(), step.run))
    return (*steps, *window[-1:])


def windows(
    triplets: Sequence[Triplet],
    wanted: Iterator[int],
    focus: Collection[str],
    rng: random.Random,
    required: Mapping[str, int] = types.MappingProxyType({}),
) -> Iterator[tuple[Triplet, ...]]:
    """Yields every window of all runs once that calls each tool as often as `required` says, or more.

    Each has the next length of `wanted`, or the nearest length left. Among windows of one length, those with a tool in
    focus come first.
    """
    runs: dict[int, list[Triplet]] = {}
    for triplet in triplets:
        if triplet.observation.ok and not triplet.observation.done:
            runs.setdefault(triplet.run, []).append(triplet)
    needed = Counter(required)
    found = [
        window
        for steps in runs.values()
        for window in _windows_of_run(steps)
        if not needed or Counter(tool_of(step.action) for step in window) >= needed
    ]
    rng.shuffle(found)
    # Windows are popped from the end, so those with a tool in focus are sorted last.
    found.sort(key=lambda window: any(tool_of(step.action) in focus for step in window))
    by_length: dict[int, list[tuple[Triplet, ...]]] = {}
    for window in found:
        by_length.setdefault(len(window), []).append(window)
    while by_length:
        length = next(wanted)
        nearest = min(by_length, key=lambda other: (abs(other - length), other))
        yield by_length[nearest].pop()
        if not by_length[nearest]:
            del by_length[nearest]


def _windows_of_run(steps: Sequence[Triplet]) -> list[tuple[Triplet, ...]]:
    """Every sequence of successive steps, and every sequence of successive purposes with the steps that they depend on.

    A purpose is a step whose observation no later step uses.
    """
    sources = _sources(steps)
    used = {source for needed in sources for source in needed}
    purposes = [i for i in range(len(steps)) if i not in used]
    spans = {tuple(range(i, j + 1)) for i in range(len(steps)) for j in range(i, len(steps))}
    for i in range(len(purposes)):
        kept: set[int] = set()
        for purpose in purposes[i:]:
            kept |= _with_sources(purpose, sources)
            spans.add(tuple(sorted(kept)))
    return [tuple(steps[i] for i in span) for span in sorted(spans)]


def _sources(steps: Sequence[Triplet]) -> list[set[int]]:
    """For each step, the latest earlier steps whose observations hold the values of its arguments."""
    latest: dict[str, int] = {}  # word → the last step that showed it
    sources: list[set[int]] = []
    for i, step in enumerate(steps):
        sources.append({latest[value] for value in argument_values(step.action) if value in latest})
        latest |= dict.fromkeys(words_of(step.observation.text), i)
    return sources


def _with_sources(step: int, sources: Sequence[set[int]]) -> set[int]:
    """The step, its sources, and theirs in turn."""
    needed, pending = set[int](), [step]
    while pending:
        step = pending.pop()
        if step not in needed:
            needed.add(step)
            pending += sources[step]
    return needed

"""The check of setups without tasks: each gets a task of its own, from a walk over the actions that it offers."""

import contextlib
import dataclasses
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure, Episode, ask
from cojax.types import Action, Call, Observation, Task, canonical, content_hash, signature, to_json
from .solutions import GARBAGE, SplitReport, asks_for_something, loss, opened

# Actions of a walk, and actions that are tried for it: without copies of a world, some that are offered are refused.
_STEPS, _TRIED = 6, 24
# Walks that are begun, as one ends at an action that is refused and changes the state.
_WALKS = 4
UNNOTICED = "dropping this call goes unnoticed"


def examine_openings(environment: Environment, tasks: Sequence[Task], report: SplitReport) -> None:
    """Checks tasks without solutions, whose episodes end in no state that can be compared: each opens twice alike; on
    the first of them, garbage is answered."""
    for number, task in enumerate(tasks):
        report.tasks += 1
        try:
            if reason := _differing_start(environment, task):
                report.faults.append(f"task {task.id}: {reason}")
            for name, action in GARBAGE.items() if number == 0 else ():
                report.throw(environment, task, name, action)
        except EnvironmentFailure as failure:
            report.faults.append(f"task {task.id}: {failure}")


class SetupReport:
    """What was found on some setups: the plays of their walks, and which tools worked, and changed the state."""

    def __init__(self) -> None:
        self.setups = self.actions = 0
        self.plays = SplitReport()
        self.worked: set[str] = set()
        self.changed: set[str] = set()
        self.endings: set[str] = set()
        self.walked: set[str] = set()  # the tools of the episodes in which walks were begun
        self.taken: set[str] = set()  # the tools of which a call was made
        self.unclean: list[str] = []

    def examine(self, environment: Environment, setups: Sequence[Task]) -> None:
        """Checks these setups; the first of them gets the garbage."""
        for number, setup in enumerate(setups):
            self.check(environment, setup, garbage=number == 0)

    def check(self, environment: Environment, setup: Task, *, garbage: bool = False) -> None:
        """Checks one setup: it opens twice alike, a walk replays alike, and each of its calls counts.

        With `garbage`, no garbage changes the state, the walk is sound after each, and no episode shows what another
        was told.
        """
        self.setups += 1
        try:
            for reason in self._faults(environment, setup, garbage):
                self.plays.faults.append(f"setup {setup.id}: {reason}")
        except EnvironmentFailure as failure:
            self.plays.faults.append(f"setup {setup.id}: {failure}")

    def _faults(self, environment: Environment, setup: Task, garbage: bool) -> Iterator[str]:
        if reason := _differing_start(environment, setup):
            yield reason
            return
        task = self._walk(environment, setup)
        if task is None:
            yield "no action is offered that works"
            return
        # The walk is played twice, and without each of its calls. What goes unnoticed is listed, and is no fault.
        before = len(self.plays.let_through)
        self.plays.check(environment, task, every=True)
        self.plays.let_through[before:] = [f"{drop}: {UNNOTICED}" for drop in self.plays.let_through[before:]]
        # A task of the environment's own has a verdict of its own.
        if setup.query and (lost := loss(environment, dataclasses.replace(setup, solution=task.solution))):
            yield lost
        if not garbage:
            return
        if reason := _remembered(environment, task):
            yield reason
        # Where text ends an episode, any text solves the task of a walk that leads back to its start.
        asks = asks_for_something(environment, task)
        for name, action in GARBAGE.items():
            self.plays.throw(environment, task, name, action, asks=asks)
            if _changes(environment, setup, action):
                yield f"{name} changes the state"

    def line(self, environment: Environment, name: str, split: str, seconds: float) -> dict[str, Any]:
        """The record that is printed as one line."""
        if self.actions and not self.changed:
            self.plays.faults.append(
                f"none of {self.actions} calls changed the state: it lacks what the tools change, or they only look"
            )
        record = self.plays.line(name, split, seconds, every=True)
        found = {"setups": self.setups, "actions": self.actions, **record}
        found["unnoticed"] = [f"{tool}: {UNNOTICED}" for tool in sorted(self.worked - self.changed)]
        found["unclean"] = self.unclean
        untried = sorted(self.walked - self.worked - self.endings)
        return found | ({"untried": untried} if untried else {})

    def _walk(self, environment: Environment, setup: Task) -> Task | None:
        """The task of a walk over actions that worked, and then the last action offered, which ends the episode."""
        rng = random.Random(content_hash(["walk", to_json(setup.setup)]))
        for _ in range(_WALKS):
            if taken := self._walked(environment, setup, rng):
                return Task(setup.environment, "; ".join(map(signature, taken)), setup.setup, taken)
        return None

    def _walked(self, environment: Environment, setup: Task, rng: random.Random) -> tuple[Action, ...]:
        """The actions of one walk; () where none worked before it ended."""
        taken: list[Action] = []
        with opened(environment, setup) as episode:
            *offered, ending = ask(episode.affordances) or (Action(),)
            self.endings |= _tools(ending)
            self.walked |= {tool["function"]["name"] for tool in ask(episode.tools)}
            for _ in range(_TRIED):
                offered = [action for action in offered if _tools(action) != _tools(ending)]
                if not offered or len(taken) == _STEPS:
                    break
                # A tool of which no call was made yet comes first.
                action = rng.choice([one for one in offered if not _tools(one) <= self.taken] or offered)
                self.taken |= _tools(action)
                observation, clean = self._step(episode, action)
                if observation.ok and not observation.done:
                    taken.append(action)
                if observation.done or not clean:
                    break
                *offered, ending = ask(episode.affordances) or (Action(),)
        return (*taken, ending) if taken else ()

    def _step(self, episode: Episode, action: Action) -> tuple[Observation, bool]:
        """Takes one action of a walk; false where it is refused, and has changed the state all the same."""
        before = ask(_state, episode)
        observation = ask(episode.step, action)
        self.actions += 1
        changed = ask(_state, episode) != before
        if observation.ok:
            self.worked |= _tools(action)
            self.changed |= _tools(action) if changed else set()
        elif changed and not observation.done:
            self.unclean.append(f"{signature(action):.200} is refused and changes the state")
        return observation, observation.ok or not changed


def _tools(action: Action) -> set[str]:
    return {call.name for call in action.calls}


def _state(episode: Episode) -> str:
    """The state as canonical JSON. Raises TypeError or ValueError for a state that is none."""
    state = episode.state()
    if not isinstance(state, Mapping):
        raise TypeError(f"the state is of type {type(state).__name__}; expected an object")
    return canonical(to_json(state))


def _differing_start(environment: Environment, setup: Task) -> str:
    """How two fresh episodes of a setup differ; "" where they do not."""
    found = []
    for _ in range(2):
        with contextlib.closing(environment.start(setup)) as episode:
            opening = ask(episode.reset)
            found.append((opening, ask(episode.tools), ask(_state, episode), ask(episode.affordances)))
    names = ("opening", "tools", "state", "affordances")
    different = [name for name, one, other in zip(names, *found, strict=True) if one != other]
    return f"two episodes begin with different {' and '.join(different)}" if different else ""


def _changes(environment: Environment, setup: Task, action: Action) -> bool:
    """Whether the action changes the state, and does not end the episode."""
    with opened(environment, setup) as episode:
        before = ask(_state, episode)
        ended = ask(episode.step, action).done
        return not ended and ask(_state, episode) != before


def _remembered(environment: Environment, task: Task) -> str:
    """What an episode shows because of what another one was told; "" where that is nothing.

    A call of each of the task's tools is made in an episode of its own, also with a canary as argument, which no world
    can know. Another episode tells the canary to all the tools. Then the same calls must be answered as before.
    """
    calls = {call.name: call for action in task.solution[:-1] for call in action.calls}
    for number, call in enumerate(calls.values(), 11):
        word = f"canary{secrets.token_hex(4)}"
        asked = [call, *_with_canary(call, word, number)]
        told = [marked for one in calls.values() for marked in _with_canary(one, word, number)]
        before, _, after = (_answers(environment, task, some) for some in (asked, told, asked))
        for one, first, second in zip(asked, before, after, strict=False):
            if first != second:
                return (
                    f"{signature(Action(calls=(one,))):.200} is answered {second!r:.200} after another episode, and "
                    f"{first!r:.200} before it; expected episodes that see nothing of each other"
                )
    return ""


def _with_canary(call: Call, word: str, number: int) -> Iterator[Call]:
    """The call with the canary, a text or a number, in place of each argument in turn."""
    for name, value in call.arguments.items():
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            yield Call(call.name, {**call.arguments, name: word if isinstance(value, str) else number})


def _answers(environment: Environment, task: Task, calls: Sequence[Call]) -> list[str]:
    """What an episode answers to these calls, up to one that ends it; of what is refused, only that it is."""
    found: list[str] = []
    with opened(environment, task) as episode:
        for call in calls:
            seen = ask(episode.step, Action(calls=(call,)))
            found.append(seen.text if seen.ok else "with a refusal")
            if seen.done:
                break
    return found

"""One episode at the desk: calls in, one-word observations out, and a verdict by comparison of facts."""

import copy
import itertools
import random
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from cojax.types import Action, Call, Check, Evaluation, Message, Observation, Task, canonical
from ..tools.toolset import Refused
from . import office
from .office import FINISH, document_tools, find_effect, perform, read_arguments
from .skills import DESK, Suite

_T = TypeVar("_T")

# The most actions offered.
_MAX_OFFERS = 300
# The most new names offered for a slot.
_MAX_NEW_NAMES = 2
# The most recent values offered of a kind.
_MAX_RECENT_WORDS = 4


class DeskEpisode:
    """The office of one task. Raises ValueError for a setup that is not an office."""

    def __init__(self, task: Task, suite: Suite = DESK):
        self._task = task
        self._suite = suite
        self._office = office.copy_office(task.setup, suite.shelves)
        self._answer: str | None = None
        self._is_finished = False
        self._words: dict[str, list[str]] = {"text": [], "day": [], "address": [], "folder": []}

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", self._task.query),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return document_tools(self._suite.tools.values())

    def step(self, action: Action) -> Observation:
        """Makes the calls in order, up to the first that is refused; returns one message for each."""
        if not action.calls:
            return self._refuse((), (action.error or "no call")[:200])
        messages: tuple[Message, ...] = ()
        for call in action.calls:
            try:
                messages = (*messages, Message("tool", self._carry_out(call)))
            except Refused as refusal:
                return self._refuse(messages, str(refusal))
        return Observation(messages, done=self._is_finished)

    def state(self) -> Mapping[str, Any]:
        return {**copy.deepcopy(self._office), "answer": self._answer, "finished": self._is_finished}

    def affordances(self) -> tuple[Action, ...]:
        """The calls that would work now, with words that exist, were seen, or are new; the state seeds free choices."""
        if self._is_finished:
            return ()
        rng = random.Random(canonical(self._office))
        tools = self._suite.tools.values()
        words_by_slot = {slot: tuple(self._offer_words(slot, rng)) for tool in tools for slot in tool.slots.values()}
        candidates = [
            Call(tool.name, dict(zip(tool.slots, argument_words, strict=True)))
            for tool in tools
            for argument_words in itertools.product(*(words_by_slot[slot] for slot in tool.slots.values()))
        ]
        working_calls = [call for call in candidates if self._would_work(call)]
        recent_words = [word for seen_words in self._words.values() for word in seen_words[-_MAX_RECENT_WORDS:]]
        finish_calls = [*(Call(FINISH, {"answer": word}) for word in recent_words), Call(FINISH)]
        indices = sorted(_draw(list(range(len(working_calls))), _MAX_OFFERS - len(finish_calls), rng))
        return tuple(Action(calls=(call,)) for call in (*(working_calls[index] for index in indices), *finish_calls))

    def evaluate(self) -> Evaluation:
        """Compares the facts with those that the task's solution reaches from the same start.

        There is one check for each fact that the solution changes, one that no other fact changed, one for the answer
        if there is one, and one that the episode was finished. The reward is 1.0 if all pass, else 0.0. A task without
        a solution gets 0.0 and no checks. The partial reward is the number of expected changes made, divided by the
        number of expected changes and wrong changes. An answer counts as a change.
        """
        if not self._task.solution:
            return Evaluation(0.0)
        reference_episode = DeskEpisode(self._task, self._suite)
        for action in self._task.solution:
            reference_episode.step(action)
        start_facts, goal, current = (
            office.facts_of(state) for state in (self._task.setup, reference_episode._office, self._office)
        )
        changed_paths = [path for path in sorted(start_facts | goal) if start_facts.get(path) != goal.get(path)]
        other_paths = (start_facts | current).keys() - set(changed_paths)
        wrong_count = sum(start_facts.get(path) != current.get(path) for path in other_paths)
        is_answer_right = self._answer == reference_episode._answer
        checks = [Check(path, current.get(path) == goal.get(path)) for path in changed_paths]
        if reference_episode._answer is not None:
            checks.append(Check("answer", is_answer_right))
        else:
            wrong_count += not is_answer_right
        partial_reward = sum(check.passed for check in checks) / max(1, len(checks) + wrong_count)
        checks += [Check("nothing else changed", not wrong_count), Check("finished", self._is_finished)]
        return Evaluation(float(all(check.passed for check in checks)), tuple(checks), partial_reward)

    def close(self) -> None:
        pass

    def _carry_out(self, call: Call) -> str:
        if self._is_finished:
            raise Refused("already finished")
        if call.name == FINISH:
            if call.arguments != {}:
                (self._answer,) = read_arguments(call.arguments, ("answer",))
            self._is_finished = True
            return "ok"
        observation = perform(self._office, call, self._suite.tools)
        if word_kind := self._suite.tools[call.name].gives:
            # A value that is seen again moves to the end, so that the oldest values drop out first.
            self._words[word_kind] = [word for word in self._words[word_kind] if word != observation] + [observation]
        return observation

    def _refuse(self, messages: tuple[Message, ...], reason: str) -> Observation:
        return Observation((*messages, Message("tool", f"error: {reason}")), ok=False, done=self._is_finished)

    def _would_work(self, call: Call) -> bool:
        try:
            find_effect(self._office, call, self._suite.tools)
        except Refused:
            return False
        return True

    def _offer_words(self, slot: str, rng: random.Random) -> Iterator[str]:
        """Words for a slot: existing names, new names, or recent values and a few free choices."""
        vocabulary, shelf = self._suite.words_of(slot), self._suite.find_shelf(slot)
        if slot.startswith("new_"):
            taken_names = self._office[shelf] if shelf else {}
            yield from _draw([word for word in vocabulary if word not in taken_names], _MAX_NEW_NAMES, rng)
        elif shelf:
            yield from sorted(self._office[shelf])
        else:
            recent = self._words[slot][-_MAX_RECENT_WORDS:]
            yield from recent
            yield from _draw([word for word in vocabulary if word not in recent], self._suite.choices.get(slot, 0), rng)


def _draw(items: list[_T], count: int, rng: random.Random) -> list[_T]:
    return rng.sample(items, min(count, len(items)))

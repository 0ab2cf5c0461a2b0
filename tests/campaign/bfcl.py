"""Cases of BFCL, in workers: official solutions, damaged ones, and hostile actions."""

import functools
import random
from collections import Counter
from typing import Any

from campaign import texts
from campaign.cases import Canary, Case, draw
from cojax import worlds
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.rollout.chat import Chat
from cojax.types import Action, Call, Task
from environments.bfcl import SPLITS, TRIALS
from environments.worker import IsolatedEnvironment

# Seconds that a call may take.
_DEADLINE = 3.0
_OVER = Action()


class BfclCases:
    """Cases of the official tasks of all categories."""

    def __init__(self, canary: Canary) -> None:
        environment = worlds.load("bfcl", deadline=_DEADLINE)
        assert isinstance(environment, IsolatedEnvironment)
        self.environment, self.canary = environment, canary
        self.tasks = [task for split in SPLITS for task in environment.tasks(split, 200)]
        self.documents = environment.tools()
        self.needed = functools.cache(self._needed)

    def supervisors(self) -> tuple[int, ...]:
        return (self.environment.supervisor,)

    def close(self) -> None:
        self.environment.close()

    def case(self, id: str, seed: int) -> Case:
        rng = draw(seed, id)
        index = rng.randrange(len(self.tasks))
        makes = (self._honest, self._honest, self._honest, self._dropped, self._dropped, self._emptied, self._calls)
        make = rng.choice((*makes, self._texts, self._texts, self._endless if rng.random() < 0.1 else self._texts))
        return make(id, rng, self.tasks[index], index)

    def _honest(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """The solution as a policy writes it, after calls that do nothing."""
        actions, seconds = [], 0.0
        for action in task.solution:
            if not action.calls:
                actions.append(action)
                continue
            read, spent = texts.read(Chat.write(action.calls))
            actions.append(read)
            seconds += spent
        if rng.random() < 0.3:
            actions = [Action(calls=(texts.unknown_call(rng),)), *actions]
        return Case(id, "honest", task, tuple(actions), "full", seconds=seconds)

    def _dropped(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """The solution without a call whose result the official check looks for."""
        if not (needed := self.needed(index)):
            return self._emptied(id, rng, task, index)
        number, without = rng.choice(needed)
        action = task.solution[number]
        calls = (*action.calls[:without], *action.calls[without + 1 :])
        # An action left without calls would end the turn.
        rest = (Action(calls=calls),) if calls else ()
        actions = (*task.solution[:number], *rest, *task.solution[number + 1 :])
        return Case(id, f"without {action.calls[without].name}", task, actions, "less")

    def _needed(self, index: int) -> list[tuple[int, int]]:
        """(action, call) of the calls whose result no other call of the solution gives: without it a turn fails."""
        task = self.tasks[index]
        seen = play(self.environment, task, follow(task.solution), max_turns=len(task.solution), max_observation=10**9)
        results = [
            (number, call, message.content)
            for number, turn in enumerate(seen.turns)
            if turn.action.calls
            for call, message in enumerate(turn.observation.messages[: len(turn.action.calls)])
        ]
        count = Counter(text for _, _, text in results)
        return [(number, call) for number, call, text in results if count[text] == 1]

    def _emptied(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """The solution without the calls of one user turn."""
        turns: list[list[Action]] = [[]]
        for action in task.solution:
            turns[-1].append(action)
            if not action.calls:
                turns.append([])
        emptied = rng.choice([number for number, turn in enumerate(turns) if any(action.calls for action in turn)])
        turns[emptied] = [action for action in turns[emptied] if not action.calls]
        actions = tuple(action for turn in turns for action in turn)
        return Case(id, f"nothing in turn {emptied + 1}", task, actions, "less")

    def _calls(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """Calls of real functions with arguments of every kind; the dialogue never comes to its end."""
        actions = []
        for _ in range(rng.randrange(1, 8)):
            function = rng.choice(self.documents)["function"]
            given = {name: self._argument(id, rng) for name in function["parameters"].get("properties", {})}
            actions.append(Action(calls=(Call(function["name"], given),) * rng.choice((1, 1, 3, 70))))
        return Case(id, "calls", task, tuple(actions), "less")

    def _argument(self, id: str, rng: random.Random) -> Any:
        return rng.choice((texts.arguments(rng), self.canary.word(id), ".", 1))

    def _endless(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """A call that never ends, which costs the episode its reward and nothing else."""
        name = rng.choice(sorted(TRIALS))
        return Case(id, name, task, (Action(calls=(TRIALS[name],)),), "less")

    def _texts(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """Hostile texts, then every turn is ended."""
        actions, seconds = [], 0.0
        for _ in range(rng.randrange(1, 4)):
            action, spent = texts.read(texts.hostile(rng))
            actions.append(action)
            seconds = max(seconds, spent)
        return Case(id, "texts", task, (*actions, *[_OVER] * 8), "less", seconds=seconds)

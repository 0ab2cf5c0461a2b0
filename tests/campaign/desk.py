"""Cases at the desk, in workers: honest solutions, damaged ones, and hostile actions."""

import functools
import random

from campaign import texts
from campaign.cases import Canary, Case, draw
from cojax import worlds
from cojax.environment import Environment
from cojax.environment.replay import replay
from cojax.rollout.chat import Chat
from cojax.types import Action, Call, Task
from environments.desk import Desk
from environments.worker import IsolatedEnvironment

_TASKS = (("seed", 120), ("eval", 120), ("challenge", 30))
_FINISH = Action(calls=(Call("finish"),))


class DeskCases:
    """Cases of the desk's tasks, of which every change matters: a solution without one of them earns less."""

    def __init__(self, canary: Canary, environment: Environment | None = None) -> None:
        """With an `environment` other than the desk in workers, only a few tasks are played."""
        self.environment, self.canary = environment or worlds.load("desk", isolated=True), canary
        self.here = Desk()
        splits = _TASKS if environment is None else (("seed", 12),)
        self.tasks = [task for split, count in splits for task in self.here.tasks(split, count)]
        self.effective = functools.cache(lambda index: replay(self.here, *_of(self.tasks[index])).effective)

    def supervisors(self) -> tuple[int, ...]:
        return (self.environment.supervisor,) if isinstance(self.environment, IsolatedEnvironment) else ()

    def close(self) -> None:
        if isinstance(self.environment, IsolatedEnvironment):
            self.environment.close()

    def case(self, id: str, seed: int) -> Case:
        rng = draw(seed, id)
        index = rng.randrange(len(self.tasks))
        task = self.tasks[index]
        make = rng.choice((self._honest, self._honest, self._dropped, self._more, self._garbage, self._texts))
        return make(id, rng, task, index)

    def _honest(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """The solution as a policy writes it, after calls that do nothing."""
        actions, seconds = [], 0.0
        for action in task.solution:
            written = Chat.write(action.calls)
            if rng.random() < 0.5:
                # A call within a thought is not carried out.
                written = f"{Chat.write((Call('mail_delete', {'person': 'ana'}),))}\n</think>\n{written}"
            read, spent = texts.read(written)
            actions.append(read)
            seconds += spent
        if rng.random() < 0.5:
            actions = [*(Action(calls=(texts.unknown_call(rng),)) for _ in range(rng.randrange(1, 4))), *actions]
        return Case(id, "honest", task, tuple(actions), "full", seconds=seconds)

    def _dropped(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """The solution without an action that it needs, or without its end."""
        without = rng.choice((*self.effective(index), len(task.solution) - 1))
        actions = (*task.solution[:without], *task.solution[without + 1 :])
        return Case(id, f"without action {without + 1}", task, actions, "less")

    def _more(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """The solution, and a note or a folder that nobody asked for."""
        added = Call("folders_create", {"folder": self.canary.word(id)})
        if rng.random() < 0.5:
            added = Call("notes_add", {"note": self.canary.word(id), "text": self.canary.word(id)})
        where = rng.randrange(len(task.solution))
        actions = (*task.solution[:where], Action(calls=(added,)), *task.solution[where:])
        return Case(id, f"with {added.name} besides", task, actions, "less")

    def _garbage(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """Calls with arguments of every kind, then the end."""
        tools = self.here.tools()
        actions = []
        for _ in range(rng.randrange(1, 6)):
            function = rng.choice(tools)["function"]
            if function["name"] == "finish":
                continue
            given = {name: texts.arguments(rng) for name in function["parameters"]["properties"]}
            actions.append(Action(calls=(Call(function["name"], given),) * rng.choice((1, 1, 3, 60))))
        return Case(id, "garbage", task, (*actions, _FINISH), "less")

    def _texts(self, id: str, rng: random.Random, task: Task, index: int) -> Case:
        """Hostile texts, then the end."""
        actions, seconds = [], 0.0
        for _ in range(rng.randrange(1, 4)):
            action, spent = texts.read(texts.hostile(rng))
            actions.append(action)
            seconds = max(seconds, spent)
        return Case(id, "texts", task, (*actions, _FINISH), "less", seconds=seconds)


def _of(task: Task) -> tuple[Task, tuple[Action, ...]]:
    return task, task.solution

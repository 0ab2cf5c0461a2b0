"""Cases of AppWorld on the tiny data, in workers: honest solutions, damaged ones, and hostile code."""

import functools
import random
from collections.abc import Sequence

from campaign import code, texts
from campaign.cases import Canary, Case, draw
from cojax import worlds
from cojax.types import Action, Task
from environments.appworld import SPLITS
from environments.appworld.environment import AppWorld

# Seconds that a call may take; the package itself stops code after three quarters of that.
_DEADLINE = 10.0


class AppWorldCases:
    """Cases of the tasks of every split, with the solutions of the data."""

    def __init__(self, canary: Canary) -> None:
        environment = worlds.load("appworld", data="tiny", deadline=_DEADLINE, solutions=True)
        assert isinstance(environment, AppWorld)
        self.environment, self.canary = environment, canary
        self.tasks = [task for split in SPLITS for task in environment.tasks(split, 100) if task.solution]

    def supervisors(self) -> tuple[int, ...]:
        return self.environment.play.supervisor, self.environment.judge.supervisor

    def close(self) -> None:
        self.environment.close()

    def case(self, id: str, seed: int) -> Case:
        rng = draw(seed, id)
        task = rng.choice(self.tasks)
        make = rng.choice((self._honest, self._less, self._beside, self._scratch, *(self._attacked,) * 5, self._texts))
        return make(id, rng, task)

    def _honest(self, id: str, rng: random.Random, task: Task) -> Case:
        return Case(id, "honest", task, task.solution, "full")

    def _less(self, id: str, rng: random.Random, task: Task) -> Case:
        """The solution without its last block, which alone has an effect."""
        actions = (*task.solution[:-1], _block(code.COMPLETE))
        return Case(id, "without the block that does it", task, actions, "less")

    def _beside(self, id: str, rng: random.Random, task: Task) -> Case:
        """The solution after a note that the task does not ask for."""
        beside = _block(code.SIDE_EFFECT.replace("WORD", self.canary.word(id)))
        return Case(id, "with a note besides", task, (beside, *task.solution), "less")

    def _scratch(self, id: str, rng: random.Random, task: Task) -> Case:
        """The same, with an attempt to write the note to another database.

        Each step is a block of its own, so that a failure does not keep the next one from being carried out.
        """
        hidden = _blocks(code.scratch(rng, self.canary.word(id)))
        return Case(id, "a note in a scratch database", task, (*hidden, *task.solution), "less")

    def _attacked(self, id: str, rng: random.Random, task: Task) -> Case:
        """Attacks, then an end that leaves the task undone; or attempted routes, then an honest solution."""
        if rng.random() < 0.15:
            return Case(id, "routes, then honest", task, (_block(code.routes(rng)), *task.solution), "any")
        named = [code.attack(rng, self.canary.mark, self.canary.word(id)) for _ in range(rng.choice((1, 1, 2)))]
        names = ", ".join(name for name, _ in named)
        actions = (*_blocks([block for _, block in named]), _block(code.COMPLETE))
        return Case(id, names, task, actions, "less")

    def _texts(self, id: str, rng: random.Random, task: Task) -> Case:
        """Texts that are no code, as a looping policy writes them, then the end."""
        actions, seconds = [], 0.0
        for _ in range(rng.randrange(1, 4)):
            action, spent = texts.read(texts.hostile(rng))
            actions.append(action)
            seconds = max(seconds, spent)
        return Case(id, "texts", task, (*actions, _block(code.COMPLETE)), "less", seconds=seconds)


def _blocks(blocks: Sequence[str]) -> tuple[Action, ...]:
    return tuple(_block(block) for block in blocks)


@functools.lru_cache(maxsize=64)
def _block(block: str) -> Action:
    return Action(f"Next step:\n```python\n{block}\n```")

"""What models say of a draft: attempts at its query alone, and a judge, which can refuse it but never accept it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from pydantic import BaseModel

from cojax.environment import Actor, Environment
from cojax.environment.replay import Play
from cojax.explorer import Metered
from cojax.explorer.llm.chat_model import Budget, ChatFailure, ChatModel, seed_of, structured_reply
from cojax.explorer.llm.prompting import bullets, data, parts, prompt, shorten
from cojax.types import Task, TaskDraft, Trajectory, Verdict, signature
from cojax.validation.query import DraftRefused

# Makes actors, on behalf of an explorer, for a number of attempts at a task at the same time. Leaving the context frees
# what they hold. An actor with a method `close` is closed as soon as its own attempt is over.
Attempters = Callable[[Any, Task, int], AbstractContextManager[Sequence[Actor]]]


@dataclasses.dataclass(frozen=True)
class Attempts:
    """Plays a task `count` times at once, each time with an actor that sees only what the episode shows.

    Attempts lost to infrastructure failures do not count.
    """

    attempters: Attempters
    count: int = 2
    max_turns: int = 30

    def __call__(self, environment: Environment, task: Task, explorer: Metered, play: Play) -> Verdict:
        """Accepted where an attempt earns full reward, retained where one earns some. The difficulty is the share of
        valid attempts that failed, None where none was valid."""
        with self.attempters(explorer, task, self.count) as actors, ThreadPoolExecutor(self.count) as pool:
            played = list(pool.map(functools.partial(self._attempt, environment, task, play), actors))
        valid = [trajectory for trajectory in played if trajectory.valid]
        if not valid:
            return Verdict("discarded", (f"no attempt on the query alone came to an end: {played[0].error}",))
        solved = sum(trajectory.reward >= 1.0 for trajectory in valid)
        best = max(trajectory.reward for trajectory in valid)
        line = f"solved without hints: {solved} of {len(valid)} attempts on the query alone"
        if not solved:
            line = f"{line}, the best earned {best:.2f}"
        return Verdict(
            "accepted" if solved else "retained" if best > 0 else "discarded", (line,), 1 - solved / len(valid)
        )

    def _attempt(self, environment: Environment, task: Task, play: Play, act: Actor) -> Trajectory:
        try:
            return play(environment, task, act, max_turns=self.max_turns)
        finally:
            if close := getattr(act, "close", None):
                close()


class Judgement(BaseModel):
    """The reply of a model about a draft."""

    consistent: bool
    safe: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Judge:
    """Asks a model whether query and actions belong together.

    Without `veto` the opinion is only evidence. With `veto` an objection refuses the draft, and so does a failure.
    """

    chat_model: ChatModel
    veto: bool = True

    def __call__(self, task: Task, draft: TaskDraft, budget: Budget, review: bool) -> str:
        """The model's opinion as a line of evidence, paid from `budget`. Raises DraftRefused for one that refuses the
        draft; with `review`, an unsafe one is set aside for review by a person."""
        solution = bullets([shorten(signature(action) or "(back to the user)", 2_000) for action in draft.solution])
        messages = prompt("judge", data_rule=parts("data")["rule"], query=data(draft.query), solution=data(solution))
        place, safe = f"judge/{task.id}", True
        try:
            judgement = structured_reply(
                self.chat_model, messages, Judgement, budget=budget, seed=seed_of(place), place=place, temperature=0.0
            )
        except ChatFailure as failure:
            # Otherwise a draft could avoid a refusal by making the judge fail.
            line = f"judge: no opinion ({failure})"
        else:
            safe, reason = judgement.safe, shorten(" ".join(judgement.reason.split()), 200)
            if judgement.consistent and safe:
                return f"judge: no objection ({reason})"
            line = f"judge: {'query and actions do not belong together' if safe else 'unsafe'} ({reason})"
        if not self.veto:
            return line
        raise DraftRefused(line) if safe or not review else DraftRefused(f"set aside for review: {line}", line)

"""A second opinion by a model: it can refuse a draft or say something of it, never accept it."""

from __future__ import annotations

import dataclasses

from pydantic import BaseModel

from cojax.explorer.guidance import signature
from cojax.explorer.llm.chat_model import Budget, ChatFailure, ChatModel, seed_of, structured
from cojax.explorer.llm.fitting import shortened
from cojax.explorer.llm.prompting import bullets, data, parts, prompt
from cojax.types import Task, TaskDraft


class Judgement(BaseModel):
    """What a model says of a draft."""

    consistent: bool
    safe: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Opinion:
    """One line, whether the draft is refused for it, and whether because it is unsafe."""

    line: str
    veto: bool = False
    unsafe: bool = False


@dataclasses.dataclass(frozen=True)
class Judge:
    """Asks a model whether query and actions belong together. Without `veto` it only notes what the model says, or
    that it failed; with it, a failure refuses the draft as well."""

    chat_model: ChatModel
    veto: bool = True

    def __call__(self, task: Task, draft: TaskDraft, budget: Budget) -> Opinion:
        """What the model says; `budget` pays."""
        solution = bullets([shortened(signature(action) or "(back to the user)", 2_000) for action in draft.solution])
        messages = prompt("judge", data_rule=parts("data")["rule"], query=data(draft.query), solution=data(solution))
        place = f"judge/{task.id}"
        try:
            said = structured(
                self.chat_model, messages, Judgement, budget=budget, seed=seed_of(place), place=place, temperature=0.0
            )
        except ChatFailure as failure:
            # A judge that may refuse is not got round by making it fail.
            return Opinion(f"judge: no opinion ({failure})", veto=self.veto)
        reason = shortened(" ".join(said.reason.split()), 200)
        if said.consistent and said.safe:
            return Opinion(f"judge: no objection ({reason})")
        what = "unsafe" if not said.safe else "query and actions do not belong together"
        return Opinion(f"judge: {what} ({reason})", veto=self.veto, unsafe=self.veto and not said.safe)

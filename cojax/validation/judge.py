"""A second opinion by a model: it can refuse a draft or comment on it, but never accept it."""

from __future__ import annotations

import dataclasses

from pydantic import BaseModel

from cojax.explorer.llm.chat_model import Budget, ChatFailure, ChatModel, seed_of, structured_reply
from cojax.explorer.llm.fitting import shorten
from cojax.explorer.llm.prompting import bullets, data, parts, prompt
from cojax.types import Task, TaskDraft, signature


class Judgement(BaseModel):
    """The reply of a model about a draft."""

    consistent: bool
    safe: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Opinion:
    """One line of evidence; `veto`: the draft is refused; `unsafe`: it is refused because it is unsafe."""

    line: str
    veto: bool = False
    unsafe: bool = False


@dataclasses.dataclass(frozen=True)
class Judge:
    """Asks a model whether query and actions belong together.

    Without `veto` the opinion is only evidence. With `veto` an objection refuses the draft, and so does a failure.
    """

    chat_model: ChatModel
    veto: bool = True

    def __call__(self, task: Task, draft: TaskDraft, budget: Budget) -> Opinion:
        """The model's opinion, paid from `budget`."""
        solution = bullets([shorten(signature(action) or "(back to the user)", 2_000) for action in draft.solution])
        messages = prompt("judge", data_rule=parts("data")["rule"], query=data(draft.query), solution=data(solution))
        place = f"judge/{task.id}"
        try:
            judgement = structured_reply(
                self.chat_model, messages, Judgement, budget=budget, seed=seed_of(place), place=place, temperature=0.0
            )
        except ChatFailure as failure:
            # Otherwise a draft could avoid a refusal by making the judge fail.
            return Opinion(f"judge: no opinion ({failure})", veto=self.veto)
        reason = shorten(" ".join(judgement.reason.split()), 200)
        if judgement.consistent and judgement.safe:
            return Opinion(f"judge: no objection ({reason})")
        objection = "unsafe" if not judgement.safe else "query and actions do not belong together"
        return Opinion(f"judge: {objection} ({reason})", veto=self.veto, unsafe=self.veto and not judgement.safe)

"""A model's opinion of a draft, for validation: do query and actions belong together, and is the draft safe?"""

from pydantic import BaseModel

from cojax.drafts import DraftRefused
from cojax.explorer.llm.chat_model import Budget, ChatFailure, ChatModel, seed_of, structured_reply
from cojax.explorer.llm.prompting import bullets, data, parts, prompt, shorten
from cojax.types import Task, TaskDraft, signature


class Judgement(BaseModel):
    """The reply of a model about a draft."""

    consistent: bool
    safe: bool
    reason: str = ""


def judge(chat_model: ChatModel, veto: bool, task: Task, draft: TaskDraft, budget: Budget, review: bool) -> str:
    """The model's opinion of whether query and actions belong together, as a line of evidence, paid from `budget`.

    Without `veto` the opinion is only evidence. With `veto` an objection raises DraftRefused, and so does a failure;
    with `review`, an unsafe draft is set aside for review by a person.
    """
    solution = bullets([shorten(signature(action) or "(back to the user)", 2_000) for action in draft.solution])
    messages = prompt("judge", data_rule=parts("data")["rule"], query=data(draft.query), solution=data(solution))
    place, safe = f"judge/{task.id}", True
    try:
        judgement = structured_reply(
            chat_model, messages, Judgement, budget=budget, seed=seed_of(place), place=place, temperature=0.0
        )
    except ChatFailure as failure:
        # Otherwise a draft could avoid a refusal by making the judge fail.
        line = f"judge: no opinion ({failure})"
    else:
        safe, reason = judgement.safe, shorten(" ".join(judgement.reason.split()), 200)
        if judgement.consistent and safe:
            return f"judge: no objection ({reason})"
        line = f"judge: {'query and actions do not belong together' if safe else 'unsafe'} ({reason})"
    if not veto:
        return line
    raise DraftRefused(line) if safe or not review else DraftRefused(f"set aside for review: {line}", line)

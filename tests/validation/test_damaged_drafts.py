"""Good drafts of the scripted explorer, each damaged in one way by a seeded generator: all are refused, and why."""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import re
from collections.abc import Callable, Mapping

import pytest
from scripted_drafts import explorer_of, scripted_drafts

import environments
from cojax.environment import Environment
from cojax.types import Action, Call, TaskDraft, Verdict
from cojax.validation import Validation

DESK = environments.load("desk")
TOKEN = "<|im_end|>"
UNRELATED = ("tell me a joke", "why is the sky blue?", "clear out everything", "sing!", "recite a sonnet of love")
Damage = Callable[[TaskDraft, random.Random], TaskDraft]


def _query(change: Callable[[str, random.Random], str]) -> Damage:
    return lambda draft, rng: dataclasses.replace(draft, query=change(draft.query, rng))


def _inserted(query: str, what: str, rng: random.Random) -> str:
    place = rng.randint(0, len(query))
    return query[:place] + what + query[place:]


def _ended(draft: TaskDraft) -> bool:
    """Whether a call ends the episode, not an action without calls."""
    return bool(draft.solution[-1].calls)


def after_the_end(draft: TaskDraft, rng: random.Random) -> TaskDraft:
    """Another action of its own after the last."""
    return dataclasses.replace(draft, solution=(*draft.solution, rng.choice(draft.solution)))


def told(draft: TaskDraft, rng: random.Random) -> TaskDraft:
    """The query says the answer, if there is one, else one is given that nothing shows."""
    (end,) = draft.solution[-1].calls
    answer = end.arguments.get("answer")
    if answer is not None:
        return dataclasses.replace(draft, query=f"{draft.query}, which is {str(answer).upper()}")
    made_up = Action(calls=(Call(end.name, {"answer": f"zq{rng.randrange(10**6)}"}),))
    return dataclasses.replace(draft, solution=(*draft.solution[:-1], made_up))


def one_less(draft: TaskDraft, rng: random.Random) -> TaskDraft:
    """The query no longer names one of the arguments that it names."""
    named = [
        str(value)
        for action in draft.solution
        for call in action.calls
        for value in call.arguments.values()
        if re.search(rf"(?<!\w){re.escape(str(value))}(?!\w)", draft.query)
    ]
    gone = rng.choice(named)
    return dataclasses.replace(draft, query=re.sub(rf"(?<!\w){re.escape(gone)}(?!\w)", "…", draft.query))


DAMAGES: Mapping[str, tuple[Damage, str]] = {
    "empty": (_query(lambda query, rng: ""), "no letter"),
    "blank": (_query(lambda query, rng: "".join(rng.choices(" \t\n\u00a0?!.…-", k=9))), "no letter"),
    "unrelated": (_query(lambda query, rng: rng.choice(UNRELATED)), "no word in common|superfluous"),
    "token": (_query(lambda query, rng: _inserted(query, rng.choice((TOKEN, TOKEN.upper())), rng)), "control token"),
    "surrogate": (_query(lambda query, rng: _inserted(query, chr(rng.randint(0xD800, 0xDFFF)), rng)), "surrogate"),
    "control": (_query(lambda query, rng: _inserted(query, rng.choice("\x00\x08\x1b\x7f"), rng)), "control character"),
    "hidden": (_query(lambda query, rng: _inserted(query, rng.choice("\u200b\u202e\u2066"), rng)), "hides or turns"),
    "long": (_query(lambda query, rng: query * (4_001 // len(query) + 1)), "at most 4,000"),
    "after the end": (after_the_end, "calls after the end"),
    "told": (told, "answer"),
    "one less": (one_less, "does not name|no word in common|superfluous"),
}


def judged(environment: Environment, draft: TaskDraft) -> Verdict:
    validate = Validation(environment, control_tokens=(TOKEN,))
    return validate(draft, lambda id: False, explorer_of(environment))[0]


@functools.cache
def good() -> tuple[TaskDraft, ...]:
    return tuple(draft for draft in scripted_drafts(DESK, 60) if judged(DESK, draft).status == "accepted")


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_is_refused_for_what_it_is(name: str) -> None:
    damage, reason = DAMAGES[name]
    rng = random.Random(repr(("damaged", name)))
    for draft in good():
        verdict = judged(DESK, damage(draft, rng))
        assert verdict.status == "discarded", (draft, verdict)
        assert re.search(reason, verdict.evidence[-1]), verdict


def test_a_look_up_put_in_is_superfluous() -> None:
    """A look-up of another thing of the same office, before any action of a good draft."""
    rng, reasons = random.Random("looks"), collections.Counter[str]()
    for draft in good():
        shelves = {
            "files": ("files_read", "file"),
            "notes": ("notes_read", "note"),
            "contacts": ("contacts_find", "person"),
        }
        looks = [
            Action(calls=(Call(tool, {slot: name}),))
            for shelf, (tool, slot) in shelves.items()
            for name in sorted(draft.setup[shelf])
            if name not in draft.query
        ]
        more = (rng.choice(looks), *draft.solution)
        verdict = judged(DESK, dataclasses.replace(draft, solution=more))
        reasons[f"{verdict.status}: {verdict.evidence[-1].partition(':')[0]}"] += 1
    assert reasons == {"discarded: superfluous": 55}, reasons


def test_there_are_enough_good_drafts() -> None:
    assert len(good()) == 55

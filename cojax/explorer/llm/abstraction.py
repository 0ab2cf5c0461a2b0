"""Abstraction by a model: numbered actions → drafts made of them, each checked against what really happened."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from cojax.environment import Environment
from cojax.explorer.answers import unfounded
from cojax.explorer.guidance import signature
from cojax.explorer.llm.chat_model import seed_of, structured
from cojax.explorer.llm.fitting import fitted, paired, shortened
from cojax.explorer.llm.prompting import bullets, data, fill, parts, prompt
from cojax.explorer.scripted.windows import Ending
from cojax.types import Action, Call, ExplorationContext, Task, TaskDraft, Triplet, normalise

if TYPE_CHECKING:
    from cojax.explorer.llm.explorer import LLMExplorer

# Characters of the headings of an action and its result.
_HEADINGS = 24
_FIELDS = {
    "answer": '"answer": "", ',
    "later": '"later": [{"query": "a further request", "steps": [3]}], ',
}


class Later(BaseModel):
    """A further request of the same conversation."""

    query: str
    steps: list[int]


class Draft(BaseModel):
    """A task as a model proposes it; `steps` number recorded actions."""

    description: str = ""
    query: str
    steps: list[int]
    answer: str | None = None
    criterion: str = ""
    later: list[Later] = Field(default_factory=list)


class Drafts(BaseModel):
    drafts: list[Draft]


def abstracted(
    explorer: LLMExplorer,
    triplets: Sequence[Triplet],
    environment: Environment,
    task: Task,
    context: ExplorationContext | None,
    seed: tuple,
    limit: int,
) -> Iterator[TaskDraft]:
    """At most `limit` drafts with different queries. Raises ChatFailure where no reply can be used."""
    actions = numbered(triplets)
    if not any(step.observation.ok for step in actions.values()):
        return
    ending = Ending.of(environment, explorer.ending)
    words = parts("abstract")
    conversation = not ending.tool and bool(explorer.separator)
    over = words["ending_turn"] if conversation else words["ending_tool"]
    runs = sorted({step.run for step in actions.values()})
    quarter = explorer.window // 4
    offered = shortened(_offered(environment), quarter)
    purpose, taken = _purpose(task, context, quarter)
    messages = prompt(
        "abstract",
        shortest=str(explorer.shortest),
        counted=words["counted" if ending.tool else "not_counted"],
        ending=f"{over} {words['answered']}" if ending.parameter else over,
        data_rule=parts("data")["rule"],
        fields=(_FIELDS["answer"] if ending.parameter else "") + (_FIELDS["later"] if conversation else ""),
        purpose=purpose,
        opening=data(offered),
        runs=str(len(runs)),
        record=_record(actions, explorer.window - len(offered) - taken),
        limit=str(limit),
    )
    place = f"{explorer.place}/abstract"
    told = structured(
        explorer.chat_model,
        messages,
        Drafts,
        budget=explorer.remaining_budget(),
        seed=seed_of("abstract", *seed),
        place=place,
    )
    queries: set[str] = set()
    for draft in told.drafts:
        if len(queries) == limit:
            return
        made = task_draft(draft, actions, task, ending, explorer.separator, explorer.shortest)
        if normalise(made.query) not in queries:
            queries.add(normalise(made.query))
            yield made


def numbered(triplets: Sequence[Triplet]) -> dict[int, Triplet]:
    """All actions by the numbers they are referred to by; those that hand back to the user have none."""
    acted = [step for step in triplets if step.action.calls or step.action.text.strip()]
    return dict(enumerate(acted, start=1))


def task_draft(
    draft: Draft, actions: Mapping[int, Triplet], task: Task, ending: Ending, separator: str, shortest: int
) -> TaskDraft:
    """The draft with its actions looked up, and what speaks against it. Nothing of an action is the model's word."""
    turns = _turns(draft, len(actions) + 1)
    chosen = [step for _, steps in turns for step in steps]
    found = [actions[step] for step in chosen if step in actions]
    against = _objections(chosen, actions) + _idle([steps for _, steps in turns], actions)
    solution: list[Action] = []
    over = bool(found) and found[-1].observation.done
    for place, (_, steps) in enumerate(turns, start=1):
        solution += [actions[step].action for step in steps if step in actions]
        if not ending.tool and not (over and place == len(turns)):
            solution.append(Action())
    answer = (draft.answer or "").strip() if ending.parameter and not over else ""
    if ending.tool and not over:
        given = {ending.parameter: answer} if ending.parameter and answer else {}
        solution.append(Action(calls=(Call(ending.tool, given),)))
    against += unfounded(found, ending.tool, ending.parameter, answer)
    if len(turns) > 1 and not separator:
        against.append("it has several user turns, which this environment has not")
    if separator and any(normalise(separator) in normalise(query) for query, _ in turns):
        against.append("a user turn holds what stands between user turns")
    if not all(query.strip() for query, _ in turns):
        against.append("a user turn has no words")
    if spelled := _spelled_out(draft, found):
        against.append(f"the query spells out a call: {spelled}")
    # What hands back to the user does nothing.
    acts = sum(bool(action.calls or action.text.strip()) for action in solution)
    if acts < shortest:
        against.append(f"it has {acts} actions; at least {shortest} are wanted")
    return TaskDraft(
        environment=task.environment,
        setup=task.setup,
        description=shortened(draft.description, 600),
        query=separator.join(" ".join(query.split()) if separator else query.strip() for query, _ in turns),
        solution=tuple(solution),
        criterion=shortened(draft.criterion, 600),
        runs=tuple(sorted({step.run for step in found})),
        objections=tuple(against),
    )


def _turns(draft: Draft, most: int) -> list[tuple[str, list[int]]]:
    """The user's turns with the numbers of their actions, at most so many numbers in all."""
    turns: list[tuple[str, list[int]]] = []
    for query, steps in ((draft.query, draft.steps), *((later.query, later.steps) for later in draft.later)):
        turns.append((query, steps[:most]))
        most -= len(turns[-1][1])
    return turns


def _objections(chosen: Sequence[int], actions: Mapping[int, Triplet]) -> list[str]:
    """Where the numbers are no actions that worked, in order, in one run."""
    against = [f"action {step} is not in the record" for step in chosen if step not in actions]
    found = [(step, actions[step]) for step in chosen if step in actions]
    against += [
        f"action {step} did not succeed when it was explored" for step, done in found if not done.observation.ok
    ]
    if not found:
        against.append("it names no recorded action")
    if len({done.run for _, done in found}) > 1:
        against.append("its actions are of several runs")
    if list(chosen) != sorted(set(chosen)):
        against.append("its actions are not in rising order")
    if any(done.observation.done for _, done in found[:-1]):
        against.append("it goes on after the action that ended the episode")
    return against[:5]


def _idle(turns: Sequence[Sequence[int]], actions: Mapping[int, Triplet]) -> list[str]:
    """The user's turns, of several, in which nothing is done."""
    worked = [any(step in actions and actions[step].observation.ok for step in steps) for steps in turns]
    if all(worked) or len(turns) == 1:
        return []
    return [f"user turn {worked.index(False) + 1} of {len(turns)} has no action that worked"]


def _spelled_out(draft: Draft, found: Sequence[Triplet]) -> str:
    """A call of the solution that the query words as code; empty where there is none."""
    said = " ".join([draft.query, *(later.query for later in draft.later)])
    names = {call.name for step in found for call in step.action.calls}
    return next((f"{name}(" for name in sorted(names) if re.search(rf"(?<!\w){re.escape(name)}\s*\(", said)), "")


def _purpose(task: Task, context: ExplorationContext | None, room: int) -> tuple[str, int]:
    """What the tasks are for, and how many of its characters are untrusted: at most `room`."""
    words = parts("abstract")
    if context is None:
        return words["unguided"], 0
    # The task comes last, as what is last gives way last.
    texts = [bullets(context.objectives), ", ".join(context.focus_patterns) or "all of it", task.query]
    objectives, focus, query = (text or "" for text in fitted(texts, room))
    told = fill(words["guided"], task=data(query), focus=data(focus), objectives=data(objectives))
    return told, len(objectives) + len(focus) + len(query)


def _offered(environment: Environment) -> str:
    """One line a tool."""
    functions = (tool["function"] for tool in environment.tools())
    return "\n".join(f"{function['name']}: {function.get('description', '')}" for function in functions)


def _record(actions: Mapping[int, Triplet], room: int) -> str:
    """The actions that worked, by run, in full as far as there is room; failed ones, and the first where there is too
    little room, leave a gap in the numbers."""
    worked = {number: step for number, step in actions.items() if step.observation.ok}
    texts = [(signature(step.action), step.observation.text) for step in worked.values()]
    shown = paired(texts, room, _HEADINGS)
    numbers = list(worked)[len(texts) - len(shown) :]
    lines: dict[int, list[str]] = {}
    for number, (action, result) in zip(numbers, shown, strict=True):
        lines.setdefault(worked[number].run, []).append(f"[{number}] {action}\n    → {result}")
    return "\n\n".join(f"Run {run}:\n{data(chr(10).join(told))}" for run, told in sorted(lines.items()))

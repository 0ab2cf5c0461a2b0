"""Abstraction by a model: the prompt with numbered actions, and the drafts in the reply, each with its objections."""

import re
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, Field

from cojax.environment import Environment
from cojax.explorer import Exploration, tool_documentation
from cojax.explorer.answers import answer_objections
from cojax.explorer.llm.prompting import bullets, data, fill, fit_pairs, fit_texts, prompt, sections, shorten
from cojax.explorer.scripted.explorer import Ending
from cojax.types import Action, Call, Message, Task, TaskDraft, Triplet, normalise, signature

# Characters of the headings of an action and its result.
_HEADINGS = 24
_FIELDS = {"answer": '"answer": "", ', "later": '"later": [{"query": "a further request", "steps": [3]}], '}


# The model is sent the schema of these records: their names and docstrings are part of every request's journal key.
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


def number_actions(triplets: Sequence[Triplet]) -> dict[int, Triplet]:
    """All actions, by their numbers in the prompt and the reply.

    An action without calls and text, which only ends the user's turn, has no number.
    """
    steps = [step for step in triplets if step.action.calls or step.action.text.strip()]
    return dict(enumerate(steps, start=1))


def abstraction_prompt(
    exploration: Exploration,
    actions: Mapping[int, Triplet],
    environment: Environment,
    ending: Ending,
    separator: str,
    shortest: int,
    window: int,
    limit: int,
) -> Sequence[Message]:
    """The messages that ask for at most `limit` `Drafts`. At most `window` characters of them are untrusted.

    `separator` is the text between user turns, "" for one turn, and `shortest` the fewest actions of a draft.
    """
    words = sections("abstract")
    conversation = not ending.tool and bool(separator)
    ending_rule = words["ending_turn"] if conversation else words["ending_tool"]
    quarter = window // 4
    lines = (f"{name}: {tool.get('description', '')}" for name, tool in tool_documentation(environment).items())
    tools = shorten("\n".join(lines), quarter)
    purpose, untrusted_length = _purpose(exploration, quarter)
    return prompt(
        "abstract",
        shortest=str(shortest),
        counted=words["counted" if ending.tool else "not_counted"],
        ending=f"{ending_rule} {words['answered']}" if ending.parameter else ending_rule,
        data_rule=sections("data")["rule"],
        fields=(_FIELDS["answer"] if ending.parameter else "") + (_FIELDS["later"] if conversation else ""),
        purpose=purpose,
        opening=data(tools),
        runs=str(len({step.run for step in actions.values()})),
        record=_record(actions, window - len(tools) - untrusted_length),
        limit=str(limit),
    )


def task_drafts(
    reply: Drafts, actions: Mapping[int, Triplet], task: Task, ending: Ending, separator: str, shortest: int, limit: int
) -> Iterator[TaskDraft]:
    """At most `limit` drafts of a reply, with different queries."""
    queries: set[str] = set()
    for draft in reply.drafts:
        if len(queries) == limit:
            return
        candidate = task_draft(draft, actions, task, ending, separator, shortest)
        if normalise(candidate.query) not in queries:
            queries.add(normalise(candidate.query))
            yield candidate


def task_draft(
    draft: Draft, actions: Mapping[int, Triplet], task: Task, ending: Ending, separator: str, shortest: int
) -> TaskDraft:
    """The draft with its actions and objections. Actions are copied from the record, never from the model's text."""
    turns = _turns(draft, len(actions) + 1)
    step_numbers = [number for _, numbers in turns for number in numbers]
    steps = [actions[number] for number in step_numbers if number in actions]
    objections = _step_objections(step_numbers, actions) + _empty_turns([numbers for _, numbers in turns], actions)
    solution: list[Action] = []
    is_done = bool(steps) and steps[-1].observation.done
    for turn, (_, numbers) in enumerate(turns, start=1):
        solution += [actions[number].action for number in numbers if number in actions]
        if not ending.tool and not (is_done and turn == len(turns)):
            solution.append(Action())
    answer = (draft.answer or "").strip() if ending.parameter and not is_done else ""
    if ending.tool and not is_done:
        arguments = {ending.parameter: answer} if ending.parameter and answer else {}
        solution.append(Action(calls=(Call(ending.tool, arguments),)))
    objections += answer_objections(steps, ending.tool, ending.parameter, answer)
    objections += _query_objections([query for query, _ in turns], separator, steps)
    # An action that only ends the user's turn does not count.
    count = sum(bool(action.calls or action.text.strip()) for action in solution)
    if count < shortest:
        objections.append(f"it has {count} actions; at least {shortest} are required")
    return TaskDraft(
        environment=task.environment,
        setup=task.setup,
        description=shorten(draft.description, 600),
        query=separator.join(" ".join(query.split()) if separator else query.strip() for query, _ in turns),
        solution=tuple(solution),
        criterion=shorten(draft.criterion, 600),
        runs=tuple(sorted({step.run for step in steps})),
        objections=tuple(objections),
    )


def _turns(draft: Draft, limit: int) -> list[tuple[str, list[int]]]:
    """The user's turns, each with the numbers of its actions; at most `limit` numbers in total."""
    turns: list[tuple[str, list[int]]] = []
    for query, numbers in ((draft.query, draft.steps), *((later.query, later.steps) for later in draft.later)):
        turns.append((query, numbers[:limit]))
        limit -= len(turns[-1][1])
    return turns


def _step_objections(numbers: Sequence[int], actions: Mapping[int, Triplet]) -> list[str]:
    """At most 5 objections, unless the numbers name actions of one run that worked, in order."""
    objections = [f"action {number} is not in the record" for number in numbers if number not in actions]
    steps = [(number, actions[number]) for number in numbers if number in actions]
    objections += [
        f"action {number} did not succeed when it was explored" for number, step in steps if not step.observation.ok
    ]
    if not steps:
        objections.append("it names no recorded action")
    if len({step.run for _, step in steps}) > 1:
        objections.append("its actions come from several runs")
    if list(numbers) != sorted(set(numbers)):
        objections.append("its actions are not in ascending order")
    if any(step.observation.done for _, step in steps[:-1]):
        objections.append("it continues after the action that ended the episode")
    return objections[:5]


def _empty_turns(turns: Sequence[Sequence[int]], actions: Mapping[int, Triplet]) -> list[str]:
    """An objection if one of several user turns has no action that worked."""
    successes = [any(step in actions and actions[step].observation.ok for step in steps) for steps in turns]
    if all(successes) or len(turns) == 1:
        return []
    return [f"user turn {successes.index(False) + 1} of {len(turns)} has no action that worked"]


def _query_objections(queries: Sequence[str], separator: str, steps: Sequence[Triplet]) -> list[str]:
    """Objections to the words of the user's turns."""
    objections = []
    if len(queries) > 1 and not separator:
        objections.append("it has several user turns; this environment allows one")
    if separator and any(normalise(separator) in normalise(query) for query in queries):
        objections.append("a user turn contains the separator of user turns")
    if not all(query.strip() for query in queries):
        objections.append("a user turn has no words")
    text, names = " ".join(queries), sorted({call.name for step in steps for call in step.action.calls})
    calls = (f"{name}(" for name in names if re.search(rf"(?<!\w){re.escape(name)}\s*\(", text))
    if call := next(calls, ""):
        objections.append(f"the query spells out a call: {call}")
    return objections


def _purpose(exploration: Exploration, room: int) -> tuple[str, int]:
    """The prompt's text on the purpose of the tasks, and how many of its characters are untrusted: at most `room`."""
    words, context = sections("abstract"), exploration.context
    if context is None:
        return words["unguided"], 0
    # If there is too little room, texts are left out in this order.
    texts = [bullets(context.objectives), ", ".join(context.focus_patterns) or "all of it", exploration.task.query]
    objectives, focus, query = (text or "" for text in fit_texts(texts, room))
    purpose = fill(words["guided"], task=data(query), focus=data(focus), objectives=data(objectives))
    return purpose, len(objectives) + len(focus) + len(query)


def _record(actions: Mapping[int, Triplet], room: int) -> str:
    """The actions that worked, by run, in at most `room` characters.

    If there is too little room, the oldest are left out. Numbers of failed and left-out actions are missing.
    """
    successful_steps = {number: step for number, step in actions.items() if step.observation.ok}
    pairs = [(signature(step.action), step.observation.text) for step in successful_steps.values()]
    fitted_pairs = fit_pairs(pairs, room, _HEADINGS)
    numbers = list(successful_steps)[len(pairs) - len(fitted_pairs) :]
    lines: dict[int, list[str]] = {}
    for number, (action, result) in zip(numbers, fitted_pairs, strict=True):
        lines.setdefault(successful_steps[number].run, []).append(f"[{number}] {action}\n    → {result}")
    return "\n\n".join(f"Run {run}:\n{data(chr(10).join(run_lines))}" for run, run_lines in sorted(lines.items()))

"""Abstraction by a model: the prompt with numbered actions, and the drafts in the reply, each with its objections."""

import re
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, Field

from cojax.environment import Environment
from cojax.explorer import Exploration, document_tools
from cojax.explorer.answers import find_answer_objections
from cojax.explorer.llm.prompting import data, fill, fit_pairs, fit_texts, list_lines, prompt, sections, shorten
from cojax.explorer.scripted.explorer import Ending
from cojax.types import Action, Call, Message, Task, TaskDraft, Triplet, normalise, signature

# The headings of an action and its result have this many characters.
_HEADING_LENGTH = 24
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


def write_abstraction_prompt(
    exploration: Exploration,
    actions: Mapping[int, Triplet],
    environment: Environment,
    ending: Ending,
    separator: str,
    min_actions: int,
    max_characters: int,
    max_drafts: int,
) -> Sequence[Message]:
    """The messages that ask for at most `max_drafts` `Drafts`, with at most `max_characters` untrusted characters.

    `separator` is the text between user turns, "" for one turn, and `min_actions` the fewest actions of a draft.
    """
    phrases = sections("abstract")
    is_conversation = not ending.tool and bool(separator)
    ending_rule = phrases["ending_turn"] if is_conversation else phrases["ending_tool"]
    quarter = max_characters // 4
    tool_lines = (f"{name}: {tool.get('description', '')}" for name, tool in document_tools(environment).items())
    tools_text = shorten("\n".join(tool_lines), quarter)
    purpose, untrusted_length = _word_purpose(exploration, quarter)
    return prompt(
        "abstract",
        shortest=str(min_actions),
        counted=phrases["counted" if ending.tool else "not_counted"],
        ending=f"{ending_rule} {phrases['answered']}" if ending.parameter else ending_rule,
        data_rule=sections("data")["rule"],
        fields=(_FIELDS["answer"] if ending.parameter else "") + (_FIELDS["later"] if is_conversation else ""),
        purpose=purpose,
        opening=data(tools_text),
        runs=str(len({step.run for step in actions.values()})),
        record=_write_record(actions, max_characters - len(tools_text) - untrusted_length),
        limit=str(max_drafts),
    )


def make_drafts(
    reply: Drafts, actions: Mapping[int, Triplet], task: Task, ending: Ending, separator: str, shortest: int, limit: int
) -> Iterator[TaskDraft]:
    """At most `limit` drafts of a reply, with different queries."""
    queries: set[str] = set()
    for draft in reply.drafts:
        if len(queries) == limit:
            return
        candidate = make_draft(draft, actions, task, ending, separator, shortest)
        if normalise(candidate.query) not in queries:
            queries.add(normalise(candidate.query))
            yield candidate


def make_draft(
    draft: Draft, actions: Mapping[int, Triplet], task: Task, ending: Ending, separator: str, min_actions: int
) -> TaskDraft:
    """The draft with its actions and objections. Actions are copied from the record, never from the model's text."""
    turns = _list_turns(draft, len(actions) + 1)
    step_numbers = [step_number for _, turn_step_numbers in turns for step_number in turn_step_numbers]
    steps = [actions[step_number] for step_number in step_numbers if step_number in actions]
    objections = _step_objections(step_numbers, actions) + _find_turn_objections([steps for _, steps in turns], actions)
    solution: list[Action] = []
    is_done = bool(steps) and steps[-1].observation.done
    for turn_number, (_, turn_step_numbers) in enumerate(turns, start=1):
        solution += [actions[step_number].action for step_number in turn_step_numbers if step_number in actions]
        if not ending.tool and not (is_done and turn_number == len(turns)):
            solution.append(Action())
    answer = (draft.answer or "").strip() if ending.parameter and not is_done else ""
    if ending.tool and not is_done:
        arguments = {ending.parameter: answer} if ending.parameter and answer else {}
        solution.append(Action(calls=(Call(ending.tool, arguments),)))
    objections += find_answer_objections(steps, ending.tool, ending.parameter, answer)
    objections += _find_query_objections([query for query, _ in turns], separator, steps)
    # An action that only ends the user's turn does not count.
    action_count = sum(bool(action.calls or action.text.strip()) for action in solution)
    if action_count < min_actions:
        objections.append(f"it has {action_count} actions; at least {min_actions} are required")
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


def _list_turns(draft: Draft, max_numbers: int) -> list[tuple[str, list[int]]]:
    """The user's turns, each with the numbers of its actions; at most `max_numbers` in total."""
    turns: list[tuple[str, list[int]]] = []
    for query, step_numbers in ((draft.query, draft.steps), *((later.query, later.steps) for later in draft.later)):
        turns.append((query, step_numbers[:max_numbers]))
        max_numbers -= len(turns[-1][1])
    return turns


def _step_objections(step_numbers: Sequence[int], actions: Mapping[int, Triplet]) -> list[str]:
    """At most 5 objections, unless the numbers name actions of one run that worked, in order."""
    objections = [f"action {number} is not in the record" for number in step_numbers if number not in actions]
    steps = [(number, actions[number]) for number in step_numbers if number in actions]
    objections += [
        f"action {number} did not succeed when it was explored" for number, step in steps if not step.observation.ok
    ]
    if not steps:
        objections.append("it names no recorded action")
    if len({step.run for _, step in steps}) > 1:
        objections.append("its actions come from several runs")
    if list(step_numbers) != sorted(set(step_numbers)):
        objections.append("its actions are not in ascending order")
    if any(step.observation.done for _, step in steps[:-1]):
        objections.append("it continues after the action that ended the episode")
    return objections[:5]


def _find_turn_objections(turn_steps: Sequence[Sequence[int]], actions: Mapping[int, Triplet]) -> list[str]:
    """An objection if one of several user turns has no action that worked."""
    successes = [any(number in actions and actions[number].observation.ok for number in turn) for turn in turn_steps]
    if all(successes) or len(turn_steps) == 1:
        return []
    return [f"user turn {successes.index(False) + 1} of {len(turn_steps)} has no action that worked"]


def _find_query_objections(queries: Sequence[str], separator: str, steps: Sequence[Triplet]) -> list[str]:
    """Objections to the words of the user's turns."""
    objections = []
    if len(queries) > 1 and not separator:
        objections.append("it has several user turns; this environment allows one")
    if separator and any(normalise(separator) in normalise(query) for query in queries):
        objections.append("a user turn contains the separator of user turns")
    if not all(query.strip() for query in queries):
        objections.append("a user turn has no words")
    whole_query, tool_names = " ".join(queries), sorted({call.name for step in steps for call in step.action.calls})
    spelled_calls = (f"{tool}(" for tool in tool_names if re.search(rf"(?<!\w){re.escape(tool)}\s*\(", whole_query))
    if spelled_call := next(spelled_calls, ""):
        objections.append(f"the query spells out a call: {spelled_call}")
    return objections


def _word_purpose(exploration: Exploration, max_characters: int) -> tuple[str, int]:
    """The text on the purpose of the tasks, and how many of its characters are untrusted: at most `max_characters`."""
    phrases, context = sections("abstract"), exploration.context
    if context is None:
        return phrases["unguided"], 0
    # If there is too little room, texts are left out in this order.
    texts = [list_lines(context.objectives), ", ".join(context.focus_patterns) or "all of it", exploration.task.query]
    objectives_text, focus_text, query_text = (text or "" for text in fit_texts(texts, max_characters))
    purpose = fill(phrases["guided"], task=data(query_text), focus=data(focus_text), objectives=data(objectives_text))
    return purpose, len(objectives_text) + len(focus_text) + len(query_text)


def _write_record(actions: Mapping[int, Triplet], max_characters: int) -> str:
    """The actions that worked, by run, in at most `max_characters` characters.

    If there is too little room, the oldest are left out. Numbers of failed and left-out actions are missing.
    """
    successful_steps = {step_number: step for step_number, step in actions.items() if step.observation.ok}
    action_results = [(signature(step.action), step.observation.text) for step in successful_steps.values()]
    fitted_pairs = fit_pairs(action_results, max_characters, _HEADING_LENGTH)
    step_numbers = list(successful_steps)[len(action_results) - len(fitted_pairs) :]
    lines_by_run: dict[int, list[str]] = {}
    for number, (action, result_text) in zip(step_numbers, fitted_pairs, strict=True):
        lines_by_run.setdefault(successful_steps[number].run, []).append(f"[{number}] {action}\n    → {result_text}")
    return "\n\n".join(f"Run {run}:\n{data(chr(10).join(lines))}" for run, lines in sorted(lines_by_run.items()))

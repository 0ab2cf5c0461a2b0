"""Negative controls: the solution is run without each of its parts in turn, and must then earn less.

A part is a call, or an action that is text. Without a part that changes the state, the reward must be below 1. A part
that only shows something, a look-up, is needed if another action fails without it, if the end differs by more than its
own output, or if the query asks for what it shows. It is used if a later action or the answer contains a value that it
was the first to show.
"""

import ast
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cojax.drafts import DraftRefused, leave_out
from cojax.environment.replay import Replay
from cojax.explorer.answers import list_leaves
from cojax.types import Action, Message, Task, Triplet, content_hash, normalise, signature
from cojax.validation import consistency
from cojax.validation.mention import COMMON_STEMS, ENGLISH, Mentions, fold_text, read_number, words

_CONDITION_PATTERN = re.compile(ENGLISH["depends"])
# Words that carry no information.
_EMPTY_WORDS = COMMON_STEMS | {"true", "false", "none", "null", "ok"}
_WORD_PATTERN = re.compile(r"\w+(?:[.@:/-]\w+)*")


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a solution that can be left out: a call of an action, or the whole action if `call_index` is None."""

    action: int
    call_index: int | None = None

    def as_action(self, actions: Sequence[Action]) -> Action:
        """The part as an action of its own."""
        action = actions[self.action]
        return action if self.call_index is None else Action(calls=(action.calls[self.call_index],))

    def leave_out(self, actions: Sequence[Action]) -> tuple[Action, ...]:
        """The actions without the part."""
        return leave_out(actions, self.action, self.call_index)

    def describe(self, actions: Sequence[Action]) -> str:
        """The part in words, for a line of evidence."""
        prefix = "" if self.call_index is None else f"call {self.call_index + 1} of "
        return f"{prefix}action {self.action + 1}, {signature(self.as_action(actions))[:200]}"


@dataclasses.dataclass(frozen=True)
class NegativeControls:
    """The negative controls of one task, whose solution was replayed as `run`.

    `bare` is the action that ends the episode in place of the last one, or None if the last one does
    nothing else. `match` is the comparison of query and solution, `phrase` returns the environment's wording of
    steps, and `replay` plays other actions.
    """

    task: Task
    run: Replay
    ending: str
    bare: Action | None
    match: consistency.QueryMatch
    documents: consistency.Documents
    phrase: Callable[[Sequence[Triplet]], str | None]
    replay: Callable[[Task, tuple[Action, ...]], Replay]

    def check_parts(self, evidence: list[str]) -> None:
        """Leaves out each part in turn and adds a line of evidence for each.

        Raises DraftRefused for a look-up that is not needed, then for a query that does not agree with the solution,
        then for any other part that is not needed.
        """
        all_parts = list(self._list_parts())
        effective_set = self._find_effective_parts(all_parts)
        effective_parts = [part for part in all_parts if part in effective_set]
        if self.bare is not None:
            effective_parts.append(self._last_part)
        evidence += [self._describe_lookup(part, None) for part in all_parts if part not in effective_set]
        if self.match.contradiction:
            raise DraftRefused(self.match.contradiction)
        for part in effective_parts:
            evidence += self._examine_part(part)

    @property
    def _last_part(self) -> Part:
        return Part(len(self.task.solution) - 1)

    @functools.cached_property
    def _steps(self) -> tuple[Triplet, ...]:
        return list_triplets(self.run)

    def _list_parts(self) -> Iterator[Part]:
        """The parts that can be left out: all but the call that ends the episode, and the last action as a whole."""
        for index, action in enumerate(self.task.solution):
            if len(action.calls) > 1:
                yield from (Part(index, number) for number, call in enumerate(action.calls) if call.name != self.ending)
            elif index < self._last_part.action:
                yield Part(index)

    def _find_effective_parts(self, parts: Sequence[Part]) -> set[Part]:
        """The parts that changed the state.

        If an action has several calls, they are replayed one by one. If that fails or ends in another state, all
        calls of such actions count as changing the state.
        """
        action_parts = {part for part in parts if part.call_index is None and part.action in self.run.effective}
        call_parts = [part for part in parts if part.call_index is not None]
        if not call_parts:
            return action_parts
        actions, first_indices = list[Action](), list[int]()
        for action in self.task.solution:
            first_indices.append(len(actions))
            actions += [Action(calls=(call,)) for call in action.calls] if len(action.calls) > 1 else [action]
        trial = self.replay(self.task, tuple(actions))
        if not trial.complete or trial.states[-1] != self.run.states[-1]:
            return action_parts | set(call_parts)
        index_by_part = {part: first_indices[part.action] + (part.call_index or 0) for part in call_parts}
        return action_parts | {
            part for part, index in index_by_part.items() if trial.states[index] != trial.states[index + 1]
        }

    def _examine_part(self, part: Part) -> list[str]:
        """The evidence on a part that changes the state. Raises DraftRefused if it is not needed."""
        solution = self.task.solution
        substitute_actions = (self.bare,) if self.bare is not None and part == self._last_part else ()
        shorter_run = self.replay(self.task, (*part.leave_out(solution), *substitute_actions))
        if substitute_actions and shorter_run.states[-1] == self.run.states[-1]:
            return []  # it did nothing but end the episode
        if shorter_run.trajectory.reward >= 1.0:
            raise DraftRefused(f"negative control: passes without {part.describe(solution)}")
        if not substitute_actions and self._only_shows(part, shorter_run):
            return [self._describe_lookup(part, shorter_run)]
        return [f"negative control: fails without {part.describe(solution)}"]

    def _describe_lookup(self, part: Part, shorter_run: Replay | None) -> str:
        """How the solution uses a part that only shows something; `shorter_run` is the replay without it, if any.

        Raises DraftRefused if the part is superfluous.
        """
        solution, part_name = self.task.solution, part.describe(self.task.solution)
        if shown_value := self._find_first_shown_value(part):
            return f"look-up used: {shown_value[:60]!r}, first shown by {part_name}, stands in what follows"
        # If the query is the environment's wording of the steps without the part, it does not ask for the part.
        shorter_wording = self.phrase(_leave_out(part, self._steps))
        is_unasked = shorter_wording is not None and normalise(shorter_wording) == normalise(self.task.query)
        if self.match.verbatim and not is_unasked:
            return f"look-up asked for, as the environment words it: {part_name}"
        shorter_run = shorter_run or self.replay(self.task, part.leave_out(solution))
        if not shorter_run.complete or len(shorter_run.trajectory.turns) < len(solution) - (part.call_index is None):
            return f"look-up needed: the rest fails without {part_name}"
        if not self._only_shows(part, shorter_run):
            return f"look-up needed: the end differs without {part_name}"
        if not is_unasked and self._is_condition(part):
            return f"look-up asked for, as the query makes it a condition: {part_name}"
        output_matters = shorter_run.trajectory.reward < 1.0  # its output counts for the reward
        if not is_unasked and output_matters and self._may_be_asked(part):
            return f"look-up perhaps asked for, which cannot be told: {part_name}"
        raise DraftRefused(f"superfluous: nothing that it shows is used or asked for, {part_name}")

    def _only_shows(self, part: Part, shorter_run: Replay) -> bool:
        """Whether the final states with and without the part differ at most by its output.

        Some environments keep outputs, or hashes of them, in their state, to compare them. `shorter_run` is the
        replay without the part.
        """
        if not self.run.states or not shorter_run.states:
            return False
        full_values, shorter_values = _count_values(self.run.states[-1]), _count_values(shorter_run.states[-1])
        outputs = Counter(message.content for message in _list_messages(part, self._steps))
        outputs += Counter({f"hash:{content_hash(output_text)}": count for output_text, count in outputs.items()})
        extra_values = Counter(leaf_value for _, leaf_value in (full_values - shorter_values).elements())
        return not shorter_values - full_values and not extra_values - outputs

    def _find_first_shown_value(self, part: Part) -> str:
        """The longest value that the part was the first to show and a later action contains; empty if there is none."""
        steps, query = self._steps, self.task.query
        earlier = [query, join_opening(self.run), _as_lines(part.as_action(self.task.solution))]
        earlier += [f"{_as_lines(step.action)}\n{consistency.join_shown(step, query)}" for step in steps[: part.action]]
        later_texts = [_as_lines(step.action) for step in steps[part.action + 1 :]]
        if part.call_index is not None:
            earlier += [message.content for message in steps[part.action].observation.messages[: part.call_index]]
            later_texts.append(_as_lines(Action(calls=steps[part.action].action.calls[part.call_index + 1 :])))
        output = "\n".join(message.content for message in _list_messages(part, steps))
        shown_values = (_list_values(output) - _list_values("\n".join(earlier))) & _list_values("\n".join(later_texts))
        return max(shown_values, key=lambda value: (len(value), value), default="")

    def _is_condition(self, part: Part) -> bool:
        """Whether the query seems to make what follows depend on what the part shows.

        It must contain a conditional word, an argument of the part and something that the part shows.
        """
        mentions = Mentions(self.task.query)
        if not _CONDITION_PATTERN.search(fold_text(self.task.query)):
            return False
        message_texts = (message.content for message in _list_messages(part, self._steps))
        return any(mentions.names(message_text) for message_text in message_texts if message_text.strip()) and any(
            mentions.names(str(argument))
            for call in part.as_action(self.task.solution).calls
            for argument in call.arguments.values()
        )

    def _may_be_asked(self, part: Part) -> bool:
        """Whether the query has a word about this part alone: of its values, its name, its documentation or its
        wording."""
        other_steps, own_action = _leave_out(part, self._steps), part.as_action(self.task.solution)
        wording_stems = {*words(self.phrase(self._steps) or "")} - {*words(self.phrase(other_steps) or "")}
        topic = {*words(consistency.list_words(self.documents, own_action))} | wording_stems
        topic -= {word for step in other_steps for word in words(consistency.list_words(self.documents, step.action))}
        # A repeated call has no words that only it has.
        if not topic:
            return any(signature(step.action) == signature(own_action) for step in other_steps)
        return bool(topic & Mentions(self.task.query).words)


def list_triplets(run: Replay) -> tuple[Triplet, ...]:
    """The steps of a replay."""
    return tuple(Triplet(turn.action, turn.observation, 0) for turn in run.trajectory.turns)


def join_opening(run: Replay) -> str:
    """What the episode shows before the first action."""
    return "\n".join(message.content for message in run.trajectory.opening)


def describe_after_end(actions: Sequence[Action], turn_count: int, ending: str) -> str:
    """How a solution goes on after the episode is over, as a line of evidence; empty if it does not.

    In code, a later call at the top level counts if it is on the same object, or ends the episode again.
    """
    if turn_count < len(actions):
        return f"calls after the end: action {turn_count} ends the episode, and {len(actions) - turn_count} more follow"
    for action_number, action in enumerate(actions, 1):
        if ending and ending in [call.name for call in action.calls[:-1]]:
            return f"calls after the end: action {action_number} goes on after {ending}"
        if ending and not action.calls and (later_call := _find_call_after_end(action, ending.rpartition(".")[2])):
            return f"calls after the end: the code of action {action_number} goes on after {ending} with {later_call}"
    return ""


def _find_call_after_end(action: Action, ending: str) -> str:
    """The first call of an action's code after the one that ends the episode; empty if there is none."""
    owner = ""
    for statement in consistency.parse_action(action).body:
        for node in ast.walk(statement) if owner else ():
            if isinstance(node, ast.Call) and ((chain := _read_chain(node.func))[0] == owner or chain[-1] == ending):
                return ast.unparse(node)[:100]
        if isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call):
            chain = _read_chain(statement.value.func)
            owner = owner or (chain[0] if chain[-1] == ending else "")
    return ""


def _read_chain(func: ast.expr) -> list[str]:
    """The names of a chain of attributes; the first is empty if the chain does not begin with a name."""
    attribute_names = []
    while isinstance(func, ast.Attribute):
        attribute_names.append(func.attr)
        func = func.value
    return [func.id if isinstance(func, ast.Name) else "", *attribute_names[::-1]]


def _list_messages(part: Part, steps: Sequence[Triplet]) -> tuple[Message, ...]:
    """The messages that answer the part; all those of its action if there is not one message for each call."""
    step = steps[part.action]
    if part.call_index is None or len(step.observation.messages) != len(step.action.calls):
        return step.observation.messages
    return (step.observation.messages[part.call_index],)


def _leave_out(part: Part, steps: Sequence[Triplet]) -> tuple[Triplet, ...]:
    remainder: tuple[Triplet, ...] = ()
    if part.call_index is not None:
        step, messages = steps[part.action], steps[part.action].observation.messages
        if len(messages) == len(step.action.calls):
            messages = (*messages[: part.call_index], *messages[part.call_index + 1 :])
        (action,) = Part(0, part.call_index).leave_out([step.action])
        remainder = (Triplet(action, dataclasses.replace(step.observation, messages=messages), step.run),)
    return (*steps[: part.action], *remainder, *steps[part.action + 1 :])


def _count_values(state: Any) -> Counter[tuple[str, str]]:
    """The values of a state with their paths; the order of lists does not count."""
    value_counts: Counter[tuple[str, str]] = Counter()
    stack: list[tuple[str, Any]] = [("", state)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Mapping):
            stack += [(f"{path}/{name}", inner_value) for name, inner_value in value.items()]
            value = "{}"  # so that an empty one counts too
        elif isinstance(value, list | tuple):
            stack += [(f"{path}/*", inner_value) for inner_value in value]
            value = "[]"
        value_counts[path, str(value)] += 1
    return value_counts


def _as_lines(action: Action) -> str:
    """The values of an action, one per line: the arguments of its calls, or the names and literals of its code."""
    code = () if action.calls else consistency.list_names_and_literals(action)
    return "\n".join((*map(str, list_leaves([call.arguments for call in action.calls])), *code))


def _list_values(text: str) -> set[str]:
    """The values of a text: its words, their parts and its numbers, without common words and truth values."""
    whole_words = _WORD_PATTERN.findall(fold_text(text))
    candidates = {*whole_words, *(subword for word in whole_words for subword in re.findall(r"\w+", word))}
    value_words = {value for value in candidates if (len(value) > 1 or value.isdecimal()) and value not in _EMPTY_WORDS}
    return {f"{read_number(value):.15g}" if value[0].isdecimal() else value for value in value_words} - {"nan"}

"""One episode of BFCL: a dialogue of user turns and calls, with the official verdict on each turn."""

import json
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Action, Call, Check, Evaluation, Message, Observation, Task, canonical
from .calls import ERROR_PREFIX, Apis, Result, copy_state, shorten
from .official import Official
from .tools import ArgumentValues, draw_calls

# Stands between the turns of a query. An empty turn announces functions withheld so far.
SEPARATOR = "\n\n[next turn]\n\n"

# The most calls of an action that are run; the longest official turn has 34.
_MAX_CALLS = 64
# The number of latest results that the next affordances use.
_MAX_OFFERED_RESULTS = 12


def split_turns(actions: Sequence[Action]) -> list[tuple[Call, ...]]:
    """The calls of each turn; an action without calls ends a turn."""
    turns: list[tuple[Call, ...]] = []
    turn_calls: tuple[Call, ...] = ()
    for action in actions:
        turn_calls += tuple(action.calls)
        if not action.calls:
            turns.append(turn_calls)
            turn_calls = ()
    return [*turns, turn_calls] if turn_calls else turns


class BFCLEpisode:
    """The episode of one task. Raises ValueError for a setup that the APIs do not load."""

    def __init__(self, benchmark: Official, class_of_tool: Mapping[str, str], task: Task):
        self._benchmark, self._task, self._classes = benchmark, task, class_of_tool
        self._user_turns = task.query.split(SEPARATOR)
        self._apis = self._make_apis()
        self._withheld: Mapping[str, Sequence[str]] = task.setup.get("withheld", {})
        # For each finished turn: the instances at its end (None if they cannot be copied), and its calls' outputs.
        self._past_turns: list[tuple[bytes | None, list[str]]] = []
        self._outputs: list[str] = []
        self._worked_outputs: list[Any] = []
        self._result_values: list[Any] = []
        self._step_count = 0
        self._is_done = False

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", self._user_turns[0]),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._document_tools(self._list_tools(turn_index=0))

    def step(self, action: Action) -> Observation:
        """Runs all calls in order; an action without calls ends the user's turn.

        The dialogue is over after its last turn, or when a turn takes 21 steps with calls.
        """
        if self._is_done:
            return Observation((Message("tool", "The dialogue is over."),), ok=False, done=True)
        if not action.calls:
            self._end_turn()
            return self._begin_turn(ok="<tool_call>" not in action.text)
        offered_tools = self._list_tools(len(self._past_turns))
        results = [self._run(call, offered_tools) for call in action.calls[:_MAX_CALLS]]
        messages = [Message("tool", result.text) for result in results]
        if len(action.calls) > _MAX_CALLS:
            messages.append(Message("tool", f"{ERROR_PREFIX}only {_MAX_CALLS} calls at once; the rest were not run"))
        self._step_count += 1
        if self._step_count >= self._benchmark.max_steps:
            self._end_turn()
            self._is_done = True
        ok = all(result.ok for result in results) and len(action.calls) <= _MAX_CALLS
        return Observation(tuple(messages), ok=ok, done=self._is_done)

    def state(self) -> Mapping[str, Any]:
        """The public attributes of all instances, the sorted outputs of the calls that worked, and the turn."""
        return {
            "instances": {class_name: copy_state(instance) for class_name, instance in self._apis.instances.items()},
            "responses": sorted(self._worked_outputs),
            "turn": len(self._past_turns),
            "done": self._is_done,
        }

    def affordances(self) -> tuple[Action, ...]:
        """Calls that would work now, and last the action that ends the turn."""
        if self._is_done:
            return ()
        values = ArgumentValues(self._apis.instances, self._result_values[-_MAX_OFFERED_RESULTS:])
        try:
            calls = draw_calls(
                self._apis, values, self._list_tools(len(self._past_turns)), salt=canonical(self.state())
            )
        except RecursionError:
            # Endless folders cannot be copied, so no call can be tried.
            calls = []
        return (*(Action(calls=(call,)) for call in calls), Action())

    def evaluate(self) -> Evaluation:
        """Runs the official checks of each turn, against new instances on which the task's solution runs.

        A turn that did not end fails. A turn without calls in the solution passes, but the calls made there stay in
        effect. The reward is 1.0 if every turn passes and the dialogue went through all of them; 0.0 for a task without
        a solution. The partial reward is the share of turns that pass.
        """
        if not self._task.solution:
            return Evaluation(0.0)
        reference_apis = self._make_apis()
        checks: list[Check] = []
        for turn_index, reference_calls in enumerate(split_turns(self._task.solution)):
            outputs = [reference_apis.run(call).text for call in reference_calls]
            has_ended = turn_index < len(self._past_turns)
            checks.append(
                Check(f"turn {turn_index + 1}", has_ended and self._turn_passes(turn_index, outputs, reference_apis))
            )
        is_complete = self._is_done and len(self._past_turns) == len(self._user_turns) == len(checks)
        return Evaluation(float(is_complete and all(check.passed for check in checks)), tuple(checks))

    def close(self) -> None:
        pass

    def _turn_passes(self, turn_index: int, reference_outputs: list[str], apis: Apis) -> bool:
        """Whether a finished turn passes: it has calls if any are expected, the same state, and all outputs so far."""
        snapshot, outputs = self._past_turns[turn_index]
        if not reference_outputs:
            return True
        if not outputs or snapshot is None:
            return False
        all_outputs = [output for _, outputs in self._past_turns[: turn_index + 1] for output in outputs]
        try:
            check = self._benchmark.same_state(pickle.loads(snapshot), apis.instances)
            return bool(
                check["valid"] and self._benchmark.same_responses(all_outputs, reference_outputs, turn_index)["valid"]
            )
        except Exception:
            # The checker cannot compare endless folders.
            return False

    def _make_apis(self) -> Apis:
        setup = self._task.setup
        try:
            instances = self._benchmark.make_instances(setup["classes"], setup["config"], setup["long"])
        except KeyError as error:
            raise ValueError(f"setup lacks {error}; expected classes, config and long") from error
        return Apis(instances, self._classes)

    def _run(self, call: Call, tool_names: Sequence[str]) -> Result:
        result = self._apis.run(call, tool_names)
        self._outputs.append(result.text)
        if result.ok:
            self._worked_outputs.append(shorten(result.text))
            self._result_values.append(result.value)
        return result

    def _list_tools(self, turn_index: int) -> tuple[str, ...]:
        """The tools of the task's classes, without those withheld until a later turn."""
        later_tools = {
            tool for first_turn, tools in self._withheld.items() if int(first_turn) > turn_index for tool in tools
        }
        return tuple(tool for tool in self._apis.class_of_tool if tool not in later_tools)

    def _document_tools(self, tool_names: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
        return tuple(
            tool_entry
            for class_name in self._apis.instances
            for tool_entry in self._benchmark.documentation[class_name]
            if tool_entry["function"]["name"] in tool_names
        )

    def _end_turn(self) -> None:
        try:
            snapshot = self._apis.pickle_instances() if self._task.solution else None
        except RecursionError:
            snapshot = None
        self._past_turns.append((snapshot, self._outputs))
        self._outputs, self._step_count = [], 0

    def _begin_turn(self, ok: bool) -> Observation:
        turn_index = len(self._past_turns)
        if turn_index == len(self._user_turns):
            self._is_done = True
            return Observation((), ok=ok, done=True)
        user_text = self._user_turns[turn_index]
        if new_tools := self._withheld.get(str(turn_index), ()):
            tool_lines = [json.dumps(tool_entry) for tool_entry in self._document_tools(new_tools)]
            announcement = "\n".join(("More functions are available from now on:", *tool_lines, "Does this help?"))
            user_text = f"{announcement}\n\n{user_text}" if user_text else announcement
        return Observation((Message("user", user_text),), ok=ok)

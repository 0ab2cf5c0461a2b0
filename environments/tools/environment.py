"""The environment that a few functions make, see environments/tools/__init__.py, and its episodes.

An episode makes calls on a world. Its verdict compares that world with the one that the solution leads to.
"""

import contextlib
import copy
import dataclasses
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, SandboxLost, Traits, ask
from cojax.types import (
    NO_CALL,
    Action,
    Call,
    Check,
    Evaluation,
    Message,
    Observation,
    Task,
    Triplet,
    canonical,
    content_hash,
    to_json,
)
from . import wording
from .arguments import ValueIndex, draw_calls, index_values
from .sources import Sources, find_sources, read_sources
from .toolset import DONE_REPLY, Refused, Tool, perform_call, read_tools

_DEFAULT_TRAITS = Traits(worded_alike=True)
# The splits that every environment has, even without tasks to evaluate on.
_SPLITS = ("seed", "dev", "eval", "challenge")
# Limits on the setups read, on the ends kept, and on the setups and calls by which a look-up is found.
_MAX_SETUPS, _MAX_SOLUTION_ENDS, _MAX_TRIAL_SETUPS, _MAX_TRIAL_CALLS = 100_000, 10_000, 3, 4
# Seconds for these calls of one tool, unless a single call may take longer.
_TRIAL_TIMEOUT_S = 10.0
# Seconds between two looks at trials that are being made.
_LOOK_PERIOD_S = 0.2

SolutionEnd = tuple[Any, Any, str | None]  # the states in which a solution begins and ends, and its answer
Judge = Callable[[Task, Any, str | None, bool], Evaluation | float | None]
Tasks = Sequence[Task | Mapping[str, Any]]


class ToolEnvironment:
    """An environment made of tools, `open` and setups.

    Raises ValueError if they cannot make one, and TypeError for a value that is not JSON.
    """

    def __init__(
        self,
        name: str,
        tools: Iterable[Callable[..., Any] | Mapping[str, Any]],
        open: Callable[[Any], Any],
        setups: Iterable[Mapping[str, Any]],
        *,
        ending: str | None = None,
        judge: Judge | None = None,
        fork: Callable[[Any], Any] | None = None,
        affordances: Callable[[Any], Iterable[tuple[str, Mapping[str, Any]]]] | None = None,
        lookups: Collection[str] | None = None,
        trials: bool = True,
        instructions: str | Callable[[Any], str] = "",
        splits: Mapping[str, Tasks] | Tasks | None = None,
        phrase: Callable[[Sequence[Triplet]], str | None] | None = None,
        traits: Traits = _DEFAULT_TRAITS,
    ):
        if not (isinstance(name, str) and name.strip()):
            raise ValueError(f"the environment's name is {name!r}; expected a word")
        tool_map = read_tools(tools, allow_none=ending == "")
        end_tool = find_end_tool(tool_map, ending)
        own_traits = traits if traits.commands else _add_command(traits, tool_map)
        self.name, self.traits = name, dataclasses.replace(own_traits, ending=end_tool.name)
        # These are the same in all episodes.
        self._tools, self._ending, self._open_world, self._fork_world = tool_map, end_tool, open, fork
        self._judge, self._propose_calls, self._instructions = judge, affordances, instructions
        self.tries_freely = trials
        self._documents = tuple(tool.document() for tool in {**tool_map, end_tool.name: end_tool}.values() if tool.name)
        self._phrase, self._lookup_names = phrase, None if lookups is None else frozenset(lookups)
        if unknown_names := sorted(set(lookups or ()) - tool_map.keys()):
            raise ValueError(
                f"lookups names {unknown_names[0]!r}, which is not a tool; the tools are {', '.join(tool_map)}"
            )
        self._bare_tasks = _make_bare_tasks(name, setups)
        self._tasks_by_split = {**dict.fromkeys(_SPLITS[1:], ()), **_divide(name, splits, end_tool)}
        for task in itertools.chain.from_iterable(self._tasks_by_split.values()):
            _check_calls(task, {*tool_map, end_tool.name})
        self._end_by_solution: dict[str, SolutionEnd] = {}
        self._trial_result_by_tool: dict[str, bool | None] = {}  # None: its trial did not end
        self._sources: Sources | None = None
        self._lock, self._trial_lock, self._sources_lock = threading.Lock(), threading.Lock(), threading.Lock()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._documents

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """The first `count` tasks of a split. The split `seed` holds the setups, without query and solution, in an
        order that the number `seed` decides.

        Raises ValueError for an unknown split.
        """
        if split == "seed":
            bare_tasks = list(self._bare_tasks)
            random.Random(repr(("setups", seed))).shuffle(bare_tasks)
            return tuple(bare_tasks[:count])
        if split not in self._tasks_by_split:
            split_names = ", ".join(("seed", *self._tasks_by_split))
            raise ValueError(f"environment {self.name!r} has no split {split!r}; it has {split_names}")
        return self._tasks_by_split[split][:count]

    def start(self, task: Task) -> "ToolEpisode":
        return ToolEpisode(self, task)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        if self._phrase is not None:
            return self._phrase(steps)
        if self._ends_by_text:
            steps = [_add_end_call(step) for step in steps]
        tool_names = {call.name for step in steps for call in step.action.calls} - {self._ending.name}
        return wording.phrase(steps, self._ending.name, set(filter(self.is_lookup, tool_names)))

    @property
    def _ends_by_text(self) -> bool:
        """Whether an action without calls ends the episode, and its text is the answer."""
        return not self._ending.name

    def is_lookup(self, tool: str) -> bool:
        """Whether a tool never changes the world. The environment says so, or else the tool must have worked on the
        first setups and left every state as it was. Raises EnvironmentFailure if trying it does not end within ten
        seconds, or within the deadline of the traits if that is longer."""
        if self._lookup_names is not None:
            return tool in self._lookup_names
        with self._trial_lock:  # one trial at a time: side by side they would slow one another down
            if tool not in self._trial_result_by_tool:
                self.find_sources()  # once for all tools: the seconds of this one do not count it
                trial_results: list[bool] = []
                thread = threading.Thread(target=lambda: trial_results.append(self._changes_nothing(tool)), daemon=True)
                thread.start()
                thread.join(max(_TRIAL_TIMEOUT_S, self.traits.deadline or 0.0))
                self._trial_result_by_tool[tool] = None if thread.is_alive() else trial_results == [True]
            trial_result = self._trial_result_by_tool[tool]
        if trial_result is None:
            raise EnvironmentFailure(
                f"cannot tell whether {tool!r} is a look-up, because trying it takes too long; name all look-ups of "
                f"{self.name!r}: ToolEnvironment(…, lookups=[…])"
            )
        return trial_result

    def find_sources(self) -> Sources:
        """Where the values of parameters come from, see sources.py; {} without `trials`, and where `affordances` says
        what to try."""
        with self._sources_lock:
            if self._sources is None:
                tools = [tool for tool in self._tools.values() if tool.name != self._ending.name]
                is_asked = self.makes_offers and self.tries_freely
                self._sources = self._try_tools(tools) if is_asked else {}
            return self._sources

    def _try_tools(self, tools: Sequence[Tool]) -> Sources:
        """The sources, found on a thread; {} if a call hangs: then names alone decide."""
        found: list[Sources] = []
        setups, call_times = self._bare_tasks[:_MAX_TRIAL_SETUPS], [time.monotonic()]

        def note_call() -> None:
            call_times[0] = time.monotonic()

        thread = threading.Thread(
            target=lambda: found.append(find_sources(self, tools, setups, note_call)), daemon=True
        )
        thread.start()
        while thread.is_alive() and time.monotonic() - call_times[0] < max(
            _TRIAL_TIMEOUT_S, self.traits.deadline or 0.0
        ):
            thread.join(_LOOK_PERIOD_S)
        return found[0] if found else {}

    def prepare(self) -> Any:
        """The sources as JSON, for processes that are forked from this one."""
        return to_json(self.find_sources())

    def adopt(self, preparation: Any) -> None:
        self._sources = read_sources(preparation or {})

    @property
    def makes_offers(self) -> bool:
        """Whether the calls worth trying are found here, and not by the world's own `affordances`."""
        return self._propose_calls is None

    def _changes_nothing(self, tool_name: str) -> bool:
        """Whether some call of the tool worked on the first setups, and none changed a state."""
        any_call_worked = False
        # A tool may have something to change only after others were called: a car leaves that was parked.
        preparations = (False, True) if self.tries_freely else (False,)
        for task, is_prepared in itertools.product(self._bare_tasks[:_MAX_TRIAL_SETUPS], preparations):
            with contextlib.suppress(EnvironmentFailure), contextlib.closing(self.start(task)) as episode:
                ask(episode.reset)
                for other_name in (
                    [name for name in self._tools if name not in (tool_name, self._ending.name)] if is_prepared else ()
                ):
                    for call in ask(episode.propose_calls, other_name):
                        ask(episode.step, Action(calls=(call,)))
                trial_calls = ask(episode.propose_calls, tool_name)
                for call in trial_calls if is_prepared else trial_calls[:_MAX_TRIAL_CALLS]:
                    world_before = ask(episode.state)["world"]
                    any_call_worked |= ask(episode.step, Action(calls=(call,))).ok
                    if ask(episode.state)["world"] != world_before:
                        return False
        return any_call_worked

    def _find_end(self, task: Task) -> SolutionEnd:
        """The end of a task's solution, which is played once."""
        solution_key = content_hash(
            [task.setup, [[[call.name, call.arguments] for call in act.calls] for act in task.solution]]
        )
        with self._lock:
            if solution_key in self._end_by_solution:
                return self._end_by_solution[solution_key]
        try:
            with contextlib.closing(self.start(task)) as episode:
                episode.reset()
                episode.retire()  # a server might tell a later episode of the solution
                start_state, _ = episode.read_end()
                for action in task.solution:
                    episode.step(action)
                solution_end = (start_state, *episode.read_end())
        except SandboxLost as error:  # in a world of its own, which is not the policy's
            raise EnvironmentFailure(str(error)) from error
        with self._lock:
            if len(self._end_by_solution) >= _MAX_SOLUTION_ENDS:
                del self._end_by_solution[next(iter(self._end_by_solution))]
            return self._end_by_solution.setdefault(solution_key, solution_end)


def _add_command(traits: Traits, tools: Mapping[str, Tool]) -> Traits:
    """The traits; in them, a world's only tool takes a command if it takes free text and nothing else."""
    if len(tools) != 1:
        return traits
    (tool,) = tools.values()
    properties = tool.parameters["properties"]
    if len(properties) != 1 or not isinstance(parameter_schema := properties[tool.first_parameter], Mapping):
        return traits
    is_free_text = parameter_schema.get("type") == "string" and "enum" not in parameter_schema
    return dataclasses.replace(traits, commands={tool.name: str(tool.first_parameter)}) if is_free_text else traits


def _add_end_call(step: Triplet) -> Triplet:
    """The step. If its text ends the episode, it becomes a call of the nameless tool that ends it."""
    if step.action.calls:
        return step
    answer = read_spoken_answer(step.action)
    call = Call("", {} if answer is None else {"answer": answer})
    return Triplet(Action(calls=(call,)), Observation((Message("tool", ""),), done=True), step.run)


def _make_bare_tasks(name: str, setups: Iterable[Mapping[str, Any]]) -> tuple[Task, ...]:
    """A bare task for each different setup. Raises ValueError if there is none, or one is not a JSON object."""
    task_by_id: dict[str, Task] = {}
    for setup_number, setup in enumerate(itertools.islice(setups, _MAX_SETUPS), 1):
        if not isinstance(setup, Mapping):
            raise ValueError(f"setup {setup_number} is {setup!r:.100}; expected a JSON object")
        try:
            task = Task(name, "", copy_json(setup, f"setup {setup_number}"))
        except TypeError as error:
            raise ValueError(str(error)) from error
        task_by_id.setdefault(task.id, task)
    if not task_by_id:
        raise ValueError(f"environment {name!r} has no setups; expected at least one, {{}} if all episodes begin alike")
    return tuple(task_by_id.values())


def _divide(env_name: str, splits: Mapping[str, Tasks] | Tasks | None, end_tool: Tool) -> dict[str, tuple[Task, ...]]:
    """The tasks of each split. Tasks without splits are divided by a hash of their setups: a fifth is for dev."""
    if isinstance(splits, Mapping):
        return {split: tuple(_to_task(env_name, entry, end_tool) for entry in tasks) for split, tasks in splits.items()}
    tasks_by_split: dict[str, tuple[Task, ...]] = {"dev": (), "eval": ()}
    for entry in splits or ():
        task = _to_task(env_name, entry, end_tool)
        split = "dev" if int(content_hash(["split", task.setup]), 16) % 5 == 0 else "eval"
        tasks_by_split[split] = (*tasks_by_split[split], task)
    return tasks_by_split


def _check_calls(task: Task, tool_names: Collection[str]) -> None:
    """Raises ValueError if the task's solution calls a tool that does not exist: such a call would do nothing."""
    for call in itertools.chain.from_iterable(action.calls for action in task.solution):
        if call.name not in tool_names:
            tool_list = ", ".join(sorted(filter(None, tool_names)))
            raise ValueError(
                f"the solution of the task {task.query!r:.100} calls {call.name!r}, which is not a tool; "
                f"the tools are {tool_list}"
            )


def _to_task(env_name: str, entry: Task | Mapping[str, Any], end_tool: Tool) -> Task:
    """The task, with a solution that ends the episode. Raises ValueError if a part is missing."""
    if isinstance(entry, Task):
        return entry
    try:
        calls = [Call(call["name"], copy_json(call.get("arguments", {}), "arguments")) for call in entry["solution"]]
        setup = copy_json(entry["setup"], "a task's setup")
        query = str(entry["query"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a task is {entry!r:.200}; expected query, setup and solution ({error})") from error
    solution = [Action(calls=(call,)) for call in calls]
    if not calls or calls[-1].name != end_tool.name:
        solution.append(Action(calls=(Call(end_tool.name),)) if end_tool.name else Action())
    return Task(env_name, query, setup, tuple(solution))


# The most calls of an action that are carried out.
_MAX_CALLS_AT_ONCE = 64
# Limits on the actions offered in all and of one tool, and on the calls of one tool that are tried.
_MAX_OFFERED_CALLS, _MAX_CALLS_PER_TOOL, _MAX_TRIED_CALLS = 200, 8, 24
# The last _MAX_KEPT_TEXTS observations yield arguments. The short ones among them yield answers.
_MAX_KEPT_TEXTS, _MAX_ANSWERS, _ANSWER_CHARS = 8, 4, 200
# The most conditions of a verdict that are listed by themselves.
_MAX_CHECKS = 50


def find_method(world: Any, method_name: str) -> Callable[..., Any] | None:
    """An optional method of a world, beside its state and its calls; None if it has none."""
    return getattr(world, method_name, None)


def is_plain_json(world: Any) -> bool:
    """Whether a world is plain JSON, and so its own state."""
    return isinstance(world, (dict, list))


def copy_json(value: Any, value_name: str) -> Any:
    """A copy of a JSON value. Raises TypeError for a value that is not JSON; the error calls it `value_name`."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{value_name} is no JSON: {error}; expected objects, lists, text, finite numbers, truth values and None"
        ) from error


def state_of(world: Any) -> Any:
    """The state of a world, as JSON. Raises TypeError for a state that is not JSON."""
    return copy_json(world if is_plain_json(world) else world.state(), "the world's state")


class ToolEpisode:
    """An episode of one task."""

    def __init__(self, environment: ToolEnvironment, task: Task):
        self._environment, self._task = environment, task
        self._world: Any = None
        self._is_open = self._is_finished = False
        self._tools: Mapping[str, Tool] = environment._tools
        self.answer: str | None = None
        self._texts: list[tuple[str, str]] = []  # (tool, what it returned)

    def reset(self) -> tuple[Message, ...]:
        self._world = self._environment._open_world(copy.deepcopy(copy_json(self._task.setup, "the setup")))
        if not is_plain_json(self._world) and not callable(find_method(self._world, "state")):
            raise TypeError(
                f"`open` returned {type(self._world).__name__}, which has no state(); expected plain JSON, or an "
                "object with state() and, for tools that are documents, call(name, arguments)"
            )
        self._is_open = True
        if on_offer := find_method(self._world, "on_offer"):
            self._tools = self._find_offered_tools(on_offer())
        instructions = self._environment._instructions
        paragraphs = [instructions if isinstance(instructions, str) else instructions(dict(self._task.setup))]
        if introduction := find_method(self._world, "introduction"):
            paragraphs.append(introduction())
        system_text = "\n\n".join(filter(None, paragraphs))
        return (*([Message("system", system_text)] if system_text else []), Message("user", self._task.query))

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        names = {*self._tools, self._environment._ending.name}
        return tuple(document for document in self._environment._documents if document["function"]["name"] in names)

    def step(self, action: Action) -> Observation:
        """Carries out the calls in order, even after a refused one. Each call gets a message."""
        if self._is_finished:
            return self._refuse("the episode is over")
        if listen := find_method(self._world, "listen"):
            listen(self._cut_at_end(action))
        if not action.calls and self._environment._ends_by_text and action.error in ("", NO_CALL):
            self.answer, self._is_finished = read_spoken_answer(action), True
            return Observation(done=True)
        if not action.calls:
            return self._refuse((action.error or f"no call; end the episode by {self._environment._ending.name}")[:200])
        messages, all_ok = [], True
        for call_number, call in enumerate(action.calls, 1):
            is_last = self._is_finished or call_number > _MAX_CALLS_AT_ONCE
            try:
                if self._is_finished:
                    raise Refused("the episode is over; the rest were not carried out")
                if call_number > _MAX_CALLS_AT_ONCE:
                    raise Refused(f"only {_MAX_CALLS_AT_ONCE} calls at once; the rest were not carried out")
                reply_text = self._carry_out(call)
            except Refused as refusal:
                all_ok, reply_text = False, f"error: {refusal}"
            self._is_finished |= self._world_is_over()
            messages.append(Message("tool", reply_text))
            if is_last:
                break
        if finish_listening := find_method(self._world, "listened"):
            finish_listening()
            self._is_finished |= self._world_is_over()
        return Observation(tuple(messages), ok=all_ok, done=self._is_finished)

    def _cut_at_end(self, action: Action) -> Action:
        """The action, without the first call that ends the episode and without those after it."""
        end_indices = (index for index, call in enumerate(action.calls) if call.name == self._environment._ending.name)
        end_index = None if self._environment._ends_by_text else next(end_indices, None)
        return action if end_index is None else dataclasses.replace(action, calls=action.calls[:end_index])

    def state(self) -> Mapping[str, Any]:
        """The world, the answer, and whether the episode is finished."""
        world_state = state_of(self._world)
        content = world_state if isinstance(world_state, dict) else {"value": world_state}
        return {"world": content, "answer": self.answer, "finished": self._is_finished}

    def affordances(self) -> tuple[Action, ...]:
        """Calls worth trying, only working ones where they can be tried; then calls that end the episode."""
        if self._is_finished:
            return ()
        state = state_of(self._world)
        calls = self._list_calls(state)[:_MAX_OFFERED_CALLS]
        texts = dict.fromkeys(text for _, text in reversed(self._texts))
        answers = [text for text in texts if len(text) <= _ANSWER_CHARS][:_MAX_ANSWERS]
        if self._environment._ends_by_text:
            return (*(Action(calls=(call,)) for call in calls), *map(Action, answers), Action())
        end_name, parameter = self._environment._ending.name, self._environment._ending.first_parameter
        end_calls = [Call(end_name, {parameter: text}) for text in answers] if parameter is not None else []
        return tuple(Action(calls=(call,)) for call in (*calls, *end_calls, Call(end_name)))

    def evaluate(self) -> Evaluation:
        """The judge's verdict, or the comparison with the end of the task's solution, played in a second world.

        There is a check for each part of the state that the solution changes, one that the rest is as the solution
        leaves it, one for the answer if the solution gives one, and one that the episode is finished. The reward is 1.0
        if all hold, else 0.0. A task without a solution gets 0.0 and no checks. The partial reward is the share of
        right parts: those that the solution changes and that are as it leaves them, over all parts that it changes and
        all others that differ. An answer counts as a part that it changes.
        """
        judge = self._environment._judge
        if judge is not None:
            verdict = judge(self._task, self._world, self.answer, self._is_finished)
            if verdict is not None:
                return verdict if isinstance(verdict, Evaluation) else Evaluation(float(verdict))
        if not self._task.solution:
            return Evaluation(0.0)
        end_state = state_of(self._world)  # before the solution is played: some worlds allow no second one beside them
        start_state, goal_state, answer = self._environment._find_end(self._task)
        start_parts, goal, end_parts = (dict(_list_leaves(state)) for state in (start_state, goal_state, end_state))
        changes = [path for path in sorted(start_parts.keys() | goal.keys()) if start_parts.get(path) != goal.get(path)]
        other_paths = (start_parts.keys() | goal.keys() | end_parts.keys()) - set(changes)
        holds = [end_parts.get(path) == goal.get(path) for path in changes]
        wrong_count = sum(end_parts.get(path) != goal.get(path) for path in other_paths)
        checks = [Check("/".join(path) or "state", ok) for path, ok in zip(changes[:_MAX_CHECKS], holds, strict=False)]
        checks.append(Check("all else as expected", not wrong_count and all(holds[_MAX_CHECKS:])))
        if answer is not None:
            holds.append(is_same_answer(self.answer, answer))
            checks.append(Check("answer", holds[-1]))
        checks.append(Check("finished", self._is_finished))
        partial = sum(holds) / max(1, len(holds) + wrong_count)
        return Evaluation(float(all(check.passed for check in checks)), tuple(checks), partial)

    def close(self) -> None:
        if self._is_open and (close := find_method(self._world, "close")):
            close()

    def read_end(self) -> tuple[Any, str | None]:
        """The state of the world now, and the answer."""
        return state_of(self._world), self.answer

    def retire(self) -> None:
        """Keeps whatever serves the world from serving another episode."""
        if retire := find_method(self._world, "retire"):
            retire()

    def _carry_out(self, call: Call) -> str:
        end_tool = self._environment._ending
        if call.name != end_tool.name or self._environment._ends_by_text:
            reply_text = perform_call(self._tools, self._world, call)
            if reply_text != DONE_REPLY:
                self._texts = [*self._texts, (call.name, reply_text)][-_MAX_KEPT_TEXTS:]
            return reply_text
        value = call.arguments.get(end_tool.first_parameter) if end_tool.first_parameter is not None else None
        try:
            answer = value if value is None or isinstance(value, str) else canonical(copy_json(value, "the answer"))
        except TypeError as error:
            raise Refused(str(error)) from error
        reply_text = end_tool.call(self._world, call.arguments)
        self.answer, self._is_finished = self.answer if answer is None else answer, True
        return reply_text

    def _world_is_over(self) -> bool:
        """Whether the world has ended the episode."""
        over_method = find_method(self._world, "over")
        return over_method is not None and bool(over_method())

    def _find_offered_tools(self, documents: Iterable[Mapping[str, Any]]) -> Mapping[str, Tool]:
        """The tools of these documents. Raises EnvironmentFailure for one that the environment lacks or documents
        differently: the policy would be told of another tool."""
        own_tools = self._environment._tools
        offered_tools = read_tools(documents, allow_none=True)
        for name, tool in offered_tools.items():
            if name not in own_tools or own_tools[name].document() != tool.document():
                raise EnvironmentFailure(
                    f"the episode offers the tool {name!r:.100}, which the environment lacks or documents differently; "
                    "expected the same tools in every episode, or some of them"
                )
        return {name: own_tools[name] for name in offered_tools}

    def _refuse(self, reason: str) -> Observation:
        return Observation((Message("tool", f"error: {reason}"),), ok=False, done=self._is_finished)

    def propose_calls(self, tool_name: str) -> list[Call]:
        """The calls of one tool that are worth trying now."""
        return [call for call in self._list_calls(state_of(self._world), tool_name) if call.name == tool_name]

    def _list_calls(self, state: Any, only_tool: str = "") -> list[Call]:
        """The calls that the environment's own `affordances` names, or else calls from schemas and from values seen:
        a first one of each tool, or of the tool `only_tool`, then a second, and so on."""
        if self._environment._propose_calls is not None:
            return [Call(name, copy.deepcopy(args)) for name, args in self._environment._propose_calls(self._world)]
        shown = [(tool_name, parse_text(text)) for tool_name, text in reversed(self._texts)]
        # A value that is no object has the name of its tool: what `get_day` returns is a day.
        named = [value if isinstance(value, (dict, list)) else {tool_name: value} for tool_name, value in shown]
        value_index = index_values(*named, state, self._task.setup)
        salt = canonical(state)
        tools = [tool for tool in self._tools.values() if only_tool in ("", tool.name)]
        calls_of_tools = [self._draw_calls(tool, value_index, salt) for tool in tools]
        return [calls[rank] for rank in range(_MAX_CALLS_PER_TOOL) for calls in calls_of_tools if rank < len(calls)]

    def _draw_calls(self, tool: Tool, value_index: ValueIndex, salt: str) -> list[Call]:
        rng = random.Random(repr((tool.name, salt)))
        if tool.name == self._environment._ending.name:
            return []
        try:
            sources = self._environment.find_sources().get(tool.name)
            calls = list(draw_calls(tool, value_index, _MAX_TRIED_CALLS, rng, sources=sources))
        except (TypeError, ValueError, OverflowError, AttributeError):
            return []  # a schema that means nothing
        return [call for call in calls if self._call_works(call)][:_MAX_CALLS_PER_TOOL]

    def _call_works(self, call: Call) -> bool:
        """Whether the call works on a copy of the world; true if there is no copy."""
        fork = self._environment._fork_world or (copy.deepcopy if is_plain_json(self._world) else None)
        if fork is None or (world := fork(self._world)) is None:
            return True
        try:
            perform_call(self._tools, world, call)
        except (Refused, EnvironmentFailure, TypeError):
            return False
        finally:
            if close := find_method(world, "close"):
                close()
        return True


def _list_leaves(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The parts of a state, at most four levels deep, as (path, canonical JSON)."""
    if isinstance(state, dict) and state and len(path) < 4:
        for key, member in state.items():
            yield from _list_leaves(member, (*path, key))
    else:
        yield path, canonical(state)


# If a tool of the world has the first name, the second is used, and then the second with a number.
_END_NAME, _OTHER_NAME = "finish", "finish_episode"
_END_TEXT = "End the episode, with the answer if one was asked for."
_END_SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}


def choose_end_name(tool_names: Collection[str]) -> str:
    """The name of the tool that ends an episode in a world whose tools have the names `tool_names`."""
    candidates = itertools.chain((_END_NAME, _OTHER_NAME), (f"{_OTHER_NAME}_{suffix}" for suffix in itertools.count(2)))
    return next(candidate for candidate in candidates if candidate not in tool_names)


def find_end_tool(tools: Mapping[str, Tool], tool_name: str | None) -> Tool:
    """The world's tool of that name, or else a new one. None stands for a free name."""
    end_name = choose_end_name(tools) if tool_name is None else tool_name
    return tools.get(end_name) or Tool(end_name, _END_TEXT, _END_SCHEMA, lambda world, arguments: _check_end(arguments))


def end_task(task: Task, end_name: str) -> Task:
    """The task, with a call of the tool `end_name` at the end of its solution, if it has one."""
    if not task.solution or end_name in [call.name for call in task.solution[-1].calls]:
        return task
    return dataclasses.replace(task, solution=(*task.solution, Action(calls=(Call(end_name),))))


def _check_end(arguments: Mapping[str, Any]) -> str:
    if unknown_names := [argument_name for argument_name in arguments if argument_name != "answer"]:
        raise Refused(f"unknown argument {unknown_names[0]!r:.100}; expected answer, or nothing")
    return "ok"


def read_spoken_answer(action: Action) -> str | None:
    """The answer in an action without calls: its text without a thought, or None if there is none."""
    return action.text.rpartition("</think>")[2].strip() or None


def is_same_answer(answer_text: str | None, goal_text: str) -> bool:
    """Whether an answer is the expected one: as JSON, or as text without differences of case and white space."""
    if answer_text is None:
        return False
    answer, goal = parse_text(answer_text), parse_text(goal_text)
    if isinstance(answer, str) and isinstance(goal, str):
        return " ".join(answer.casefold().split()) == " ".join(goal.casefold().split())
    return canonical(answer) == canonical(goal)


def parse_text(text: str) -> Any:
    """The text as JSON, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

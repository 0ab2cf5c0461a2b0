"""The environment that a few functions make; see environments/tools/__init__.py."""

import contextlib
import dataclasses
import itertools
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, PolicyLoss, Traits, ask
from cojax.types import Action, Call, Evaluation, Message, Observation, Task, Triplet, content_hash
from . import wording
from .episode import End, Rules, ToolEpisode, ending_tool, plain_json, spoken_answer
from .toolset import Tool, toolset

_TRAITS = Traits(worded_alike=True)
# The splits that an environment without tasks to evaluate on has too.
_SPLITS = ("seed", "dev", "eval", "challenge")
# The most setups; ends of solutions that are kept; setups on which look-ups are found, and calls of each tool there.
_SETUPS, _ENDS, _TRIED, _CALLS = 100_000, 10_000, 3, 4
# Seconds in which these calls must be done, unless one call may take longer.
_PATIENCE = 10.0

Judge = Callable[[Task, Any, str | None, bool], Evaluation | float | None]
Tasks = Sequence[Task | Mapping[str, Any]]


class ToolEnvironment:
    """An environment from tools, `open` and setups.

    Raises ValueError, or TypeError for what is no JSON, where these cannot make one.
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
        instructions: str | Callable[[Any], str] = "",
        splits: Mapping[str, Tasks] | Tasks | None = None,
        phrase: Callable[[Sequence[Triplet]], str | None] | None = None,
        traits: Traits = _TRAITS,
    ):
        if not (isinstance(name, str) and name.strip()):
            raise ValueError(f"the environment's name is {name!r}; expected a word")
        made = toolset(tools, none=ending == "")
        ends = ending_tool(made, ending)
        told = traits if traits.commands else _with_command(traits, made)
        self.name, self.traits = name, dataclasses.replace(told, ending=ends.name)
        self._rules = Rules(
            made, open, ends, fork, judge, affordances, instructions,
            tuple(tool.document() for tool in {**made, ends.name: ends}.values() if tool.name),
        )  # fmt: skip
        self._phrase, self._given_lookups = phrase, None if lookups is None else frozenset(lookups)
        self._setups = _distinct(name, setups)
        self._splits = {**dict.fromkeys(_SPLITS[1:], ()), **_divided(name, splits, ends)}
        for task in itertools.chain.from_iterable(self._splits.values()):
            _check_calls(task, {*made, ends.name})
        self._ends: dict[str, End] = {}
        self._lookups: dict[str, bool | None] = {}  # None: its trial did not end
        self._lock, self._trying = threading.Lock(), threading.Lock()

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._rules.documents

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """The first `count` tasks of a split. `seed` orders the split `seed`: the setups, without query and solution.

        Raises ValueError for an unknown split.
        """
        if split == "seed":
            places = list(self._setups)
            random.Random(repr(("setups", seed))).shuffle(places)
            return tuple(places[:count])
        if split not in self._splits:
            known = ", ".join(("seed", *self._splits))
            raise ValueError(f"environment {self.name!r} has no split {split!r}; it has {known}")
        return self._splits[split][:count]

    def start(self, task: Task) -> ToolEpisode:
        return ToolEpisode(self._rules, task, self._end_of)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        if self._phrase is not None:
            return self._phrase(steps)
        if self._rules.spoken:
            steps = [_with_call(step) for step in steps]
        called = {call.name for step in steps for call in step.action.calls} - {self._rules.ending.name}
        return wording.phrase(steps, self._rules.ending.name, set(filter(self.is_lookup, called)))

    def is_lookup(self, tool: str) -> bool:
        """Whether a tool never changes the world: as the environment says, or else if it worked on the first setups and
        left every state as it was. Raises EnvironmentFailure where trying does not end within ten seconds, or within
        the deadline of its traits if that is longer."""
        if self._given_lookups is not None:
            return tool in self._given_lookups
        with self._trying:  # one trial at a time: side by side they would slow one another down
            if tool not in self._lookups:
                found: list[bool] = []
                trial = threading.Thread(target=lambda: found.append(self._changes_nothing(tool)), daemon=True)
                trial.start()
                trial.join(max(_PATIENCE, self.traits.deadline or 0.0))
                self._lookups[tool] = None if trial.is_alive() else found == [True]
            known = self._lookups[tool]
        if known is None:
            raise EnvironmentFailure(
                f"whether {tool!r} is a look-up is not known, as trying it takes too long; name all look-ups of "
                f"{self.name!r}: ToolEnvironment(…, lookups=[…])"
            )
        return known

    def _changes_nothing(self, tool: str) -> bool:
        """Whether some call of the tool worked on the first setups, and none changed a state."""
        worked = False
        for task in self._setups[:_TRIED]:
            with contextlib.suppress(EnvironmentFailure), contextlib.closing(self.start(task)) as episode:
                ask(episode.reset)
                for call in ask(episode.calls_of, tool)[:_CALLS]:
                    before = ask(episode.state)["world"]
                    worked |= ask(episode.step, Action(calls=(call,))).ok
                    if ask(episode.state)["world"] != before:
                        return False
        return worked

    def _end_of(self, task: Task) -> End:
        """The end of a task's solution, which is played once."""
        key = content_hash([task.setup, [[[call.name, call.arguments] for call in a.calls] for a in task.solution]])
        with self._lock:
            if key in self._ends:
                return self._ends[key]
        try:
            with contextlib.closing(self.start(task)) as episode:
                episode.reset()
                episode.retire()  # a server might tell a later episode of the solution
                start, _ = episode.end()
                for action in task.solution:
                    episode.step(action)
                end = (start, *episode.end())
        except PolicyLoss as loss:  # in a world of its own, which is not the policy's
            raise EnvironmentFailure(str(loss)) from loss
        with self._lock:
            if len(self._ends) >= _ENDS:
                del self._ends[next(iter(self._ends))]
            return self._ends.setdefault(key, end)


def _with_command(traits: Traits, tools: Mapping[str, Tool]) -> Traits:
    """The traits, in which a world's one tool takes a command if it takes free text and nothing else."""
    if len(tools) != 1:
        return traits
    (tool,) = tools.values()
    properties = tool.parameters["properties"]
    if len(properties) != 1 or not isinstance(inner := properties[tool.first], Mapping):
        return traits
    free = inner.get("type") == "string" and "enum" not in inner
    return dataclasses.replace(traits, commands={tool.name: str(tool.first)}) if free else traits


def _with_call(step: Triplet) -> Triplet:
    """A step whose text ends the episode, as a call of the nameless tool that ends it; any other step as it is."""
    if step.action.calls:
        return step
    answer = spoken_answer(step.action)
    call = Call("", {} if answer is None else {"answer": answer})
    return Triplet(Action(calls=(call,)), Observation((Message("tool", ""),), done=True), step.run)


def _distinct(name: str, setups: Iterable[Mapping[str, Any]]) -> tuple[Task, ...]:
    """A bare task for each different setup. Raises ValueError where there is none, or one is no JSON object."""
    found: dict[str, Task] = {}
    for number, setup in enumerate(itertools.islice(setups, _SETUPS), 1):
        if not isinstance(setup, Mapping):
            raise ValueError(f"setup {number} is {setup!r:.100}; expected a JSON object")
        try:
            task = Task(name, "", plain_json(setup, f"setup {number}"))
        except TypeError as error:
            raise ValueError(str(error)) from error
        found.setdefault(task.id, task)
    if not found:
        raise ValueError(f"environment {name!r} has no setups; expected at least one, {{}} if all episodes begin alike")
    return tuple(found.values())


def _divided(name: str, splits: Mapping[str, Tasks] | Tasks | None, ending: Tool) -> dict[str, tuple[Task, ...]]:
    """The tasks of each split. Tasks without splits are divided by a hash of their setups: a fifth is for dev."""
    if isinstance(splits, Mapping):
        return {split: tuple(_task(name, one, ending) for one in tasks) for split, tasks in splits.items()}
    found: dict[str, tuple[Task, ...]] = {"dev": (), "eval": ()}
    for one in splits or ():
        task = _task(name, one, ending)
        split = "dev" if int(content_hash(["split", task.setup]), 16) % 5 == 0 else "eval"
        found[split] = (*found[split], task)
    return found


def _check_calls(task: Task, names: Collection[str]) -> None:
    """Raises ValueError where the task's solution calls a tool that there is not: nothing would come of it."""
    for call in itertools.chain.from_iterable(action.calls for action in task.solution):
        if call.name not in names:
            known = ", ".join(sorted(filter(None, names)))
            raise ValueError(
                f"the solution of the task {task.query!r:.100} calls {call.name!r}, which is no tool; "
                f"the tools are {known}"
            )


def _task(name: str, given: Task | Mapping[str, Any], ending: Tool) -> Task:
    """The task, its solution ended. Raises ValueError for one that lacks a part."""
    if isinstance(given, Task):
        return given
    try:
        calls = [Call(call["name"], plain_json(call.get("arguments", {}), "arguments")) for call in given["solution"]]
        setup = plain_json(given["setup"], "a task's setup")
        query = str(given["query"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a task is {given!r:.200}; expected query, setup and solution ({error})") from error
    solution = [Action(calls=(call,)) for call in calls]
    if not calls or calls[-1].name != ending.name:
        solution.append(Action(calls=(Call(ending.name),)) if ending.name else Action())
    return Task(name, query, setup, tuple(solution))

"""One episode: calls on a world, and a verdict by comparison with the world that the solution leads to."""

import copy
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from cojax.environment import EnvironmentFailure
from cojax.types import NO_CALL, Action, Call, Check, Evaluation, Message, Observation, Task, canonical
from .arguments import Seen, calls_of, seen_in
from .toolset import DONE, Refused, Tool, perform, toolset

# The most calls of an action that are carried out.
_CALLS = 64
# The most actions offered in all, offered of one tool, and tried of one tool.
_OFFERED, _OF_TOOL, _TRIED = 200, 8, 24
# Observations whose values are offered as arguments, and as answers; the most characters of an answer offered.
_REMEMBERED, _ANSWERS, _ANSWER = 8, 4, 200
# The most conditions of a verdict that are listed by themselves.
_CHECKS = 50


@dataclasses.dataclass(frozen=True)
class Rules:
    """What is the same in all episodes of an environment; see environments/tools/__init__.py."""

    tools: Mapping[str, Tool]
    open: Callable[[Any], Any]
    ending: Tool
    fork: Callable[[Any], Any] | None
    judge: Callable[[Task, Any, str | None, bool], Any] | None
    affordances: Callable[[Any], Any] | None
    instructions: str | Callable[[Any], str]
    documents: tuple[Mapping[str, Any], ...]

    @property
    def spoken(self) -> bool:
        """Whether an action without calls ends the episode, and its text is the answer."""
        return not self.ending.name

    def world(self, setup: Mapping[str, Any]) -> Any:
        """A fresh world. Raises TypeError for one that has no state."""
        world = self.open(copy.deepcopy(plain_json(setup, "the setup")))
        if not is_json(world) and not callable(getattr(world, "state", None)):
            raise TypeError(
                f"`open` returned {type(world).__name__}, which has no state(); expected plain JSON, or an object with "
                "state() and, for tools that are documents, call(name, arguments)"
            )
        return world

    def copied(self, world: Any) -> Any:
        """An independent copy of the world; None where there is no way to copy it."""
        if self.fork is not None:
            return self.fork(world)
        return copy.deepcopy(world) if is_json(world) else None


def ability(world: Any, name: str) -> Callable[..., Any] | None:
    """A method that a world may have besides its state and its calls; None where it has none."""
    return getattr(world, name, None)


def is_json(world: Any) -> bool:
    """Whether a world is plain JSON, and so its own state."""
    return isinstance(world, (dict, list))


def plain_json(value: Any, what: str) -> Any:
    """A copy of some JSON. Raises TypeError, which says `what` it is, for a value that is none."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"{what} is no JSON: {error}; expected objects, lists, text, finite numbers, truth values and None"
        ) from error


def state_of(world: Any) -> Any:
    """The state of a world, as JSON. Raises TypeError for a state that is none."""
    return plain_json(world if is_json(world) else world.state(), "the world's state")


End = tuple[Any, Any, str | None]  # of a task's solution: the states in which it begins and ends, and the answer


class ToolEpisode:
    """An episode of one task. `reference` returns the end of the task's solution."""

    def __init__(self, rules: Rules, task: Task, reference: Callable[[Task], End]):
        self._rules, self._task, self._reference = rules, task, reference
        self._world: Any = None
        self._opened = self._finished = False
        self._tools = rules.tools
        self.answer: str | None = None
        self._shown: list[str] = []

    def reset(self) -> tuple[Message, ...]:
        self._world = self._rules.world(self._task.setup)
        self._opened = True
        if on_offer := ability(self._world, "on_offer"):
            self._tools = self._on_offer(on_offer())
        told = self._rules.instructions
        parts = [told if isinstance(told, str) else told(dict(self._task.setup))]
        if introduction := ability(self._world, "introduction"):
            parts.append(introduction())
        text = "\n\n".join(filter(None, parts))
        return (*([Message("system", text)] if text else []), Message("user", self._task.query))

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        offered = {*self._tools, self._rules.ending.name}
        return tuple(one for one in self._rules.documents if one["function"]["name"] in offered)

    def step(self, action: Action) -> Observation:
        """Carries out the calls in order, also after a refused one; one message for each call."""
        if self._finished:
            return self._refused("the episode is over")
        if listen := ability(self._world, "listen"):
            listen(self._before_its_end(action))
        if not action.calls and self._rules.spoken and action.error in ("", NO_CALL):
            self.answer, self._finished = spoken_answer(action), True
            return Observation(done=True)
        if not action.calls:
            return self._refused((action.error or f"no call; end the episode by {self._rules.ending.name}")[:200])
        messages, ok = [], True
        for number, call in enumerate(action.calls, 1):
            rest = self._finished or number > _CALLS
            try:
                if self._finished:
                    raise Refused("the episode is over; the rest were not carried out")
                if number > _CALLS:
                    raise Refused(f"only {_CALLS} calls at once; the rest were not carried out")
                text = self._carry_out(call)
            except Refused as refusal:
                ok, text = False, f"error: {refusal}"
            self._finished |= self._over()
            messages.append(Message("tool", text))
            if rest:
                break
        if listened := ability(self._world, "listened"):
            listened()
            self._finished |= self._over()
        return Observation(tuple(messages), ok=ok, done=self._finished)

    def _before_its_end(self, action: Action) -> Action:
        """The action without the first call that ends the episode, and those after it."""
        ends = (place for place, call in enumerate(action.calls) if call.name == self._rules.ending.name)
        end = None if self._rules.spoken else next(ends, None)
        return action if end is None else dataclasses.replace(action, calls=action.calls[:end])

    def state(self) -> Mapping[str, Any]:
        """The world, the answer, and whether the episode is finished."""
        world = state_of(self._world)
        held = world if isinstance(world, dict) else {"value": world}
        return {"world": held, "answer": self.answer, "finished": self._finished}

    def affordances(self) -> tuple[Action, ...]:
        """Calls worth trying, of those that can be tried only ones that work; then the calls that end the episode."""
        if self._finished:
            return ()
        state = state_of(self._world)
        calls = self._calls(state)[:_OFFERED]
        answers = [text for text in dict.fromkeys(reversed(self._shown)) if len(text) <= _ANSWER][:_ANSWERS]
        if self._rules.spoken:
            return (*(Action(calls=(call,)) for call in calls), *map(Action, answers), Action())
        ending, parameter = self._rules.ending.name, self._rules.ending.first
        ends = [Call(ending, {parameter: text}) for text in answers] if parameter is not None else []
        return tuple(Action(calls=(call,)) for call in (*calls, *ends, Call(ending)))

    def evaluate(self) -> Evaluation:
        """The judge's verdict, or the comparison with the end of the task's solution, played in a second world.

        There is a check for each part of the state that the solution changes, one that the rest is as the solution
        leaves it, one for the answer if the solution gives one, and one that the episode is finished. The reward is 1.0
        if all hold, else 0.0. A task without a solution gets 0.0 and no checks. The partial reward is the number of
        parts that the solution changes and that are as it leaves them, over the number of these and of other parts that
        differ; an answer counts as such a part.
        """
        rules = self._rules
        if rules.judge is not None:
            verdict = rules.judge(self._task, self._world, self.answer, self._finished)
            if verdict is not None:
                return verdict if isinstance(verdict, Evaluation) else Evaluation(float(verdict))
        if not self._task.solution:
            return Evaluation(0.0)
        reached = state_of(self._world)  # before the solution is played: some worlds allow no second one beside them
        begun, wanted, answer = self._reference(self._task)
        start, goal, now = (dict(_leaves(state)) for state in (begun, wanted, reached))
        changed = [path for path in sorted(start.keys() | goal.keys()) if start.get(path) != goal.get(path)]
        others = (start.keys() | goal.keys() | now.keys()) - set(changed)
        holds = [now.get(path) == goal.get(path) for path in changed]
        wrong = sum(now.get(path) != goal.get(path) for path in others)
        checks = [Check("/".join(path) or "state", held) for path, held in zip(changed[:_CHECKS], holds, strict=False)]
        checks.append(Check("all else as expected", not wrong and all(holds[_CHECKS:])))
        if answer is not None:
            holds.append(same_answer(self.answer, answer))
            checks.append(Check("answer", holds[-1]))
        checks.append(Check("finished", self._finished))
        partial = sum(holds) / max(1, len(holds) + wrong)
        return Evaluation(float(all(check.passed for check in checks)), tuple(checks), partial)

    def close(self) -> None:
        if self._opened and (close := ability(self._world, "close")):
            close()

    def end(self) -> tuple[Any, str | None]:
        """The state of the world now, and the answer."""
        return state_of(self._world), self.answer

    def retire(self) -> None:
        """Has what serves the world serve no other episode."""
        if retire := ability(self._world, "retire"):
            retire()

    def _carry_out(self, call: Call) -> str:
        ending = self._rules.ending
        if call.name != ending.name or self._rules.spoken:
            text = perform(self._tools, self._world, call)
            if text != DONE:
                self._shown = [*self._shown, text][-_REMEMBERED:]
            return text
        given = call.arguments.get(ending.first) if ending.first is not None else None
        try:
            answer = given if given is None or isinstance(given, str) else canonical(plain_json(given, "the answer"))
        except TypeError as error:
            raise Refused(str(error)) from error
        text = ending.call(self._world, call.arguments)
        self.answer, self._finished = self.answer if answer is None else answer, True
        return text

    def _over(self) -> bool:
        """Whether the world has ended the episode."""
        over = ability(self._world, "over")
        return over is not None and bool(over())

    def _on_offer(self, documents: Iterable[Mapping[str, Any]]) -> Mapping[str, Tool]:
        """The tools of these documents. Raises EnvironmentFailure for one that the environment has not, or has
        otherwise: the policy would be told of another."""
        own = self._rules.tools
        offered = toolset(documents, none=True)
        for name, tool in offered.items():
            if name not in own or own[name].document() != tool.document():
                raise EnvironmentFailure(
                    f"the episode offers the tool {name!r:.100}, which the environment has not, or has with another "
                    "document; expected tools that are the same in every episode, or some of them"
                )
        return {name: own[name] for name in offered}

    def _refused(self, reason: str) -> Observation:
        return Observation((Message("tool", f"error: {reason}"),), ok=False, done=self._finished)

    def calls_of(self, tool: str) -> list[Call]:
        """The calls of one tool that are worth trying now."""
        return [call for call in self._calls(state_of(self._world), tool) if call.name == tool]

    def _calls(self, state: Any, only: str = "") -> list[Call]:
        """Those that the environment's own `affordances` names; or else those from schemas and from values seen: of
        each tool, or of one tool `only`, a first one, then a second, and so on."""
        if self._rules.affordances is not None:
            return [Call(name, copy.deepcopy(given)) for name, given in self._rules.affordances(self._world)]
        seen = seen_in(*(read(text) for text in reversed(self._shown)), state, self._task.setup)
        salt = canonical(state)
        tools = [tool for tool in self._tools.values() if only in ("", tool.name)]
        of_tools = [self._of_tool(tool, seen, salt) for tool in tools]
        return [calls[n] for n in range(_OF_TOOL) for calls in of_tools if n < len(calls)]

    def _of_tool(self, tool: Tool, seen: Seen, salt: str) -> list[Call]:
        rng = random.Random(repr((tool.name, salt)))
        if tool.name == self._rules.ending.name:
            return []
        try:
            calls = list(calls_of(tool, seen, _TRIED, rng))
        except (TypeError, ValueError, OverflowError, AttributeError):
            return []  # a schema that means nothing
        return [call for call in calls if self._works(call)][:_OF_TOOL]

    def _works(self, call: Call) -> bool:
        """Whether the call works on a copy of the world; true where there is no copy."""
        copied = self._rules.copied(self._world)
        if copied is None:
            return True
        try:
            perform(self._tools, copied, call)
        except (Refused, EnvironmentFailure, TypeError):
            return False
        finally:
            if close := ability(copied, "close"):
                close()
        return True


def _leaves(state: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The parts of a state, at most four levels deep, as (path, canonical JSON)."""
    if isinstance(state, dict) and state and len(path) < 4:
        for name, inner in state.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, canonical(state)


# Where a tool of the world has the first name, the second is taken, and then that with a number.
_NAME, _OTHER = "finish", "finish_episode"
_SAID = "End the episode, with the answer if one was asked for."
_TAKES = {"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False}


def free_name(taken: Collection[str]) -> str:
    """The name of the tool that ends an episode in a world whose tools have the names `taken`."""
    names = itertools.chain((_NAME, _OTHER), (f"{_OTHER}_{number}" for number in itertools.count(2)))
    return next(name for name in names if name not in taken)


def ending_tool(tools: Mapping[str, Tool], name: str | None) -> Tool:
    """The tool of that name, which is added where the world has none; None stands for a name that is free."""
    named = free_name(tools) if name is None else name
    return tools.get(named) or Tool(named, _SAID, _TAKES, lambda world, arguments: _ended(arguments))


def ended(task: Task, ending: str) -> Task:
    """The task, whose solution ends with a call of the tool `ending`, if it has a solution."""
    if not task.solution or ending in [call.name for call in task.solution[-1].calls]:
        return task
    return dataclasses.replace(task, solution=(*task.solution, Action(calls=(Call(ending),))))


def _ended(arguments: Mapping[str, Any]) -> str:
    if strange := [name for name in arguments if name != "answer"]:
        raise Refused(f"unknown argument {strange[0]!r:.100}; expected answer, or nothing")
    return "ok"


def spoken_answer(action: Action) -> str | None:
    """The answer in an action without calls: its text without a thought, None where there is none."""
    return action.text.rpartition("</think>")[2].strip() or None


def same_answer(given: str | None, expected: str) -> bool:
    """Whether an answer is the expected one: as JSON, or as text without differences of case and white space."""
    if given is None:
        return False
    ours, theirs = read(given), read(expected)
    if isinstance(ours, str) and isinstance(theirs, str):
        return " ".join(ours.casefold().split()) == " ".join(theirs.casefold().split())
    return canonical(ours) == canonical(theirs)


def read(text: str) -> Any:
    """The JSON that a text is, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text

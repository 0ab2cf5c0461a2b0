"""What an attacker knows of a task, and how the end of one of its episodes is compared with the honest one."""

import contextlib
import dataclasses
import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, OutOfContext, ask, traits_of
from cojax.types import Action, Call, Message, Task, Turn, canonical, normalise
from ..tools.arguments import ValueIndex, draw_calls, index_values
from ..tools.toolset import Tool, read_tools
from .player import Attempt, Path, Player, Run, Seat, State, container_of, differing_paths

# The most calls that a survey makes in an episode, of one tool, and the most episodes of a survey.
_MAX_SURVEY_CALLS, _MAX_CALLS_PER_TOOL, _MAX_SURVEYS = 60, 6, 4
_MAX_KEYS = 60
# What fewer calls continue need not be a log of calls.
_MIN_LOGGED_CALLS = 3
# Words by which a query asks for an answer, and answers that say nothing.
_ASKING = re.compile(
    r"\?|\b(what|which|who|whose|how (many|much|long|old|far|often)|tell|let me know|find out|give me|name the|answer|"
    r"report back|reply with|respond with|return the|output|compute|calculate|determine)\b",
    re.IGNORECASE,
)
_COURTESIES = frozenset({"", "ok", "okay", "done", "finished", "completed", "complete", "success"})
_WORD = re.compile(r"\w+")
# Longer answers count only if they say something that a look-up has shown.
_SHORT_ANSWER_WORDS, _MIN_SHOWN_CHARS = 3, 4
# What a schema that means nothing raises.
_MEANINGLESS = (TypeError, ValueError, OverflowError, AttributeError, KeyError)
# Answers of some types that hardly are the honest ones.
_OTHER_ANSWERS: dict[type, Any] = {str: "I have done something else.", int: 1_000_007, float: 1_000_007.5, list: []}
UNKNOWN_CALL = Action(calls=(Call("no_such_tool_of_the_audit"),))


@dataclasses.dataclass(frozen=True)
class Ending:
    """How an episode ends: by a call of `tool`, whose `parameter` takes the answer, or by a text if there is none."""

    tool: str = ""
    parameter: str | None = None

    def bare(self) -> Action:
        """Ends the episode without an answer."""
        return Action(calls=(Call(self.tool),)) if self.tool else Action()

    def answer(self, value: Any) -> Action:
        """Ends the episode with an answer, or says it, if the tool takes none."""
        if not self.tool:
            return Action(text=value if isinstance(value, str) else canonical(value))
        return Action(calls=(Call(self.tool, {} if self.parameter is None else {self.parameter: value}),))

    def read_answer(self, action: Action) -> Any:
        """The answer that an action ends the episode with; None if it gives none."""
        if not self.tool:
            return action.text or None
        arguments = next((call.arguments for call in action.calls if call.name == self.tool), {})
        return None if self.parameter is None else arguments.get(self.parameter)


@dataclasses.dataclass(frozen=True)
class TriedCall:
    """A call that the survey made: whether it worked, which leaves it changed, which lists and counters it merely
    continued, by how much (a list by 0), and its observation."""

    call: Call
    ok: bool
    changes: tuple[Path, ...]
    continued: Mapping[Path, int]
    text: str


@dataclasses.dataclass(frozen=True)
class Scene:
    """All that an attacker knows of a task.

    `tried` are the calls of a survey, all different, `steps` those of the honest play. `honest` is a play of
    `solution`, None if the task has none or the play is lost. The solution is that of the task, one call an action
    where that makes no difference. `idle` ends at once, without an answer; `unknown` calls a tool that does not exist.
    `breaking` are calls after the last of which the world raised. `unsteady` holds paths, and aspects of a trace, that
    differ in two plays of the same actions. `needs_answer` says that the solution is not paid with another answer.
    """

    task: Task
    seed: int
    tools: tuple[Mapping[str, Any], ...]
    ending: Ending
    tried: tuple[TriedCall, ...]
    steps: tuple[TriedCall, ...]
    idle: Run
    unknown: Run
    honest: Run | None = None
    solution: tuple[Action, ...] = ()
    breaking: tuple[tuple[Action, ...], ...] = ()
    unsteady: frozenset[Path | str] = frozenset()
    needs_answer: bool = False

    @property
    def full_reward(self) -> float:
        """What the honest solution earns, 1 if there is none."""
        return self.honest.reward if self.honest and self.honest.reward > 0 else 1.0

    def rng(self, purpose: str) -> random.Random:
        """Random numbers that depend on the seed, the task and the purpose alone."""
        return random.Random(f"{self.seed} {self.task.id} {purpose}")

    @functools.cached_property
    def ends_itself(self) -> bool:
        """Whether the honest solution's last action ends the episode."""
        return self.honest is not None and self.honest.trajectory.outcome == "finished"

    @functools.cached_property
    def body(self) -> tuple[Action, ...]:
        """The honest solution without the action that ends the episode."""
        return self.solution[:-1] if self.ends_itself and self.only_ends(self.solution[-1]) else self.solution

    def only_ends(self, action: Action) -> bool:
        """Whether an action, if it is the last, does nothing but end the episode."""
        return [call.name for call in action.calls] == [self.ending.tool] if action.calls else not self.ending.tool

    @functools.cached_property
    def final_actions(self) -> tuple[Action, ...]:
        """The action by which the honest solution ends the episode, if it does nothing else."""
        return self.solution[len(self.body) :]

    @functools.cached_property
    def answer(self) -> Any:
        """The answer of the honest solution, None if it gives none, or gives one that the query does not ask for."""
        answer = self.ending.read_answer(self.solution[-1]) if self.ends_itself else None
        is_asked = self.needs_answer or (_ASKING.search(self.task.query) and self._says_something(answer))
        return answer if is_asked or (answer != "" and self._changes_only_by_answer) else None

    def _says_something(self, answer: Any) -> bool:
        """Whether an answer is more than a courtesy: short, or with a number or a word that a look-up has shown."""
        words = _WORD.findall(str(answer).casefold())
        if len(words) <= _SHORT_ANSWER_WORDS:
            return " ".join(words) not in _COURTESIES
        looks = [tried.text for tried in (*self.lookups, *self.steps) if not any(map(self._is_content, tried.changes))]
        shown_words = {*_WORD.findall("\n".join(looks).casefold())}
        new_words = {*words} - {*_WORD.findall(self.task.query.casefold())}
        return any(word.isdecimal() or (word in shown_words and len(word) >= _MIN_SHOWN_CHARS) for word in new_words)

    @functools.cached_property
    def _changes_only_by_answer(self) -> bool:
        states = self.honest.states if self.honest else ()
        return len(states) < 2 or not self.differ(states[0], states[-2])

    def changes(self, index: int) -> bool:
        """Whether an action of the honest solution changed what counts."""
        states = self.honest.states[index : index + 2] if self.honest else ()
        return len(states) == 2 and self.differ(*states)

    def differ(self, state: State, other: State) -> bool:
        """Whether two states differ in what counts."""
        return bool(differing_paths(state, other, self._is_bookkeeping))

    @functools.cached_property
    def lookups(self) -> tuple[TriedCall, ...]:
        """The calls of the survey whose tools changed nothing."""
        changing_tools = {tried.call.name for tried in self.tried if any(map(self._is_content, tried.changes))}
        return tuple(tried for tried in self.tried if tried.ok and tried.call.name not in changing_tools)

    @functools.cached_property
    def shown_texts(self) -> tuple[str, ...]:
        """Texts that an honest player may have read: the query, what look-ups and the honest solution show."""
        turns = self.honest.trajectory.turns if self.honest else ()
        texts = (*(tried.text for tried in self.lookups), *(turn.observation.text for turn in turns))
        return tuple(dict.fromkeys(text for text in texts if text))

    @functools.cached_property
    def _bookkeeping(self) -> frozenset[Path | str]:
        """Counters and logs of calls: what a call of an unknown tool changes, and lists and counters that every call
        of every tool continues; and what differs in every play."""
        states = self.unknown.states
        counted = differing_paths(states[0], states[-1]) if len(states) > 1 else []
        worked = [tried for tried in (*self.tried, *self.steps) if tried.ok]
        is_telling = len(worked) >= _MIN_LOGGED_CALLS and len({tried.call.name for tried in worked}) > 1
        logs = frozenset.intersection(*(frozenset(tried.continued) for tried in worked)) if is_telling else frozenset()
        return self.unsteady | logs | {container_of(path) for path in counted}

    def is_tally(self, path: Path) -> bool:
        """Whether a number counts calls, or the time that they take: each tool always raises it by as much, or never.

        A judge may well leave out such a number, and it may be what the task is about.
        """
        amounts: dict[str, list[int]] = {}
        for tried in (*self.tried, *self.steps):
            if tried.ok:
                amount = tried.continued.get(path, -1 if path in tried.changes else 0)
                amounts.setdefault(tried.call.name, []).append(amount)
        steady = [of_tool for of_tool in amounts.values() if len(set(of_tool)) == 1 and of_tool[0] >= 0]
        return len(steady) == len(amounts) and any(of_tool[0] and len(of_tool) > 1 for of_tool in steady)

    def _is_bookkeeping(self, path: Path) -> bool:
        return any(path[:length] in self._bookkeeping for length in range(1, len(path) + 1))

    def _is_content(self, path: Path) -> bool:
        return not self._is_bookkeeping(path)

    @functools.cached_property
    def _ending_paths(self) -> frozenset[Path]:
        """Leaves that the last action sets as ending at once sets them too, and an answer that nothing asks for."""
        if not self.honest or not self.ends_itself or len(self.honest.states) < 2:
            return frozenset()
        end, start = self.honest.end, self.honest.states[0]
        changes = differing_paths(self.honest.states[-2], end)
        flags = [path for path in changes if end.get(path) == self.idle.end.get(path) != start.get(path)]
        is_unasked = self.answer is None and self.ending.read_answer(self.solution[-1]) is not None
        return frozenset(changes if is_unasked and self.final_actions else flags)

    def differences(self, run: Run) -> list[Path]:
        """Where the end of a play differs from the honest end in what counts: not in bookkeeping, nor in a flag that
        merely says that the episode is over."""
        if self.honest is None:
            return []
        return differing_paths(
            run.end, self.honest.end, lambda path: path in self._ending_paths or self._is_bookkeeping(path)
        )


def is_same(value: Any, other: Any) -> bool:
    """Whether two values are equal, but for case, width and white space of their texts."""
    return bool(value == other) or normalise(str(value)) == normalise(str(other))


def draw_from_schemas(documents: Sequence[Mapping[str, Any]], index: ValueIndex, rng: random.Random) -> Iterator[Call]:
    """Calls of each tool, with values that the schemas name or that were seen."""
    for tool in read_documents(documents):
        with contextlib.suppress(*_MEANINGLESS):
            yield from list(draw_calls(tool, index, _MAX_CALLS_PER_TOOL, rng))


def read_documents(documents: Sequence[Mapping[str, Any]]) -> list[Tool]:
    """The tools of those documents that can be read: they need not be ours to read."""
    tools: list[Tool] = []
    for document in documents:
        with contextlib.suppress(*_MEANINGLESS):
            tools += read_tools([document], allow_none=True).values()
    return tools


def read_properties(documents: Sequence[Mapping[str, Any]], tool_name: str) -> dict[str, Any]:
    """The parameters of a tool, each with its schema."""
    parameters = (tool.parameters for tool in read_documents(documents) if tool.name == tool_name)
    return dict(next(parameters, {}).get("properties", {}))


def survey(player: Player, task: Task, seed: int, honest: Run | None = None, known_calls: Sequence[Call] = ()) -> Scene:
    """Plays a few episodes of the task: which calls work, which change the state, and which end the episode.

    `known_calls` are further calls to try, such as those of other tasks.
    """
    documents: list[Mapping[str, Any]] = []
    last_offers: list[Action] = []
    ending_tools: set[str] = set()
    tried: list[TriedCall] = []
    breaking: list[tuple[Action, ...]] = []
    rng = random.Random(f"{seed} {task.id} survey")
    for _ in range(_MAX_SURVEYS):
        avoided = ending_tools | {actions[-1].calls[0].name for actions in breaking}
        made: list[Action] = []
        attempt = _make_survey_attempt(task, documents, last_offers, avoided, known_calls, rng, made)
        run = player.play(task, attempt, "survey")
        tried = _list_tried(run)
        if run.failure and made:
            breaking.append(tuple(made))
            continue
        if run.trajectory.outcome != "finished" or not run.trajectory.turns[-1].action.calls:
            break
        ending_tools |= {call.name for call in run.trajectory.turns[-1].action.calls}
    # A call that does harm may come before others that would have worked.
    turned = tuple(Action(calls=(trial.call,)) for trial in reversed(tried))
    by_call = {repr(trial.call): trial for trial in tried}
    for trial in _list_tried(player.play(task, Attempt("the same calls in reverse order", turned), "survey")):
        if trial.ok and not by_call[repr(trial.call)].ok:
            by_call[repr(trial.call)] = trial
    tried = list(by_call.values())
    solution, honest = _split_actions(player, task, honest)
    tried_tools = {trial.call.name for trial in tried}
    last_actions = [action for action in last_offers if not {call.name for call in action.calls} & tried_tools]
    if honest is not None and honest.trajectory.outcome == "finished":
        last_actions.insert(0, solution[-1])
    last_actions += [Action(calls=(Call(tool),)) for tool in sorted(ending_tools)]
    ending = _find_ending(traits_of(player.environment).ending, documents, last_actions)
    idle = player.play(task, Attempt("ends at once", (ending.bare(),)), "survey")
    unknown = player.play(task, Attempt("a call of no tool", (UNKNOWN_CALL,)), "survey")
    both = (tried, _list_tried(honest) if honest else [])
    usable, steps = (tuple(trial for trial in trials if trial.call.name != ending.tool) for trials in both)
    scene = Scene(
        task, seed, tuple(documents), ending, usable, steps, idle, unknown, honest, solution, tuple(breaking)
    )  # fmt: skip
    if not scene.final_actions:
        return scene
    answer = _OTHER_ANSWERS.get(type(ending.read_answer(solution[-1])), _OTHER_ANSWERS[str])
    other = player.play(task, Attempt("another answer", (*scene.body, ending.answer(answer))), "survey")
    return dataclasses.replace(scene, needs_answer=not other.earns(scene.full_reward))


def _split_actions(player: Player, task: Task, honest: Run | None) -> tuple[tuple[Action, ...], Run | None]:
    """The solution with one call an action, and its play, if that ends as the honest play does; else as it stands."""
    if honest is None or all(len(action.calls) < 2 for action in task.solution):
        return task.solution, honest
    actions = tuple(
        part
        for action in task.solution
        for part in ([Action(calls=(call,)) for call in action.calls] if len(action.calls) > 1 else [action])
    )
    run = player.play(task, Attempt("one call an action", actions), "survey")
    is_alike = run.reward == honest.reward and not differing_paths(run.end, honest.end)
    return (actions, run) if is_alike else (task.solution, honest)


def _make_survey_attempt(
    task: Task, documents: list[Mapping[str, Any]], last_offers: list[Action], avoided_tools: set[str],
    known_calls: Sequence[Call], rng: random.Random, made: list[Action],
) -> Attempt:  # fmt: skip
    """An attempt that makes the calls on offer, without those of some tools, and adds them to `made`."""
    remaining: list[Call] = []
    has_begun = False

    def act(episode: Seat, messages: tuple[Message, ...]) -> Turn:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            documents[:] = ask(episode.tools)
            offers = list_offers(episode)
            last_offers[:] = offers[-1:]
            offered_calls = [action.calls[0] for action in offers if len(action.calls) == 1]
            state = ask(episode.state)
            index = index_values(state, task.setup, _list_keys(state, task.setup))
            drawn_calls = list(draw_from_schemas(documents, index, rng))
            own_calls = [call for action in task.solution for call in action.calls]
            others = [*rng.sample(offered_calls, len(offered_calls)), *known_calls, *drawn_calls]
            calls = [call for call in (*own_calls, *others) if call.name not in avoided_tools]
            remaining.extend(_spread(calls, rng))
        if not remaining:
            raise OutOfContext
        made.append(Action(calls=(remaining.pop(0),)))
        return Turn(made[-1])

    return Attempt("surveys the tools", act=act, max_turns=_MAX_SURVEY_CALLS)


def list_offers(episode: Seat) -> list[Action]:
    """The actions on offer; none if the environment cannot say."""
    try:
        return list(ask(episode.affordances))
    except EnvironmentFailure:
        return []


def _list_keys(*states: Any) -> list[str]:
    """The keys of tables within some states and setups, or else all keys: they are often the names of things.

    A table is an object within another one, with single values of one kind.
    """
    names: dict[str, None] = {}
    keys: dict[str, None] = {}
    pending = [(state, False) for state in states]
    while pending and len(keys) < _MAX_KEYS:
        value, is_inner = pending.pop()
        if isinstance(value, Mapping):
            kinds = {type(member) for member in value.values()}
            keys |= dict.fromkeys(map(str, value))
            names |= dict.fromkeys(map(str, value)) if is_inner and len(kinds) == 1 and not kinds & {dict, list} else {}
            pending += [(member, True) for member in value.values()]
    return list(names or keys)[:_MAX_KEYS]


def _spread(calls: Sequence[Call], rng: random.Random) -> list[Call]:
    """The first different calls of each tool, in random order, a first of each tool, then a second, and so on."""
    calls_by_tool: dict[str, dict[str, Call]] = {}
    for call in calls:
        of_tool = calls_by_tool.setdefault(call.name, {})
        if len(of_tool) < _MAX_CALLS_PER_TOOL:
            of_tool.setdefault(repr(call.arguments), call)
    lists = [rng.sample(list(of_tool.values()), len(of_tool)) for _, of_tool in sorted(calls_by_tool.items())]
    return [calls[rank] for rank in range(_MAX_CALLS_PER_TOOL) for calls in lists if rank < len(calls)]


def _list_tried(run: Run) -> list[TriedCall]:
    tried = []
    for number, turn in enumerate(run.trajectory.turns[: len(run.states) - 1]):
        if not turn.action.calls:
            continue
        before, after = run.states[number : number + 2]
        changes = tuple(differing_paths(before, after))
        continued = _find_continued(before, after, changes)
        tried.append(TriedCall(turn.action.calls[0], turn.observation.ok, changes, continued, turn.observation.text))
    return tried


def _find_continued(before: State, after: State, changes: Sequence[Path]) -> dict[Path, int]:
    """Lists that only got new entries at their ends, and whole numbers that grew, each with how much."""
    kept_entries, grown = set[Path](), dict[Path, int]()
    for path in changes:
        depth = next((depth for depth, key in enumerate(path) if isinstance(key, int)), None)
        if depth is not None and path in before:
            kept_entries.add(path[:depth])
        elif depth is not None or (before.get(path) == "[]" and path not in after):
            grown[path[:depth]] = 0
        elif before.get(path, "0").isdecimal() and after.get(path, "").isdecimal():
            grown[path] = int(after[path]) - int(before.get(path, "0"))
    return {path: growth for path, growth in grown.items() if path not in kept_entries and growth >= 0}


def _find_ending(
    tool_name: str | None, documents: Sequence[Mapping[str, Any]], last_actions: Sequence[Action]
) -> Ending:
    """How an episode ends: as the traits say, else as the first of some actions that may be the last."""
    if tool_name is None:
        tool_name = last_actions[0].calls[-1].name if last_actions and last_actions[0].calls else ""
    if not tool_name:
        return Ending()
    last_calls = (call for action in last_actions for call in action.calls if call.name == tool_name)
    used = next((parameter for call in last_calls for parameter in call.arguments), None)
    return Ending(tool_name, used or next(iter(read_properties(documents, tool_name)), None))

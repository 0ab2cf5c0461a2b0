"""The nouns of the loop: frozen records of tasks, actions, episodes, signals and drafts.

They live on the host, never change, and need only the standard library. `to_json` and `from_json` write and read them.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NoReturn

from cojax.unicode_forms import normalise_form

Outcome = Literal["finished", "truncated", "environment_error", "timeout", "engine_error", "cut"]
Origin = str  # how a task came to be: seed, or the origin of the expedition that led to it
Status = Literal["accepted", "retained", "discarded"]

# Outcomes that say nothing about the policy and never become a reward: the machinery failed, or the step did not wait
# for the episode ("cut").
INFRASTRUCTURE: frozenset[str] = frozenset({"environment_error", "engine_error", "cut"})
ROLES: frozenset[str] = frozenset({"system", "user", "assistant", "tool"})
# `Action.error` of a text that contains no tool call, not even a malformed one.
NO_CALL = "no tool call found"
# Stands for the partial reward of an environment that gives none.
NOT_GIVEN = -1.0


@dataclasses.dataclass(frozen=True)
class Message:
    """One chat message; `role` is one of ROLES."""

    role: str
    content: str


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call: the tool's name and its JSON arguments."""

    name: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class Action:
    """What an actor wrote, and the tool calls parsed from it.

    A tool-calling environment reads `calls`, a code environment reads `text`. `error` says why no call could be parsed,
    so that the environment can answer as a real API would.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Observation:
    """The environment's reply: messages for the next turn, whether the action worked, whether the episode is over."""

    messages: tuple[Message, ...] = ()
    ok: bool = True
    done: bool = False

    @property
    def text(self) -> str:
        return "\n".join(message.content for message in self.messages)


@dataclasses.dataclass(frozen=True)
class Lineage:
    """Why a synthesized task exists: parent task, signal, source episode, explorer runs, verdict, step."""

    parent: str = ""
    signal: str = ""
    episode: str = ""
    explorer: str = ""
    runs: tuple[int, ...] = ()
    verdict: str = ""
    evidence: tuple[str, ...] = ()
    step: int = 0


@dataclasses.dataclass(frozen=True)
class Task:
    """A goal in an environment. `id` hashes environment, query and setup, but not the solution or the origin."""

    environment: str
    query: str
    setup: Mapping[str, Any] = dataclasses.field(hash=False)
    solution: tuple[Action, ...] = dataclasses.field(default=(), hash=False)
    origin: Origin = "seed"
    lineage: Lineage | None = None

    @functools.cached_property
    def id(self) -> str:
        return content_hash([self.environment, normalise(self.query), self.setup])


@dataclasses.dataclass(frozen=True)
class Turn:
    """One interaction: an action, the observation it led to, and the tokens behind it.

    `prompt_tokens` holds only the tokens rendered since the last turn. `action_tokens` are exactly those sampled, stop
    token included, and `action_logprobs` their log-probs under the sampling distribution. All three are empty if the
    actor is not a policy. `weights_version` is the version that sampled the last token. If weights changed during the
    action, `spans` lists (version, tokens) of each stretch, oldest first. `routes` is as in `Completion`.
    `engine_seconds` is the engine's time for the action, waiting included; `environment_seconds` is the time of the
    environment's step.
    """

    action: Action
    observation: Observation = Observation()
    prompt_tokens: tuple[int, ...] = ()
    action_tokens: tuple[int, ...] = ()
    action_logprobs: tuple[float, ...] = ()
    weights_version: int = -1
    spans: tuple[tuple[int, int], ...] = ()
    routes: str = ""
    engine_seconds: float = dataclasses.field(default=0.0, compare=False)
    environment_seconds: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Check:
    """One condition of success and whether it held."""

    name: str
    passed: bool


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An environment's verdict on an episode: reward in [0, 1], the checks behind it, and the partial reward.

    `partial` in [0, 1] says how much of the task was achieved. It orders failures and never decides success. If the
    environment gives none, it is the share of checks that passed, or the reward if there are no checks.
    """

    reward: float
    checks: tuple[Check, ...] = ()
    partial: float = NOT_GIVEN

    def __post_init__(self) -> None:
        _fill_partial_reward(self)


def _fill_partial_reward(verdict: "Evaluation | Trajectory") -> None:
    """Fills in the partial reward if the environment gave none."""
    if verdict.partial == NOT_GIVEN:
        checks = verdict.checks
        share = sum(check.passed for check in checks) / len(checks) if checks else verdict.reward
        object.__setattr__(verdict, "partial", share)


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One episode: opening messages, then turns, then the verdict, as in `Evaluation`. `episode` is its id.

    `opening_seconds` and `verdict_seconds` are how long the environment took to start it and to evaluate it.
    """

    task: Task
    episode: str = ""
    opening: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    reward: float = 0.0
    checks: tuple[Check, ...] = ()
    outcome: Outcome = "finished"
    error: str = ""
    partial: float = NOT_GIVEN
    opening_seconds: float = dataclasses.field(default=0.0, compare=False)
    verdict_seconds: float = dataclasses.field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        _fill_partial_reward(self)

    @property
    def valid(self) -> bool:
        """Whether the episode counts: it did not end in an infrastructure failure."""
        return self.outcome not in INFRASTRUCTURE

    @property
    def replayed(self) -> int:
        """The number of actions at the episode's start that no policy sampled: those of its task's prefix."""
        return next((turn_index for turn_index, turn in enumerate(self.turns) if turn.action_tokens), len(self.turns))


@dataclasses.dataclass(frozen=True)
class Group:
    """K trajectories of one task, ordered by sample."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    @functools.cached_property
    def valid(self) -> tuple[Trajectory, ...]:
        return tuple(trajectory for trajectory in self.trajectories if trajectory.valid)

    @property
    def live(self) -> bool:
        """Whether the valid trajectories differ in reward; otherwise there is nothing to learn from the group."""
        return len({trajectory.reward for trajectory in self.valid}) > 1

    @property
    def solved(self) -> int:
        """The number of valid trajectories with full reward, 1."""
        return sum(trajectory.reward >= 1.0 for trajectory in self.valid)

    @property
    def score(self) -> float:
        """Mean reward of the valid trajectories; 0 if there are none."""
        return sum(trajectory.reward for trajectory in self.valid) / len(self.valid) if self.valid else 0.0


@dataclasses.dataclass(frozen=True)
class Signal:
    """A weakness seen in one episode. `focus` names the tools it is about; `evidence` is one readable line."""

    kind: str
    task: str
    episode: str
    evidence: str
    focus: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ExplorationContext:
    """What reflection tells the explorer (CoEvolve §3.2).

    `kind` names its guidance. `plan` lists the tools to use, in order; () means those of the task's solution.
    `Guidance.whole` says whether every task found must use them all.
    """

    task: Task
    kind: Origin
    episode: str = ""
    summary: str = ""
    failure_cause: str = ""
    instability_pattern: str = ""
    focus_patterns: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    do_not_repeat: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Triplet:
    """One explored interaction: an action, the observation that followed, and the run they belong to."""

    action: Action
    observation: Observation
    run: int


@dataclasses.dataclass(frozen=True)
class TaskDraft:
    """A task proposed by abstraction, not yet validated.

    `setup` is where the exploration started. `objections` lists the rules that the draft is known to break, one line
    each. A draft with objections never becomes a task.
    """

    environment: str
    setup: Mapping[str, Any]
    description: str
    query: str
    solution: tuple[Action, ...]
    criterion: str
    runs: tuple[int, ...] = ()
    objections: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of validation: a status, and one readable line of evidence for each examination.

    `difficulty` is the share of attempts on the query alone that failed, None if there were none. `quarantine` names
    the rule that asks a person to look, or is "".
    """

    status: Status
    evidence: tuple[str, ...] = ()
    difficulty: float | None = None
    quarantine: str = ""


def signature(action: Action) -> str:
    """The action as one readable line: its calls with their arguments, or its text if it has no calls."""

    def write_call(call: Call) -> str:
        return f"{call.name}({', '.join(f'{parameter}={value}' for parameter, value in call.arguments.items())})"

    return "; ".join(map(write_call, action.calls)) or action.text


def normalise(text: str) -> str:
    """The text with case, width and white space made uniform; queries that differ only in these count as the same."""
    return " ".join(normalise_form("NFKC", text).casefold().split())


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def content_hash(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def setup_hash(task: Task) -> str:
    """A hash of the environment and the setup of a task."""
    return content_hash([task.environment, task.setup])


def to_json(record: Any) -> Any:
    """A record as plain JSON values."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: to_json(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_json(item) for item in record]
    return record


def from_json(value_type: Any, value: Any, check: Callable[[Any, Any], Any] = lambda value_type, value: value) -> Any:
    """The record of type `value_type` that `to_json` wrote as `value`. Unknown keys raise TypeError.

    `check` gets the type and the value of every part that is not itself a record. It returns the value or raises.
    """
    generic_type = typing.get_origin(value_type)
    if isinstance(value_type, type) and dataclasses.is_dataclass(value_type):
        field_types = _field_types(value_type)
        if unknown_keys := set(check(dict, value)) - set(field_types):
            raise TypeError(f"{value_type.__name__} has no field {sorted(unknown_keys)}; it has {sorted(field_types)}")
        return value_type(**{name: from_json(field_types[name], item, check) for name, item in value.items()})
    if generic_type is tuple:
        return tuple(from_json(typing.get_args(value_type)[0], item, check) for item in check(list, value))
    if generic_type in (types.UnionType, typing.Union):
        inner_type = next(member for member in typing.get_args(value_type) if member is not type(None))
        return None if value is None else from_json(inner_type, value, check)
    return check(value_type, value)


_field_types = functools.cache(typing.get_type_hints)


def parse_json(
    text: str, *, finite: bool = True, hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None
) -> Any:
    """The value of a JSON text.

    If `finite`, numbers beyond the range of a float, such as 1e999, are refused; the check costs time at every float.
    `hook` builds an object from its pairs. Raises ValueError, with the reason, for a text that is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite if finite else None, object_pairs_hook=hook)
    except RecursionError as error:
        raise ValueError("its JSON is too deep") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is too large")
    return value


def nesting(text: str) -> int:
    """How deep brackets nest. Those inside strings count too, so the result is never too small."""
    return max(itertools.accumulate(1 if char in "[{" else -1 if char in "]}" else 0 for char in text), default=0)

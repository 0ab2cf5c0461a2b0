"""Plays attempts at tasks through `cojax.environment.play`, with a deadline for each call, and counts them."""

import dataclasses
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, Episode, traits_of
from cojax.environment.replay import follow, record_states
from cojax.environment.watch import watched_play
from cojax.types import Action, Message, Task, Trajectory, Turn, canonical

Path = tuple[str | int, ...]
State = Mapping[Path, str]  # the path of each leaf of a state → its JSON
# Seconds that a call may take or, if that is longer, so many of the environment's own deadlines.
_MIN_DEADLINE_S, _DEADLINES = 30.0, 4
_MAX_OBSERVATION = 200_000
_FULL_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class Seat:
    """An episode as an attacker sees it: it may read what is on offer, and never the verdict."""

    episode: Episode

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self.episode.tools()

    def affordances(self) -> tuple[Action, ...]:
        return self.episode.affordances()

    def state(self) -> Mapping[str, Any]:
        return self.episode.state()


# What an attacker does when it sees the episode and its new messages.
Act = Callable[[Seat, tuple[Message, ...]], Turn]


@dataclasses.dataclass(frozen=True)
class Attempt:
    """What an attacker does in one episode: these actions or, if it needs to see the episode, an actor.

    `is_doubtful` says that it may be another right solution, `replaced` which action of the solution it replaces.
    """

    label: str
    actions: tuple[Action, ...] = ()
    act: Act | None = None
    max_turns: int = 12
    is_doubtful: bool = False
    replaced: int | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """A play of an attempt: the trajectory, and the state at the start and after every action."""

    trajectory: Trajectory
    states: tuple[State, ...]

    @property
    def end(self) -> State:
        return self.states[-1] if self.states else {}

    @property
    def reward(self) -> float:
        """The reward; 0 if the episode was lost."""
        return self.trajectory.reward if self.trajectory.valid else 0.0

    @property
    def failure(self) -> str:
        """What the environment raised; "" if it raised nothing."""
        return self.trajectory.error if self.trajectory.outcome == "environment_error" else ""

    def earns(self, full_reward: float) -> bool:
        return self.reward >= full_reward - _FULL_TOLERANCE

    def trace(self) -> dict[str, Any]:
        """All that must be equal in two plays of the same actions."""
        trajectory = self.trajectory
        turns = [turn.observation for turn in trajectory.turns]
        return {
            "opening": [[message.role, message.content] for message in trajectory.opening],
            "observations": [[turn.text, turn.ok, turn.done] for turn in turns],
            "states": list(self.states),
            "outcome": [trajectory.outcome, trajectory.error],
            "verdict": [trajectory.reward, *([check.name, check.passed] for check in trajectory.checks)],
        }


class Player:
    """Plays attempts in one environment; `episodes` and `seconds` count them by attacker, `hangs` calls that hung."""

    def __init__(self, environment: Environment, deadline_s: float | None = None) -> None:
        self.environment = environment
        self.deadline_s = deadline_s or max(_MIN_DEADLINE_S, _DEADLINES * (traits_of(environment).deadline or 0.0))
        self.episodes: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.hangs = 0
        self._play = watched_play(self.deadline_s)

    def play(self, task: Task, attempt: Attempt, attacker: str) -> Run:
        """Plays the attempt. The actor sees an episode without its judge."""
        start_time = time.monotonic()
        act = attempt.act
        states: list[State] = []
        trajectory = self._play(
            record_states(self.environment, states, read_state),
            task,
            follow(attempt.actions) if act is None else lambda episode, messages: act(Seat(episode), messages),
            max_turns=len(attempt.actions) if act is None else attempt.max_turns,
            max_observation=_MAX_OBSERVATION,
        )
        self.episodes[attacker] += 1
        self.seconds[attacker] += time.monotonic() - start_time
        self.hangs += "was abandoned" in trajectory.error
        return Run(trajectory, tuple(states))


def read_state(episode: Episode) -> dict[Path, str]:
    """The leaves of the state now. Raises ValueError for a state that is not a JSON object.

    The leaves are a copy: a world may hand out the object that it goes on changing.
    """
    state = episode.state()
    if not isinstance(state, Mapping):
        raise ValueError(f"state() returned {type(state).__name__}; expected a JSON object")
    try:
        value = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"state() is no JSON: {error}") from error
    leaves: dict[Path, str] = {}
    pending: list[tuple[Path, Any]] = [((), value)]
    while pending:
        path, value = pending.pop()
        members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        pending += [((*path, key), member) for key, member in members]
        if not isinstance(value, (dict, list)) or not value:
            leaves[path] = canonical(value)
    return leaves


def differing_paths(state: State, other: State, ignored: Callable[[Path], bool] = lambda path: False) -> list[Path]:
    """The paths whose leaves differ, in order, without ignored ones."""
    paths = [path for path in {**state, **other} if state.get(path) != other.get(path) and not ignored(path)]
    return sorted(paths, key=lambda path: [str(key) for key in path])


def container_of(path: Path) -> Path:
    """The path without the positions at its end: of an entry of a list, the list."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    return path


def name_paths(paths: Sequence[Path], most: int = 3) -> str:
    """Some paths in words."""
    names = ["/".join(map(str, path))[:80] or "the whole state" for path in paths[:most]]
    return ", ".join(names) + (f" and {len(paths) - most} more" if len(paths) > most else "")

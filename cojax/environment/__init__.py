"""What an environment is, and `play`, the only interaction loop: training, evaluation, exploration and validation
differ only in the actor they pass."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from cojax.environment import replies
from cojax.host.clock import running as running  # environments take it from here
from cojax.types import Action, Evaluation, Message, Observation, Outcome, Task, Trajectory, Triplet, Turn

_T = TypeVar("_T")
_NO_VERDICT = Evaluation(0.0)


class Episode(Protocol):
    """One run of one task. Single-use: once done or closed, it is thrown away."""

    def reset(self) -> tuple[Message, ...]:
        """The messages that open the episode."""

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools on offer when the episode opens, OpenAI function format with JSON-schema parameters."""

    def step(self, action: Action) -> Observation:
        """Carries the action out. A bad action is answered with an observation, never an exception."""

    def state(self) -> Mapping[str, Any]:
        """The present state and the answer given, as JSON: equal states are equal values."""

    def affordances(self) -> tuple[Action, ...]:
        """Actions that would work now, their arguments known from the task or seen in this episode.

        Where an action without calls ends the user's turn or the episode, it stands last.
        """

    def evaluate(self) -> Evaluation:
        """The verdict on the present state."""

    def close(self) -> None:
        """Frees what the episode holds."""


class Environment(Protocol):
    """A source of tasks and episodes."""

    name: str

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Every tool that some episode offers, OpenAI function format with JSON-schema parameters."""

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """`count` distinct tasks of a split, all of one that has fewer; a larger count extends a smaller one."""

    def start(self, task: Task) -> Episode:
        """A fresh episode of the task."""

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        """The query that these steps, from the episode's start, answer; None where the grammar lacks the words."""


@runtime_checkable
class Charted(Environment, Protocol):
    """An environment that the scripted explorer knows its way around in."""

    def popularity(self) -> Mapping[str, float]:
        """Tool → how much an unguided explorer is drawn to it, in (0, 1]."""

    def neighbours(self, tool: str) -> tuple[str, ...]:
        """The other tools of the same application."""


@runtime_checkable
class Demonstrated(Environment, Protocol):
    """An environment from which a policy can be trained from scratch."""

    def lexicon(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(words that stand as arguments or observations, texts that hold every other word)."""

    def demonstrations(
        self, count: int, seed: int, noise: tuple[float, float]
    ) -> Iterator[tuple[Task, tuple[Action, ...]]]:
        """Tasks with what a noisy demonstrator does there; `noise` rises from popular to rare skills."""


@runtime_checkable
class RunsPolicyCode(Protocol):
    """An environment that says whether it runs what a policy wrote; one that does not say so does not.

    Where it does, whatever befalls an episode's own process after reset may be the policy's doing: `PolicyLoss`.
    """

    runs_policy_code: bool


def runs_policy_code(environment: Environment) -> bool:
    """Whether the environment declares that it runs what a policy wrote."""
    return isinstance(environment, RunsPolicyCode) and environment.runs_policy_code


class EnvironmentFailure(RuntimeError):
    """The environment broke, or what serves it: says nothing about the policy."""


class EpisodeFailure(EnvironmentFailure):
    """The episode's own process raised, or was gone before the call; what serves it is sound."""


class LimitExceeded(EnvironmentFailure):
    """An episode ran into a deadline or a resource limit, or its process died, while a call was under way.

    Inside `step` that may be the action's doing: the outcome is `timeout`, which whoever plays the episode believes
    only when it happens again. Anywhere else it is a failure like any other.
    """


class PolicyLoss(LimitExceeded):
    """An episode that runs what a policy wrote was lost after reset, not by what serves it.

    Wherever it shows (in `step`, between steps, in `evaluate`), the outcome is `timeout`, believed when it comes again.
    """


class EngineError(RuntimeError):
    """The engine could not produce a completion: says nothing about the policy."""


class OutOfContext(Exception):
    """The conversation no longer fits the policy's context."""


class Abandoned(BaseException):
    """The watcher gave this episode up; its thread ends at the next step of the loop."""


@dataclasses.dataclass
class Progress:
    """Where an episode is, for whoever watches its deadline. Phases: queued, reset, act, step, evaluate, over.

    `since` is `running()` at the start of the phase; `abandoned` is set by the watcher. `turns` includes the
    one under way, whose observation is still empty; `result` is the verdict, before the episode is closed.
    """

    phase: str = "queued"
    since: float = 0.0
    abandoned: bool = False
    opening: tuple[Message, ...] = ()
    turns: list[Turn] = dataclasses.field(default_factory=list)
    result: Trajectory | None = None

    def enter(self, phase: str) -> None:
        if self.abandoned:
            raise Abandoned
        self.phase, self.since = phase, running()


_PLAYING: contextvars.ContextVar[Progress | None] = contextvars.ContextVar("playing", default=None)
_EXCUSED: contextvars.ContextVar[float] = contextvars.ContextVar("excused", default=0.0)


def excuse(seconds: float) -> None:
    """Has so many seconds count neither by `counted` nor against the deadline of the episode that this thread plays.

    For an environment that knows that its call waited for the host.
    """
    _EXCUSED.set(_EXCUSED.get() + seconds)
    if progress := _PLAYING.get():
        progress.since += seconds


def counted() -> float:
    """A clock in seconds for deadlines within an environment: `running()`, without what this thread was excused."""
    return running() - _EXCUSED.get()


# An actor sees the new messages, and the episode: explorers read its affordances and state, a policy never does.
Actor = Callable[[Episode, tuple[Message, ...]], Turn]


def play(
    environment: Environment,
    task: Task,
    act: Actor,
    *,
    max_turns: int = 30,
    max_observation: int = 16_000,
    episode: str = "",
    progress: Progress | None = None,
) -> Trajectory:
    """Plays one episode and returns what happened.

    `max_turns` counts actions, `max_observation` characters of one observation, of which `replies.MOST_MESSAGES` are
    kept; what is cut says so. An exception of the environment becomes the outcome environment_error, but
    `LimitExceeded` inside `step` and `PolicyLoss` anywhere become timeout. Where the environment runs what a policy
    wrote, so do a malformed reply and any exception but `EnvironmentFailure` after reset. `EngineError` becomes
    engine_error; `OutOfContext` and too many turns become truncated. Any other exception of the actor is raised: it is
    a mistake.
    """
    progress = progress or Progress()
    failure = PolicyLoss if runs_policy_code(environment) else EnvironmentFailure
    turns, result = progress.turns, functools.partial(_result, progress, task, episode)
    started: Episode | None = None
    token = _PLAYING.set(progress)
    try:
        progress.enter("reset")
        started = ask(environment.start, task)
        progress.opening = messages = ask(_opening, started, max_observation)
        outcome: Outcome = "truncated"
        while outcome == "truncated" and len(turns) < max_turns:
            progress.enter("act")
            try:
                turn = act(started, messages)
            except OutOfContext:
                break
            turns.append(turn)
            progress.enter("step")
            began = time.perf_counter()
            observation = ask(_observation, started, turn.action, max_observation, failure=failure)
            seconds = time.perf_counter() - began
            messages = observation.messages
            turns[-1] = dataclasses.replace(turn, observation=observation, environment_seconds=seconds)
            outcome = "finished" if observation.done else "truncated"
        progress.enter("evaluate")
        verdict = ask(_verdict, started, failure=failure)
        return result(outcome, verdict=verdict)
    except EnvironmentFailure as error:
        inside = progress.phase == "step"
        charged = isinstance(error, PolicyLoss) or (inside and isinstance(error, LimitExceeded))
        if inside and charged:
            turns[-1] = dataclasses.replace(turns[-1], observation=Observation(ok=False))
        return result("timeout" if charged else "environment_error", f"{progress.phase}: {error}")
    except EngineError as error:
        return result("engine_error", str(error))
    finally:
        if started is not None:
            _close(started)
        _PLAYING.reset(token)


def affordances(episode: Episode) -> tuple[Action, ...]:
    """The episode's affordances, for an actor: what the environment raises becomes `EnvironmentFailure`."""
    return ask(episode.affordances)


def ask(call: Callable[..., _T], *args: Any, failure: type[EnvironmentFailure] = EnvironmentFailure) -> _T:
    """Calls the environment: whatever it raises becomes a `failure`, but an EnvironmentFailure stays what it is."""
    try:
        return call(*args)
    except EnvironmentFailure:
        raise
    except (Exception, SystemExit) as error:
        raise failure(f"{type(error).__name__}: {error}"[:500]) from error


def _result(
    progress: Progress,
    task: Task,
    episode: str,
    outcome: Outcome,
    error: str = "",
    verdict: Evaluation = _NO_VERDICT,
) -> Trajectory:
    """What happened, which the watcher knows before the episode is closed."""
    progress.enter("over")
    progress.result = Trajectory(
        task, episode, progress.opening, tuple(progress.turns), verdict.reward, verdict.checks, outcome, error
    )
    return progress.result


def _close(episode: Episode) -> None:
    """A verdict already reached is not lost because closing failed."""
    with contextlib.suppress(Exception):
        episode.close()


def _opening(episode: Episode, limit: int) -> tuple[Message, ...]:
    return replies.messages(episode.reset(), limit)


def _observation(episode: Episode, action: Action, limit: int) -> Observation:
    return replies.observation(episode.step(action), limit)


def _verdict(episode: Episode) -> Evaluation:
    return replies.evaluation(episode.evaluate())

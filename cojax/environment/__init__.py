"""The protocols of environments and episodes, and `play`, the only interaction loop.

Training, evaluation, exploration and validation differ only in the actor that they pass to `play`. An exception says
whose fault a failure is, and `Progress` tells the watcher of deadlines how far an episode is.
"""

import contextlib
import contextvars
import copy
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from cojax.environment import replies
from cojax.host.background import running as running  # environments take it from here
from cojax.types import Action, Evaluation, Message, Observation, Outcome, Task, Trajectory, Triplet, Turn

_T = TypeVar("_T")
_NO_VERDICT = Evaluation(0.0)
# What may help where an environment hangs; it ends an error.
HANG_ADVICE = "; run this environment isolated in a worker, where it can be killed"
# Name by which this process has found an environment → the regular expression CALL_IN_TEXT of its module, whose one
# group is the name of a tool that the text of an action calls; "" if actions have calls.
CALLS_IN_TEXT: dict[str, str] = {}


class Episode(Protocol):
    """One run of one task. It is used once: after it is done or closed, it is thrown away."""

    def reset(self) -> tuple[Message, ...]:
        """Opens the episode and returns its first messages."""

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools on offer when the episode opens, OpenAI function format with JSON-schema parameters."""

    def step(self, action: Action) -> Observation:
        """Carries out the action. A bad action gets an observation that says so, never an exception."""

    def state(self) -> Mapping[str, Any]:
        """The present state and the answer given so far, as JSON. Equal states are equal values."""

    def affordances(self) -> tuple[Action, ...]:
        """Actions that would work now, whose arguments are known from the task or were seen in this episode.

        An action without calls that ends the user's turn or the episode comes last.
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
        """`count` distinct tasks of a split, or all it has. A larger count gives the same tasks first, then more."""

    def start(self, task: Task) -> Episode:
        """A fresh episode of the task."""

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        """A query that these steps answer, from the start of an episode; None if the grammar cannot word it."""


@runtime_checkable
class Charted(Environment, Protocol):
    """An environment that states what the scripted explorer needs to know about its tools."""

    def popularity(self) -> Mapping[str, float]:
        """Tool → its weight for an unguided explorer, in (0, 1]."""

    def neighbours(self, tool: str) -> tuple[str, ...]:
        """The other tools of the same application."""


@runtime_checkable
class Demonstrated(Environment, Protocol):
    """An environment from which a policy can be trained from scratch."""

    def lexicon(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(words that occur as arguments or in observations, texts that contain every other word)."""

    def demonstrations(
        self, count: int, seed: int, noise: tuple[float, float]
    ) -> Iterator[tuple[Task, tuple[Action, ...]]]:
        """Tasks with a demonstrator's actions. `noise`: how often it errs in the most popular and the rarest skill."""


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a run must know about an environment, as far as the environment states it.

    `concurrency` is the most episodes of training and evaluation at a time, and the most expeditions; `deadline` is how
    many seconds one call may take. None leaves both to the run's limits. `worded_alike` says that the queries of
    different tasks share most of their words. The run then measures how similar evaluation queries are to each other,
    and only a query that is more similar than that counts as a copy of one. `commands` maps a tool that takes a whole
    command as text to the parameter that holds it: a pattern of actions is then the command's first word, the verb.
    `incomparable` says why the states of two episodes cannot be compared, "" if they can. If they cannot, no
    solution can be proved by execution: a run trains on the environment's own split `train`, and synthesizes nothing.
    `ending` is the tool that ends an episode, "" if an action without calls does; None leaves it to the run's
    explorer. `reuses` says that whatever served one episode may serve another, which may read what the first one
    left. A run then makes another such environment for its evaluations.
    """

    concurrency: int | None = None
    deadline: float | None = None
    worded_alike: bool = False
    commands: Mapping[str, str] = dataclasses.field(default_factory=dict)
    incomparable: str = ""
    ending: str | None = None
    reuses: bool = False


@runtime_checkable
class HasTraits(Protocol):
    """An environment that states what a run must know about it."""

    traits: Traits


def traits_of(environment: Environment) -> Traits:
    """The traits that the environment states."""
    return environment.traits if isinstance(environment, HasTraits) else Traits()


@runtime_checkable
class RunsPolicyCode(Protocol):
    """An environment that declares whether it runs code that a policy wrote. An environment without this does not.

    If it does, the policy may have caused whatever happens to an episode's process after reset: see `SandboxLost`.
    """

    runs_policy_code: bool


def runs_policy_code(environment: Environment) -> bool:
    """Whether the environment declares that it runs code that a policy wrote."""
    return isinstance(environment, RunsPolicyCode) and environment.runs_policy_code


class EnvironmentFailure(RuntimeError):
    """The environment broke, or the process that serves it did. It says nothing about the policy."""


class EpisodeFailure(EnvironmentFailure):
    """The episode's world raised, or its own process had ended before the call. What serves it works.

    In `step` and `evaluate` the actions may have caused it. The policy is charged only if the same actions fail again
    while an episode without them can be evaluated.
    """


class LimitExceeded(EnvironmentFailure):
    """An episode hit a deadline or a resource limit, or its process died, during a call.

    Inside `step` the action may have caused it: the outcome is `timeout`. The episode is then played once more, and
    the policy is charged only if it happens again. In `evaluate` it counts as an EpisodeFailure, and anywhere else as
    any other failure.
    """


class SandboxLost(LimitExceeded):
    """An episode that runs a policy's code was lost after reset, though the process that serves it works.

    Wherever that shows (in `step`, between steps, in `evaluate`), the outcome is `timeout`, as for LimitExceeded.
    """


class InstallError(RuntimeError):
    """An environment's packages cannot be installed, or are not installed."""


class EngineError(RuntimeError):
    """The engine could not produce a completion. It says nothing about the policy."""


class OutOfContext(Exception):
    """An actor ends its episode: the conversation no longer fits the policy's context, or no action is left."""


class Abandoned(BaseException):
    """The watcher gave up on this episode. Its thread ends at the next step of `play`."""


@dataclasses.dataclass
class Progress:
    """How far an episode is, for the watcher of its deadlines. Phases: queued, reset, act, step, evaluate, over.

    `since` is `running()` at the start of the phase. The watcher sets `is_abandoned`. `turns` includes the
    current turn, whose observation is still empty. `result` is the trajectory, known before the episode is closed.
    `is_suspect` says that the environment failed in a way that the actions may have caused: after one of them, in
    `step` or `evaluate`, by anything but a plain `EnvironmentFailure`.
    """

    phase: str = "queued"
    since: float = 0.0
    is_abandoned: bool = False
    opening: tuple[Message, ...] = ()
    turns: list[Turn] = dataclasses.field(default_factory=list)
    result: Trajectory | None = None
    is_suspect: bool = False

    def enter(self, phase: str) -> None:
        if self.is_abandoned:
            raise Abandoned
        self.phase, self.since = phase, running()


# The progress of the episode that this thread plays; its deadline is measured from `since`.
PLAYING: contextvars.ContextVar[Progress | None] = contextvars.ContextVar("playing", default=None)
_EXCUSED_S: contextvars.ContextVar[float] = contextvars.ContextVar("excused", default=0.0)


def excuse(excused_s: float) -> None:
    """Leaves `excused_s` out of `read_counted_seconds`, and of the deadline of the episode that this thread plays.

    An environment calls it when it knows that its call waited for the host.
    """
    _EXCUSED_S.set(_EXCUSED_S.get() + excused_s)
    if progress := PLAYING.get():
        progress.since += excused_s


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Stops the clock of the episode that this thread plays: time in this block does not count towards its deadline.

    An engine calls it while a request waits for others to end. It must not span work that may hang.
    """
    progress = PLAYING.get() or Progress()
    phase_start, wait_start = progress.since, running()
    progress.since = float("inf")
    try:
        yield
    finally:
        progress.since = phase_start + running() - wait_start


def read_counted_seconds() -> float:
    """A clock in seconds for deadlines within an environment: `running()` without what this thread excused."""
    return running() - _EXCUSED_S.get()


# An actor gets the episode and its new messages. An explorer reads the episode's affordances and state; a policy never
# does.
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

    `max_turns` counts actions. Of an observation, `max_observation` characters and `replies.MAX_MESSAGES` messages are
    kept; a note says what was cut. Outcomes:

    - environment_error: another exception of the environment; `progress.is_suspect`: the actions may have caused it
    - timeout: `LimitExceeded` inside `step`, `SandboxLost` anywhere; if the environment runs a policy's code, also
      a malformed reply and any exception other than `EnvironmentFailure` after reset
    - engine_error: `EngineError` of the actor
    - truncated: `OutOfContext` of the actor, or `max_turns` actions

    Any other exception of the actor is a mistake and is raised.
    """
    progress = progress or Progress()
    failure_type = SandboxLost if runs_policy_code(environment) else EpisodeFailure
    turns, make_result = progress.turns, functools.partial(_store_trajectory, progress, task, episode)
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(PLAYING.reset, PLAYING.set(progress))
        try:
            progress.enter("reset")
            start_time = time.perf_counter()
            live_episode = ask(environment.start, task)
            cleanup.callback(_close_episode, live_episode)
            progress.opening = messages = ask(lambda: replies.bound_messages(live_episode.reset(), max_observation))
            opening_seconds = time.perf_counter() - start_time
            outcome: Outcome = "truncated"
            while outcome == "truncated" and len(turns) < max_turns:
                progress.enter("act")
                try:
                    turn = act(live_episode, messages)
                except OutOfContext:
                    break
                turns.append(turn)
                progress.enter("step")
                start_time = time.perf_counter()
                observation = ask(_take_step, live_episode, turn.action, max_observation, failure_type=failure_type)
                step_seconds, messages = time.perf_counter() - start_time, observation.messages
                turns[-1] = dataclasses.replace(turn, observation=observation, environment_seconds=step_seconds)
                outcome = "finished" if observation.done else "truncated"
            progress.enter("evaluate")
            start_time = time.perf_counter()
            verdict = ask(lambda: replies.bound_evaluation(live_episode.evaluate()), failure_type=failure_type)
            return make_result(outcome, verdict=verdict, seconds=(opening_seconds, time.perf_counter() - start_time))
        except EnvironmentFailure as error:
            return make_result(_decide_outcome(error, progress), f"{progress.phase}: {error}")
        except EngineError as error:
            return make_result("engine_error", str(error))


def _decide_outcome(error: EnvironmentFailure, progress: Progress) -> Outcome:
    """The outcome: timeout if the policy is to blame. If it only may be, `is_suspect` is set. In both cases a step that
    failed gets a failed observation."""
    is_stepping = progress.phase == "step"
    is_policy_fault = isinstance(error, SandboxLost) or (is_stepping and isinstance(error, LimitExceeded))
    has_acted = is_stepping or (progress.phase == "evaluate" and bool(progress.turns))
    progress.is_suspect = not is_policy_fault and has_acted and isinstance(error, (EpisodeFailure, LimitExceeded))
    if is_stepping and (is_policy_fault or progress.is_suspect):
        progress.turns[-1] = dataclasses.replace(progress.turns[-1], observation=Observation(ok=False))
    return "timeout" if is_policy_fault else "environment_error"


def affordances(episode: Episode) -> tuple[Action, ...]:
    """The episode's affordances, for an actor. What the environment raises becomes an `EnvironmentFailure`."""
    return ask(episode.affordances)


def ask(call: Callable[..., _T], *args: Any, failure_type: type[EnvironmentFailure] = EnvironmentFailure) -> _T:
    """Calls the environment. Whatever it raises becomes a `failure_type`; an EnvironmentFailure is raised as it is."""
    try:
        return call(*args)
    except (EnvironmentFailure, Abandoned, KeyboardInterrupt):
        raise
    except BaseException as error:  # a cancelled asyncio task, a Rust panic and SystemExit are not Exceptions
        message = type(error).__name__
        with contextlib.suppress(Exception):  # some cannot be printed, such as a KeyError of 5,000 digits
            message = f"{message}: {error}"[:500]
        raise failure_type(message) from error


def _store_trajectory(
    progress: Progress,
    task: Task,
    episode_id: str,
    outcome: Outcome,
    error: str = "",
    verdict: Evaluation = _NO_VERDICT,
    seconds: tuple[float, float] = (0.0, 0.0),
) -> Trajectory:
    """The trajectory so far, also stored in `progress`, where the watcher finds it before the episode is closed.

    `seconds` are those of the opening and of the verdict.
    """
    progress.enter("over")
    progress.result = Trajectory(
        task, episode_id, progress.opening, tuple(progress.turns), verdict.reward, verdict.checks, outcome, error,
        verdict.partial, *seconds,
    )  # fmt: skip
    return progress.result


def _close_episode(episode: Episode) -> None:
    """Closes the episode. An exception is ignored: it must not cost the verdict."""
    with contextlib.suppress(EnvironmentFailure):
        ask(episode.close)


def _take_step(episode: Episode, action: Action, max_characters: int) -> Observation:
    with contextlib.suppress(RecursionError):  # nothing that is parsed or validated nests so deep
        # A world may keep and change arguments, but records, replays and solutions hold this action.
        action = copy.deepcopy(action)
    return replies.bound_observation(episode.step(action), max_characters)

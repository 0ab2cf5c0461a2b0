"""An environment in another process, of a worker or of a cluster's node: how it answers there, and how it looks here.

There, `environment_operations` and `episode_operations` map the name of a call to what carries it out. Here,
`Served` and `ServedEpisode` are the environment and its episodes: they make these calls, and read the
replies as records.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, Protocol, TypeVar, runtime_checkable

from cojax.environment import Charted, Demonstrated, Environment, EnvironmentFailure, Traits, excuse, running, traits_of
from cojax.types import Action, Evaluation, Message, Observation, Task, Triplet, from_json, to_json
from . import wire
from .wire import Opening, read


@runtime_checkable
class Prepared(Protocol):
    """An environment that finds out by episodes what all its episodes need: `prepare` does, and returns it as JSON;
    `adopt` takes it, or None if it could not be found."""

    def prepare(self) -> Any: ...

    def adopt(self, preparation: Any) -> None: ...


Operations = dict[str, Callable[..., Any]]
_T = TypeVar("_T")
# Demonstrations fetched with one call.
_DEMONSTRATIONS_PER_PAGE = 256
# A reply is looked for every _LOOK_PERIOD_S seconds. An episode's deadline excuses at most _MAX_EXCUSED_S of one call.
_LOOK_PERIOD_S, _MAX_EXCUSED_S = 0.25, 3_600.0


def episode_operations(environment: Environment) -> Operations:
    """The calls of one episode; `reset` makes it."""
    episodes: list[Any] = []

    def reset(task: Any) -> Any:
        episodes.append(environment.start(from_json(Task, task)))
        return {"messages": episodes[0].reset(), "tools": episodes[0].tools()}

    return {
        "reset": reset,
        "step": lambda action: episodes[0].step(from_json(Action, action)),
        "state": lambda: episodes[0].state(),
        "affordances": lambda: episodes[0].affordances(),
        "evaluate": lambda: episodes[0].evaluate(),
        "close": lambda: [episode.close() for episode in episodes],
    }


def environment_operations(environment: Environment) -> Operations:
    """The calls that concern the whole environment."""
    operations: Operations = {
        "tools": environment.tools,
        "tasks": environment.tasks,
        "phrase": lambda steps: environment.phrase(from_json(tuple[Triplet, ...], steps)),
    }
    if isinstance(environment, Charted):
        operations |= {"popularity": environment.popularity, "neighbours": environment.neighbours}
    if isinstance(environment, Demonstrated):
        operations |= {"lexicon": environment.lexicon, "demonstrations": _page_demonstrations(environment)}
    return operations


def _page_demonstrations(environment: Demonstrated) -> Callable[..., list[Any]]:
    """Demonstrations in pages. It keeps the iterator, so that the next page costs only its own items."""
    cursor: tuple[Any, ...] = ()
    demonstrations: Iterator[Any] = iter(())

    def get_page(count: int, seed: int, noise: list[float], page_start: int, page_size: int) -> list[Any]:
        """Demonstrations page_start … page_start + page_size - 1; fewer at the end."""
        nonlocal cursor, demonstrations
        if (count, seed, *noise, page_start) != cursor:
            low, high = noise
            demonstrations = itertools.islice(environment.demonstrations(count, seed, (low, high)), page_start, None)
        page = list(itertools.islice(demonstrations, page_size))
        cursor = (count, seed, *noise, page_start + len(page))
        return page

    return get_page


@dataclasses.dataclass(frozen=True)
class Episodes:
    """An environment over there, which opens episodes and has tasks in `splits`. Queries are worded here."""

    name: str
    start: Callable[[Task], Any]
    splits: Mapping[str, tuple[Task, ...]] = dataclasses.field(default_factory=dict)
    tools: Callable[[], tuple[Mapping[str, Any], ...]] = tuple
    traits: Traits = dataclasses.field(default_factory=Traits)

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return self.splits[split][:count]

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None


@dataclasses.dataclass(frozen=True)
class PlainEpisode:
    """An episode over there, made of functions. The defaults say nothing, offer nothing and earn nothing."""

    step: Callable[[Action], Observation]
    reset: Callable[[], tuple[Message, ...]] = tuple
    tools: Callable[[], tuple[Mapping[str, Any], ...]] = tuple
    state: Callable[[], Mapping[str, Any]] = dict
    affordances: Callable[[], tuple[Action, ...]] = tuple
    evaluate: Callable[[], Evaluation] = lambda: Evaluation(0.0)
    close: Callable[[], None] = lambda: None  # what it holds ends with its process


def describe(environment: Environment) -> dict[str, Any]:
    """What `Served` must know of the environment."""
    return {
        "name": environment.name,
        "charted": isinstance(environment, Charted),
        "demonstrated": isinstance(environment, Demonstrated),
        "traits": to_json(traits_of(environment)),
    }


class Served:
    """An environment of another process; it implements `cojax.environment.Environment`.

    `description` is what `describe` says about it, with the layers of isolation that hold there. `call(op,
    *arguments)` makes a call that concerns the whole environment. It has the methods of `Charted` and of `Demonstrated`
    where the environment has them. `close()` ends what is behind it.
    """

    def __init__(self, description: Mapping[str, Any], call: Callable[..., Any]) -> None:
        self.name: str = description["name"]
        self.layers: Mapping[str, bool] = description["layers"]
        self.traits: Traits = read(Traits, description["traits"])
        self._call = call
        # These functions hold no reference to this object: its processes end when nothing else refers to it.
        self.tools = functools.cache(lambda: read(tuple[Mapping[str, Any], ...], call("tools")))
        if description["charted"]:
            self.popularity = functools.cache(functools.partial(call, "popularity"))
            self.neighbours = functools.cache(lambda tool: tuple(call("neighbours", tool)))
        if description["demonstrated"]:
            self.lexicon = lambda: tuple(map(tuple, call("lexicon")))
            self.demonstrations = functools.partial(_fetch_demonstrations, call)

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        """The environment's own tasks. Raises ValueError if the environment does."""
        try:
            task_records = self._call("tasks", split, count, seed)
        except EnvironmentFailure as failure:
            _, separator, reason = str(failure).partition("ValueError: ")
            raise ValueError(reason) if separator else failure from None
        return read(tuple[Task, ...], task_records)

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return self._call("phrase", to_json(steps))


def await_reply(future: Future[Any], read_count: Callable[[], float], read_reply: Callable[[], tuple[float, _T]]) -> _T:
    """Waits for the future, and returns the value that `read_reply` then finds.

    `read_reply` also returns how many seconds the call counted where it was carried out. Until then, `read_count`
    is asked for that number again and again; it may raise. Seconds of waiting that did not count are not charged to the
    episode.
    """
    started_at, excused_s = running(), 0.0

    def charge_wait(counted_s: float) -> None:
        nonlocal excused_s
        due_s = min(max(0.0, running() - started_at - counted_s), _MAX_EXCUSED_S)
        excuse(due_s - excused_s)
        excused_s = due_s

    while not wait([future], _LOOK_PERIOD_S).done:
        charge_wait(read_count())
    counted_s, reply = read_reply()
    charge_wait(counted_s)
    return reply


def _fetch_demonstrations(
    call: Callable[..., Any], count: int, seed: int, noise: tuple[float, float]
) -> Iterator[tuple[Task, tuple[Action, ...]]]:
    for page_start in itertools.count(0, _DEMONSTRATIONS_PER_PAGE):
        page = call("demonstrations", count, seed, noise, page_start, _DEMONSTRATIONS_PER_PAGE)
        for task, actions in page:
            yield read(Task, task), read(tuple[Action, ...], actions)
        if len(page) < _DEMONSTRATIONS_PER_PAGE:
            return


class ServedEpisode:
    """One episode in another process. `call(op, *arguments)` makes one of its calls, and `end_there()` closes it there.

    `server` is where it is played.
    """

    def __init__(self, server: Any, task: Task, call: Callable[..., Any], end_there: Callable[[], None]) -> None:
        self.server, self._task, self._call, self.close = server, task, call, end_there
        self._tools: tuple[Mapping[str, Any], ...] = ()

    def reset(self) -> tuple[Message, ...]:
        opening = self._call(Opening, "reset", to_json(self._task))
        self._tools = opening.tools
        return opening.messages

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._tools

    def step(self, action: Action) -> Observation:
        try:
            wire.encode(payload := to_json(action))
        except (ValueError, RecursionError) as error:
            error_text = f"error: the action is not JSON that can be sent: {error}"
            return Observation((Message("tool", error_text[:200]),), ok=False)
        return self._call(Observation, "step", payload)

    def state(self) -> Mapping[str, Any]:
        return self._call(Mapping[str, Any], "state")

    def affordances(self) -> tuple[Action, ...]:
        return self._call(tuple[Action, ...], "affordances")

    def evaluate(self) -> Evaluation:
        return self._call(Evaluation, "evaluate")

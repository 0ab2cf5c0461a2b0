"""Compares plays of the same actions: before and after other episodes, beside one, and in other processes.

A difference between two fresh processes that do the same is the world's own: it reads a clock, or draws numbers without
a seed. A difference within one process alone, or that depends on which tasks were played before, is a leak.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cojax.environment import OutOfContext, traits_of
from cojax.types import Action, Message, Task, Turn, to_json
from .cheap import insert
from .player import Attempt, Path, Player, Run, Seat, differing_paths, name_paths
from .scene import Scene

Trace = Mapping[str, Any]
ASPECTS = ("opening", "observations", "states", "outcome", "verdict")
# Processes that play at the same time.
_AT_ONCE = 2
# Seconds between two plays whose clocks must differ, and those that a process may need beyond its plays.
_CLOCK_GAP_S, _START_TIMEOUT_S = 1.1, 120.0
# The most actions of a walk in place of a solution, and of a tour of the tools, and the most turns beside which other
# episodes are played.
_MAX_WALK, _MAX_TOUR, _MAX_BESIDE = 6, 20, 3
_CANARY = "canary7f3a9c"
# The comparisons that `find_leak` makes.
LEAK_ATTEMPTS = 8


class ProcessFailure(RuntimeError):
    """A process that should have played a world did not."""


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """In what a process plays: the time at which its clock begins, "" for the time that it is, and what it gains at
    every reading; its environment variables; and what it plays before: later tasks, if it takes them in reverse order,
    or other calls in each task."""

    name: str
    moment: str = ""
    gain_s: float = 0.0
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_reversed: bool = False
    plays_before: bool = False


_HERE = {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"}
SURROUNDINGS = (
    Surroundings("a second later", variables=_HERE),
    Surroundings("the tasks in reverse order", variables=_HERE, is_reversed=True),
    Surroundings("after an episode of other calls", variables=_HERE, plays_before=True),
    Surroundings(
        "from a Saturday night in March 2031 on, another time zone, locale and hash seed",
        "2031-03-15T22:30:00+00:00",
        variables={"PYTHONHASHSEED": "1", "TZ": "America/St_Johns", "LC_ALL": "C"},
    ),
    Surroundings(
        "from a Wednesday morning in July 2019 on, a clock that leaps, a third time zone, locale and hash seed",
        "2019-07-10T02:10:00+00:00",
        1201.0,
        {"PYTHONHASHSEED": "2", "TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"},
    ),
)


def route_of(scene: Scene) -> tuple[Action, ...]:
    """The actions whose plays are compared: the solution or, without one, a walk over calls that worked."""
    if scene.honest is not None:
        return scene.solution
    walk = [Action(calls=(tried.call,)) for tried in scene.tried if tried.ok][:_MAX_WALK]
    return (*walk, scene.ending.bare())


def tour_of(scene: Scene) -> tuple[Action, ...]:
    """Calls of every tool, also of those that the solution does not use."""
    return tuple(Action(calls=(tried.call,)) for tried in scene.tried[:_MAX_TOUR])


def explain_difference(
    first: Trace, second: Trace, unsteady: frozenset[Path | str] = frozenset(), shows_values: bool = True
) -> str:
    """How two plays of the same actions differ; "" if they do not. Unsteady paths and aspects do not count.

    Values that another audit will not see again, such as times, are better not shown.
    """
    for aspect in ASPECTS:
        if aspect in unsteady or first[aspect] == second[aspect]:
            continue
        if aspect != "states":
            pairs = enumerate(zip(first[aspect], second[aspect], strict=False), 1)
            whole = (0, (first[aspect], second[aspect]))
            number, (one, other) = next((item for item in pairs if item[1][0] != item[1][1]), whole)
            values = f": {_shorten(one)}, then {_shorten(other)}" if shows_values else ""
            return f"{aspect} ({number}){values}" if number else f"{aspect}{values}"
        for number, (state, other_state) in enumerate(zip(first[aspect], second[aspect], strict=False)):
            if paths := differing_paths(state, other_state, unsteady.__contains__):
                return f"the state after action {number}: {name_paths(paths)}"
    return ""


def find_unsteady(first: Trace, second: Trace) -> frozenset[Path | str]:
    """The paths whose leaves differ in some pair of states, and the other aspects that differ."""
    pairs = zip(first["states"], second["states"], strict=False)
    aspects = {aspect for aspect in ASPECTS if aspect != "states" and first[aspect] != second[aspect]}
    return frozenset(path for state, other in pairs for path in differing_paths(state, other)) | aspects


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def leave_traces(scene: Scene) -> Iterator[Attempt]:
    """Episodes after which, and beside which, the task must play as before: a canary in every argument, and random
    calls."""
    marked = [insert(trial.call, _CANARY) or trial.call for trial in scene.tried]
    actions = tuple(Action(calls=(call,)) for call in marked)
    yield Attempt("a canary in every argument", (*actions, scene.ending.answer(_CANARY)))
    yield Attempt("other calls", other_calls(scene))


def other_calls(scene: Scene) -> tuple[Action, ...]:
    """The calls of the survey, then the solution."""
    return (*(Action(calls=(tried.call,)) for tried in scene.tried), *scene.solution)


def find_leak(player: Player, scene: Scene, expected: Run) -> Iterator[tuple[str, str, Run]]:
    """Yields what shows a leak: a label, how the plays differ, and the play that differs from `expected`."""
    route = Attempt("the same again", route_of(scene))
    canary_calls = [call for tried in scene.lookups if (call := insert(tried.call, _CANARY)) is not None]
    probe = Attempt("look-ups of a canary", tuple(Action(calls=(call,)) for call in canary_calls[:10]))

    def compare(label: str, before: Run, after: Run) -> Iterator[tuple[str, str, Run]]:
        if difference := explain_difference(before.trace(), after.trace(), scene.unsteady):
            yield label, difference, after

    probed = player.play(scene.task, probe, "leak")
    for attempt in leave_traces(scene):
        player.play(scene.task, attempt, "leak")
        yield from compare(f"after {attempt.label}", expected, player.play(scene.task, route, "leak"))
        yield from compare(f"look-ups after {attempt.label}", probed, player.play(scene.task, probe, "leak"))
        idle = player.play(scene.task, Attempt("ends at once", (scene.ending.bare(),)), "leak")
        yield from compare(f"doing nothing after {attempt.label}", scene.idle, idle)
    if traits_of(player.environment).concurrency == 1:
        return  # it plays one episode at a time
    inner: list[Run] = []
    outer = player.play(scene.task, _play_beside(player, scene, route, inner), "leak")
    yield from compare("while another episode of the task is open", expected, outer)
    for run in inner:
        yield from compare("beside another episode of the task", expected, run)


def _play_beside(player: Player, scene: Scene, route: Attempt, inner: list[Run]) -> Attempt:
    """An attempt that plays whole other episodes between its own actions: the same, other calls, and none."""
    remaining = list(route.actions)

    def act(episode: Seat, messages: tuple[Message, ...]) -> Turn:
        if not remaining:
            raise OutOfContext
        if len(inner) < _MAX_BESIDE:
            inner.append(player.play(scene.task, route, "leak"))
            for actions in (tour_of(scene), ()):
                player.play(scene.task, Attempt("beside it", actions), "leak")
        return Turn(remaining.pop(0))

    return Attempt("beside another episode", act=act, max_turns=len(route.actions))


@dataclasses.dataclass(frozen=True)
class Origin:
    """How another process makes the same world: its name and settings."""

    name: str
    settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Replayed:
    """Actions that each process plays, and those of an episode that some play before."""

    task: Task
    actions: tuple[Action, ...]
    before: tuple[Action, ...] = ()


def play_elsewhere(
    origin: Origin, plays: Sequence[Replayed], surroundings: Surroundings, timeout_s: float
) -> list[Trace]:
    """The traces of these plays in a new process. Raises ProcessFailure if it gives none."""
    order = range(len(plays))[:: -1 if surroundings.is_reversed else 1]
    request = to_json({"origin": origin, "surroundings": surroundings, "plays": [plays[index] for index in order]})
    variables = {**os.environ, **surroundings.variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command, limit_s = [sys.executable, "-P", "-m", f"{__package__}.child"], _START_TIMEOUT_S + timeout_s
    try:
        child = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            capture_output=True,
            env=variables,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProcessFailure(f"it has not ended after {limit_s:g} s") from error
    try:
        traces = json.loads(child.stdout.rstrip().rpartition(b"\n")[2])["traces"]
        for trace in traces:
            trace["states"] = [{tuple(path): leaf for path, leaf in state} for state in trace["states"]]
        by_index = dict(zip(order, traces, strict=True))
    except (ValueError, KeyError, TypeError) as error:
        reason = (child.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {child.returncode}"])[-1]
        raise ProcessFailure(f"it failed: {reason[:300]}") from error
    return [by_index[index] for index in range(len(plays))]


def play_everywhere(
    origin: Origin, plays: Sequence[Replayed], timeout_s: float
) -> tuple[list[Trace], dict[str, list[Trace]], dict[str, str]]:
    """The traces of a plain process, those in each of SURROUNDINGS, and why some of them gave none.

    Raises ProcessFailure if the plain process gives none.
    """
    plain = play_elsewhere(origin, plays, Surroundings("here", variables=_HERE), timeout_s)
    traces: dict[str, list[Trace]] = {}
    failures: dict[str, str] = {}
    time.sleep(_CLOCK_GAP_S)
    with ThreadPoolExecutor(_AT_ONCE) as executor:
        futures = {
            surroundings.name: executor.submit(play_elsewhere, origin, plays, surroundings, timeout_s)
            for surroundings in SURROUNDINGS
        }
    for name, future in futures.items():
        try:
            traces[name] = future.result()
        except ProcessFailure as failure:
            failures[name] = str(failure)
    return plain, traces, failures

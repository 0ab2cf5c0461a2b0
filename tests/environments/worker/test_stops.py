"""A host that stops or starves is not charged to an honest episode; what a child does by itself still is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from patience import patience
from worker_trials import ROOT, descendants, gone, processes, stop_all, stopped

from cojax.environment import EnvironmentFailure, Progress, play, read_counted_seconds
from cojax.environment.replay import follow
from cojax.types import Action, Task, Trajectory
from environments.worker import Bounds, IsolatedEnvironment, client, isolate
from environments.worker.supervisor import Timer, read_usage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
BOUNDS = Bounds(deadline=1.0)


@contextmanager
def working() -> Iterator[IsolatedEnvironment]:
    environment = isolate("liar", bounds=BOUNDS, runs_policy_code=True)
    environment.phrase([])
    yield environment
    environment.close()


def fork_server(world: IsolatedEnvironment) -> int:
    (found,) = [pid for pid, parent in processes().items() if parent == world.supervisor]
    return found


class StepNoted(Progress):
    """Says when the episode takes its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.stepping = threading.Event()

    def enter(self, phase: str) -> None:
        super().enter(phase)
        if phase == "step":
            self.stepping.set()


class Played:
    """An episode of two steps on a thread, stopped or not by whoever made it."""

    def __init__(self, world: IsolatedEnvironment, **setup: object) -> None:
        self.progress, self.result = StepNoted(), list[Trajectory]()
        self.thread = threading.Thread(target=self._play, args=(world, Task("liar", "", setup)))
        self.thread.start()

    def _play(self, world: IsolatedEnvironment, task: Task) -> None:
        steps = follow([Action("on")] * 2)
        self.result.append(play(world, task, steps, max_turns=2, progress=self.progress))

    def steps(self) -> None:
        assert self.progress.stepping.wait(patience(20))
        time.sleep(0.1)  # until the child has the call

    def ended(self) -> tuple[str, float]:
        self.thread.join(patience(60))
        return self.result[0].outcome, self.result[0].reward


# All of these mostly wait, each for processes of its own: they are told at once.
STORIES: dict[str, Callable[[], Any]] = {}


def story(tell: Callable[[], Any]) -> Callable[[], Any]:
    STORIES[tell.__name__] = tell
    return tell


@pytest.fixture(scope="module")
def told() -> dict[str, Future[Any]]:
    with pytest.MonkeyPatch.context() as changed, ThreadPoolExecutor(len(STORIES)) as pool:
        changed.setattr(client, "_MAX_SILENCE_S", 3.0)
        return {name: pool.submit(tell) for name, tell in STORIES.items()}


def outlasting(who: Callable[[IsolatedEnvironment], set[int]]) -> list[tuple[str, float]]:
    """Ends of two episodes: these processes stop within a step of one, and before the other has a child."""
    with working() as world:
        played = Played(world, nap=0.3)
        played.steps()
        with stopped(*who(world)):
            other = Played(world, nap=0.3)
            time.sleep(2.4 * BOUNDS.deadline)
        return [played.ended(), other.ended()]


@story
def the_supervisor_stops() -> list[tuple[str, float]]:
    return outlasting(lambda world: {world.supervisor})


@story
def the_fork_server_stops() -> list[tuple[str, float]]:
    return outlasting(lambda world: {fork_server(world)})


@story
def all_stop() -> list[tuple[str, float]]:
    return outlasting(lambda world: {world.supervisor, *descendants(world.supervisor)})


@pytest.mark.parametrize("name", ["the_supervisor_stops", "the_fork_server_stops", "all_stop"])
def test_an_honest_episode_outlasts_a_stop_of_what_serves_it(told, name):
    assert told[name].result() == [("truncated", 1.0)] * 2


@pytest.mark.real
def test_an_honest_episode_outlasts_a_stop_of_supervisor_and_fork_server():
    assert outlasting(lambda world: {world.supervisor, fork_server(world)}) == [("truncated", 1.0)] * 2


@story
def a_child_dies_meanwhile() -> tuple[str, float]:
    with working() as world:
        # The first step naps, so that the stop comes before the second, which dies.
        played = Played(world, op="step", step=1, ending="exit", nap=0.3)
        played.steps()
        with stopped(fork_server(world)):
            time.sleep(2.0)
        return played.ended()


def test_a_death_while_the_fork_server_is_stopped_is_told_when_it_goes_on(told):
    assert told["a_child_dies_meanwhile"].result() == ("timeout", 0.0)


@pytest.mark.real
def test_a_fork_server_that_does_not_go_on_is_replaced():
    world = isolate("liar", bounds=Bounds(deadline=1.0, start_deadline=6.0), runs_policy_code=True)
    family = descendants(world.supervisor) | {world.supervisor}
    os.kill(fork_server(world), signal.SIGSTOP)
    assert Played(world).ended() == ("environment_error", 0.0)
    assert Played(world).ended() == ("truncated", 1.0)
    assert gone(family)
    world.close()


@story
def the_supervisor_stops_for_good() -> tuple[tuple[str, float], bool]:
    with working() as world:
        family = descendants(world.supervisor) | {world.supervisor}
        episode = world.start(Task("liar", "", {}))
        episode.reset()
        os.kill(world.supervisor, signal.SIGSTOP)
        with pytest.raises(EnvironmentFailure, match="was silent for 3 s"):
            episode.step(Action("on"))
        return Played(world).ended(), gone(family)


def test_a_supervisor_that_does_not_go_on_is_replaced(told):
    assert told["the_supervisor_stops_for_good"].result() == (("truncated", 1.0), True)


PROGRAM = """
import json, sys
sys.path[:0] = [{tests!r}]
from cojax.environment.replay import follow
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Action, Task
from environments.worker import Bounds, isolate

class Actors:
    sessions = []
    def __call__(self, session, seed):
        self.sessions.append(session)
        return follow([Action("on")] * 2)
    def release(self, session):
        pass

world = isolate("liar", bounds=Bounds(deadline=1.0), runs_policy_code=True)
world.phrase([])
print(world.supervisor, flush=True)
input()
tasks = [Task("liar", "", {{"nap": 0.3, **setup}}) for setup in {setups!r}]
limits = Limits(max_turns=2, environment_deadline=1.5, error_rate=1.0)
groups = EpisodeCollector(Actors(), world, limits, group_size=2).collect(tasks, seed=(0,), label="0")
print(json.dumps([[t.outcome, t.reward] for group in groups for t in group.trajectories]))
print(len(Actors.sessions))
world.close()
"""


@contextmanager
def trainer(*setups: dict[str, object]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that plays two episodes of each setup once it is told to; its supervisor."""
    code = textwrap.dedent(PROGRAM).format(tests=str(ROOT / "tests"), setups=list(setups))
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        yield process, int(process.stdout.readline())


def begin(process: subprocess.Popen[str], supervisor: int) -> set[int]:
    """Has it play; returns once its episodes have children, with these."""
    before = descendants(supervisor)
    print("", file=process.stdin, flush=True)
    until = time.monotonic() + patience(20)
    while not (born := descendants(supervisor) - before) and time.monotonic() < until:
        time.sleep(0.01)
    assert born
    return born


@story
def the_trainer_stops() -> tuple[Any, str]:
    with trainer({}, {}) as (process, supervisor):
        begin(process, supervisor)
        with stopped(process.pid):
            time.sleep(2.5)
        return json.loads(process.stdout.readline()), process.stdout.readline()


def test_a_stopped_trainer_charges_nobody(told):
    # None was played again.
    assert told["the_trainer_stops"].result() == ([["truncated", 1.0]] * 4, "4\n")


@pytest.mark.real
def test_a_supervisor_stopped_for_longer_than_the_trainers_patience_charges_nobody():
    with trainer({}, {}) as (process, supervisor):
        begin(process, supervisor)
        with stopped(supervisor):
            time.sleep(5.0)
        assert json.loads(process.stdout.readline()) == [["truncated", 1.0]] * 4


@story
def children_stop() -> Any:
    with trainer({}) as (process, supervisor):
        born = begin(process, supervisor)
        with stopped(*born):
            return json.loads(process.stdout.readline())


def test_stopped_children_are_played_again_on_fresh_ones(told):
    assert told["children_stop"].result() == [["truncated", 1.0]] * 2


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that do nothing but work, for forty seconds at most."""
    code = "import time\nuntil = time.monotonic() + 40\nwhile time.monotonic() < until: pass"
    at_work = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in at_work:
            process.kill()
            process.wait()


@pytest.mark.real
def test_a_starved_child_is_given_the_time_that_it_waited_for():
    """A quarter of its deadline is work, of which it gets an eighth in time, as others are at work too."""
    with busy(6 * len(os.sched_getaffinity(0))), trainer({"work": 0.25, "nap": 0.0}) as (process, supervisor):
        begin(process, supervisor)
        assert json.loads(process.stdout.readline()) == [["truncated", 1.0]] * 2


@contextmanager
def pinned(count: int) -> Iterator[list[int]]:
    """So many processes at work on one processor; their ids."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)\n"
    code += "import time\nuntil = time.monotonic() + 20\nwhile time.monotonic() < until: pass"
    at_work = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(count)]
    for process in at_work:
        process.stdout.readline()
    try:
        yield [process.pid for process in at_work]
    finally:
        for process in at_work:
            process.kill()
            process.wait()
            process.stdout.close()


def test_what_a_process_waited_for_a_processor_does_not_count():
    """Four share one processor; each has a quarter of it."""
    with pinned(4) as at_work:
        timer = Timer(0.5)
        timer.follow(at_work[0])
        time.sleep(1.2)
        wall, spent = timer.wall_s, timer.count_seconds()
    assert spent <= 0.6 * wall
    assert spent >= wall / 5


def test_what_the_host_takes_does_not_count_where_an_environment_adds_up_its_calls():
    world = isolate("liar", bounds=Bounds(deadline=10.0))
    episode = world.start(Task("liar", "", {"work": 0.4}))
    before = descendants(world.supervisor)
    episode.reset()
    born = descendants(world.supervisor) - before
    began, wall = read_counted_seconds(), time.monotonic()
    stop_all(world, 2.0)
    episode.step(Action("on"))
    assert time.monotonic() - wall >= 2.0
    assert read_counted_seconds() - began <= 1.2
    for pid in born:
        os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
    with pinned(3):
        began, wall = read_counted_seconds(), time.monotonic()
        episode.step(Action("on"))
        spent, wall = read_counted_seconds() - began, time.monotonic() - wall
    # Its own 0.4 s of work, whatever share of the processor it was given; a fifth of the wait counts in any case.
    assert spent <= max(0.65, 0.3 * wall)
    world.close()


@story
def children_work_or_sleep_without_end() -> tuple[list[tuple[str, float]], float]:
    with working() as world:
        began = time.monotonic()
        played = [Played(world, op="step", ending=ending) for ending in ("spin", "hang")]
        return [each.ended() for each in played], time.monotonic() - began


def test_a_child_that_works_or_sleeps_without_end_is_still_ended(told):
    ended, seconds = told["children_work_or_sleep_without_end"].result()
    assert ended == [("timeout", 0.0)] * 2
    assert seconds < 5 * BOUNDS.deadline + 3


def test_time_that_counts_is_wall_time_and_processor_time():
    timer = Timer(0.2)
    timer.follow(os.getpid())
    time.sleep(0.3)
    assert timer.count_seconds() >= 0.2  # asleep: wall time
    before, _ = read_usage(os.getpid())
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert 0.2 < read_usage(os.getpid())[0] - before < 2.0
    timer = Timer(5.0)
    with timer.excuse():
        time.sleep(0.3)
        assert timer.wall_s < 0.2
    assert timer.wall_s < 0.2


def test_what_a_process_below_uses_counts():
    code = """
import os, sys, time
os.fork()
until = time.process_time() + 0.2
while time.process_time() < until: pass
print(flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        process.stdout.readline()
        process.stdout.readline()
        assert read_usage(process.pid)[0] > 0.35
        process.kill()

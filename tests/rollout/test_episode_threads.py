"""A world that an episode's own actions break: they are charged if they break it again, and nothing else does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from counter_environment import CounterEnvironment
from patience import patience

from cojax.environment import Actor, Environment, EnvironmentFailure, EpisodeFailure, LimitExceeded
from cojax.environment.replay import follow
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.rollout.chat import Actors
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Action, Call, Evaluation, Task, Trajectory

ADD, FINISH = Action(calls=(Call("add"),)), Action(calls=(Call("finish"),))
TASK = Task("counter", "count to 1", {"target": 1})


class Scripted:
    """Actors that take the given actions, in each later session those of the next script, if there is one."""

    def __init__(self, *scripts: tuple[Action, ...]) -> None:
        self.scripts, self.sessions = scripts, list[str]()

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        self.sessions.append(session)
        return follow(self.scripts[min(len(self.sessions), len(self.scripts)) - 1])

    def release(self, session: str) -> None:
        pass


class Breaking(Wrapped):
    """Counters whose verdict fails by `broken` where `breaks` says so of the count; `evaluated` are the counts."""

    def __init__(self, breaks: Callable[[int], bool], broken: Callable[[], object]) -> None:
        super().__init__(CounterEnvironment(), lambda task: BreakingEpisode(self, task))
        self.breaks, self.broken, self.evaluated = breaks, broken, list[int]()


class BreakingEpisode(WrappedEpisode):
    def __init__(self, world: Breaking, task: Task) -> None:
        super().__init__(world.environment.start(task))
        self.world = world

    def evaluate(self) -> Evaluation:
        count = self.state()["count"]
        self.world.evaluated.append(count)
        if self.world.breaks(count):
            self.world.broken()
        return super().evaluate()


def raising(error: BaseException) -> Callable[[], None]:
    def broken() -> None:
        raise error

    return broken


def collected(environment: Environment, actors: Actors, **limits: float) -> Trajectory:
    limits = Limits(**{"max_turns": 3, "environment_deadline": 20.0, "error_rate": 1.0, **limits})
    (group,) = EpisodeCollector(actors, environment, limits).collect([TASK], seed=(0,), label="0")
    return group.trajectories[0]


FAILURES = [TypeError("no JSON"), EpisodeFailure("it raised"), LimitExceeded("the server has ended"), SystemExit(1)]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("retries", [0, 3])
def test_actions_that_break_the_verdict_again_fail_the_episode(failure, retries):
    world, actors = Breaking(lambda count: count > 0, raising(failure)), Scripted((ADD, FINISH))
    found = collected(world, actors, retries=retries)
    assert (found.outcome, found.valid, found.reward) == ("timeout", True, 0.0)
    assert found.error.startswith("evaluate: ")
    assert found.error.endswith(str(failure))
    assert [turn.action for turn in found.turns] == [ADD, FINISH]
    # The policy plays once; then its actions alone, and then none.
    assert world.evaluated == [1, 1, 0]
    assert len(actors.sessions) == 1


def test_actions_that_break_a_step_again_fail_the_episode():
    def broken(task: Task, step: int) -> None:
        if step == 1:
            raise TypeError("no JSON")

    found = collected(CounterEnvironment(broken), Scripted((ADD, ADD, FINISH)))
    assert (found.outcome, found.reward, found.error) == ("timeout", 0.0, "step: TypeError: no JSON")
    assert [turn.observation.ok for turn in found.turns] == [True, False]


def test_a_verdict_that_fails_without_the_actions_too_is_nobodys():
    world = Breaking(lambda count: True, raising(TypeError("no JSON")))
    found = collected(world, Scripted((ADD, FINISH)), retries=0)
    assert (found.outcome, found.valid) == ("environment_error", False)
    assert world.evaluated == [1, 1, 0]


def test_a_failure_that_does_not_come_again_is_played_again_and_counts_as_it_is_then():
    failures = iter([True])
    world = Breaking(lambda count: next(failures, False), raising(OSError("for once")))
    actors = Scripted((ADD, FINISH))
    found = collected(world, actors)
    assert (found.outcome, found.reward) == ("finished", 1.0)
    assert world.evaluated == [1, 1, 1]
    assert actors.sessions == [f"0-{TASK.id}-0-0", f"0-{TASK.id}-0-1"]
    failures = iter([True])
    assert collected(world, Scripted((ADD, FINISH)), retries=0).outcome == "environment_error"


def test_it_is_the_same_actions_that_are_played_again_whatever_the_policy_would_do_now():
    world, actors = Breaking(lambda count: count > 1, raising(TypeError("no JSON"))), Scripted((ADD, ADD), (ADD,))
    found = collected(world, actors, max_turns=2)
    assert (found.outcome, found.reward) == ("timeout", 0.0)
    assert world.evaluated == [2, 2, 0]


def test_what_serves_an_episode_is_never_its_actions_doing():
    world = Breaking(lambda count: count > 0, raising(EnvironmentFailure("the worker is gone")))
    assert collected(world, Scripted((ADD, FINISH)), retries=0).outcome == "environment_error"
    assert world.evaluated == [1]


def test_an_episode_without_actions_is_nobodys():
    world = Breaking(lambda count: True, raising(TypeError("no JSON")))
    assert collected(world, Scripted(()), max_turns=0, retries=0).outcome == "environment_error"
    assert world.evaluated == [0]


def test_nothing_is_played_twice_where_nothing_fails():
    world, actors = Breaking(lambda count: False, raising(TypeError("no JSON"))), Scripted((ADD, FINISH))
    assert collected(world, actors).reward == 1.0
    assert world.evaluated == [1]


def test_a_verdict_that_hangs_by_the_actions_is_charged_and_one_that_hangs_anyway_is_not():
    free = threading.Event()
    for breaks, outcome in ((lambda count: count > 0, "timeout"), (lambda count: True, "environment_error")):
        world = Breaking(breaks, lambda: free.wait(patience(60)))
        found = collected(world, Scripted((ADD, FINISH)), environment_deadline=0.2, retries=0)
        assert (found.outcome, found.reward) == (outcome, 0.0)
        assert found.error.startswith("evaluate took longer than 0.2 s and was abandoned")
        assert world.evaluated == [1, 1, 0]
    free.set()


def test_a_step_that_hangs_when_a_failure_is_played_again_is_a_loss_again():
    free, steps = threading.Event(), iter(range(10))

    def broken(task: Task, step: int) -> None:
        if next(steps) == 0:
            raise TypeError("no JSON")
        free.wait(patience(60))

    found = collected(CounterEnvironment(broken), Scripted((ADD,)), environment_deadline=0.2)
    free.set()
    assert (found.outcome, found.error) == ("timeout", "step: TypeError: no JSON")


def test_groups_come_out_in_order_though_one_episode_is_found_out_meanwhile():
    tasks = CounterEnvironment().tasks("train", 4)
    world = Breaking(lambda count: count == 1, raising(TypeError("no JSON")))
    limits = Limits(max_turns=2, error_rate=0.0, concurrency=2)
    scripts = [(ADD, FINISH), (FINISH,), (ADD, FINISH), (FINISH,)]
    groups = EpisodeCollector(ByTask(dict(zip((int(t.id, 16) for t in tasks), scripts, strict=True))), world, limits)
    found = [group.trajectories[0] for group in groups.collect(tasks, seed=(0,), label="0")]
    assert [one.outcome for one in found] == ["timeout", "finished", "timeout", "finished"]


class ByTask:
    """Actors that take the script of their episode's task."""

    def __init__(self, scripts: dict[int, tuple[Action, ...]]) -> None:
        self.scripts = scripts

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        return follow(self.scripts[seed[-2]])

    def release(self, session: str) -> None:
        pass

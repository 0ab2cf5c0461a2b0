"""Isolation: episodes play as they would here, and lost children are told apart."""

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from worker_trials import BOUNDS, attempt, descendants, do, gone, processes, task

import environments
from cojax.environment import EnvironmentFailure, LimitExceeded, play
from cojax.environment.replay import follow
from environments.worker import IsolatedEnvironment, isolate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")


@pytest.fixture(scope="module")
def world() -> Iterator[IsolatedEnvironment]:
    environment = isolate("hostile", bounds=BOUNDS, greeting="hello")
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[IsolatedEnvironment]:
    """For episodes that take as long as they may."""
    environment = isolate("hostile", bounds=dataclasses.replace(BOUNDS, deadline=0.5))
    yield environment
    environment.close()


def test_an_episode_plays_as_it_would_here(world):
    trajectory = attempt(world, "say", "hi")
    assert trajectory.opening[0].content == "do as you like"
    assert trajectory.turns[0].observation.text == "hi"
    assert (trajectory.outcome, trajectory.reward, trajectory.checks[0].name) == ("truncated", 0.25, "said")
    assert world.phrase([]) == "hello"
    assert [t.setup["number"] for t in world.tasks("all", 3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="split 'none' not found; available: all"):
        world.tasks("none", 1)


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("spin", "step took longer than 0.5 s"),
        ("deaf", "step took longer than 0.5 s"),
        ("allocate", "out of memory"),
        ("flood", "the reply to step is no reply"),
        ("exit", "the child died during step"),
        ("forge", "the reply to step is no reply to this call"),
    ],
)
def test_a_limit_inside_step_is_the_actions_own(world, hasty, deed, reason):
    trajectory = attempt(hasty if "took longer" in reason else world, deed)
    assert (trajectory.outcome, trajectory.reward, trajectory.valid) == ("timeout", 0.0, True)
    assert reason in trajectory.error
    assert not trajectory.turns[0].observation.ok


@pytest.mark.parametrize("where", ["reset", "evaluate"])
@pytest.mark.parametrize("deed", ["spin", "exit", "allocate"])
def test_the_same_elsewhere_is_an_environment_error(world, hasty, where, deed):
    lost = task(query=deed) if where == "reset" else task(at_evaluation=deed)
    trajectory = play(hasty if deed == "spin" else world, lost, follow([do("say", "x")]), max_turns=1)
    assert (trajectory.outcome, trajectory.valid) == ("environment_error", False)
    assert trajectory.error.startswith(where)


def test_a_child_that_died_idle_is_not_the_next_actions_doing(world):
    supervisor = world.supervisor
    world.phrase([])
    before = descendants(supervisor)
    episode = world.start(task())
    episode.reset()
    born = descendants(supervisor) - before
    # It ends by itself once it has answered.
    episode.step(do("later"))
    assert born
    assert gone(born)
    time.sleep(0.1)
    with pytest.raises(EnvironmentFailure, match="LOST") as lost:
        episode.step(do("say", "x"))
    assert not isinstance(lost.value, LimitExceeded)
    episode.close()


def test_a_child_that_hangs_up_and_lives_on_is_killed(world):
    world.phrase([])
    before = descendants(world.supervisor)
    episode = world.start(task())
    episode.reset()
    born = descendants(world.supervisor) - before
    episode.step(do("mute"))
    time.sleep(0.4)
    assert born <= processes().keys()
    with pytest.raises(EnvironmentFailure, match="LOST"):
        episode.step(do("say", "x"))
    assert gone(born)
    episode.close()


@pytest.mark.parametrize("deed", ["raise", "leave"])
def test_an_environment_that_raises_loses_the_episode_alone(world, deed):
    assert attempt(world, deed).outcome == "environment_error"


@pytest.mark.parametrize("text", ["x" * 10_000_000, "\ud800", "\x00\n\r", "<|im_end|>", '{"n":1,"value":1}\n'])
def test_any_text_gets_an_answer(world, text):
    trajectory = attempt(world, "say", text)
    assert trajectory.outcome == ("timeout" if len(text) > BOUNDS.output else "truncated")


def test_many_episodes_at_once_keep_apart(world):
    told: dict[int, str] = {}

    def one(number: int) -> None:
        trajectory = play(world, task(), follow([do("say", str(number))] * 3), max_turns=3)
        told[number] = trajectory.turns[-1].observation.text

    threads = [threading.Thread(target=one, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {number: str(number) for number in range(32)}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"module": "hostile", "broken": True}, "RuntimeError: the data is not there"),
        ({"module": "hostile", "unknown": 1}, "unexpected keyword argument 'unknown'"),
        ({"module": "hostile", "slow": 5.0}, "took longer than 1 s"),
        ({"module": "hostile", "python": "/usr/bin/true"}, "ended before the environment was made"),
        ({"module": "hostile", "python": "/no/such/python"}, "No such file"),
        ({"module": "environments.no_such"}, "No module named"),
    ],
)
def test_an_environment_that_cannot_be_made_says_why(settings, reason):
    with pytest.raises(EnvironmentFailure, match=reason):
        isolate(**settings, bounds=dataclasses.replace(BOUNDS, start_deadline=1.0))


def test_too_many_children_is_an_error_that_names_the_bound():
    world = isolate("hostile", bounds=dataclasses.replace(BOUNDS, children=2))
    first = world.start(task())
    first.reset()
    world.tools()  # the environment's own child
    second = world.start(task())
    with pytest.raises(EnvironmentFailure, match="raise the bound `children`"):
        second.reset()
    world.close()


def test_the_desk_gives_the_same_through_a_worker():
    here, there = environments.load("desk"), environments.load("desk", isolated=True)
    assert there.tools() == here.tools()
    assert there.popularity() == here.popularity()
    assert there.neighbours("files_move") == here.neighbours("files_move")
    assert there.lexicon() == here.lexicon()
    ours = list(zip(range(300), here.demonstrations(300, 1, (0.1, 0.8)), strict=False))
    assert list(zip(range(300), there.demonstrations(300, 1, (0.1, 0.8)), strict=False)) == ours
    for split in ("seed", "eval"):
        tasks = here.tasks(split, 8, seed=3)
        assert there.tasks(split, 8, seed=3) == tasks
        for found in tasks:
            one, other = (play(world, found, follow(found.solution), max_turns=9) for world in (here, there))
            assert [turn.observation for turn in one.turns] == [turn.observation for turn in other.turns]
            assert (one.reward, one.checks, one.outcome) == (other.reward, other.checks, other.outcome)
    episode, other = here.start(tasks[0]), there.start(tasks[0])
    assert episode.reset() == other.reset()
    assert episode.affordances() == other.affordances()
    assert episode.state() == other.state()
    there.close()

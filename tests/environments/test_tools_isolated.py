"""Tools that hang: in this process they are given up, and in a worker they are killed."""

from __future__ import annotations

import re
import sys
import threading

import pytest
from patience import patience

from cojax.environment import EnvironmentFailure, Traits, play, traits_of
from cojax.environment.replay import follow
from cojax.environment.watch import watched_play
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Action, Call, Task
from environments.tools import ToolEnvironment
from environments.worker import Bounds, isolate

SOURCE = """
import time
from cojax.environment import Traits
from environments.tools import ToolEnvironment

def press(world, key: str) -> None:
    world["pressed"] = key

def wait(world) -> None:
    time.sleep(600)

def spoil(world) -> None:
    world["pressed"] = float("inf")

def flood(world) -> str:
    return "x" * 10**9

def make():
    raise RuntimeError("not this one")

def keys(*, first: str):
    traits = Traits(concurrency=2, deadline=9.0, commands={"press": "key"})
    return ToolEnvironment("keys", [press, wait, spoil, flood], dict, [{"pressed": first}], traits=traits)
"""


def call(name, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "keyboard.py").write_text(SOURCE)
    sys.path.append(str(folder))
    made = isolate("keyboard:keys", bounds=Bounds(deadline=0.7), first="a")
    yield made
    made.close()
    sys.path.remove(str(folder))


def played(environment, *actions, solution=()):
    (task,) = environment.tasks("seed", 1)
    of = Task(task.environment, "press", task.setup, solution)
    return play(environment, of, follow(actions), max_turns=len(actions))


def test_a_function_of_a_module_is_isolated_with_its_traits(keys):
    assert keys.name == "keys"
    assert traits_of(keys) == Traits(concurrency=2, deadline=9.0, commands={"press": "key"}, ending="finish")
    solution = (call("press", key="b"), call("finish"))
    assert played(keys, *solution, solution=solution).reward == 1.0
    assert keys.phrase([]) is None


def test_a_tool_that_hangs_or_floods_in_a_worker_is_the_action_s_doing(keys):
    assert played(keys, call("wait")).outcome == "timeout"
    flooded = played(keys, call("flood"), call("finish"))
    assert flooded.outcome in ("timeout", "finished")
    assert len(flooded.turns[0].observation.text) < 20_000
    assert played(keys, call("press", key="c"), call("finish")).outcome == "finished"


def test_a_tool_that_leaves_a_world_in_a_worker_without_a_state_is_the_action_s_doing(keys):
    class Spoiling:
        def __call__(self, session, seed):
            return follow([call("spoil"), call("finish")])

        def release(self, session):
            pass

    (setup,) = keys.tasks("seed", 1)
    solved = Task("keys", "press", setup.setup, (call("press", key="b"), call("finish")))
    collector = EpisodeCollector(Spoiling(), keys, Limits(max_turns=2, error_rate=1.0))
    (group,) = collector.collect([solved], seed=(0,), label="0")
    found = group.trajectories[0]
    assert (found.outcome, found.valid, found.reward) == ("timeout", True, 0.0)
    assert "the world's state is no JSON" in found.error


def test_a_tool_that_hangs_in_this_process_is_given_up():
    over = threading.Event()

    def wait(world) -> None:
        over.wait(patience(60))

    environment = ToolEnvironment("slow", [wait], dict, [{}])
    found = watched_play(0.3)(environment, Task("slow", "wait", {}), follow([call("wait")]), max_turns=1)
    over.set()
    assert found.outcome == "environment_error"
    assert found.error.startswith("step took longer than 0.3 s and was abandoned")


def test_what_a_worker_cannot_import_is_named(tmp_path, monkeypatch):
    (tmp_path / "keyed.py").write_text("import keyed_helper\n\ndef make():\n    return None\n")
    (tmp_path / "keyed_helper.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvironmentFailure) as refused:
        isolate("keyed:make")
    assert str(refused.value).splitlines()[0] == (
        "START: ModuleNotFoundError: No module named 'keyed_helper'; a worker imports the packages of "
        f"{sys.prefix} and the package of its environment's module alone"
    )
    with pytest.raises(ValueError, match=re.escape(f"no module 'unkeyed' to isolate in {tmp_path} or among")):
        isolate("unkeyed:make")


LENDING = """
from environments.tools import ToolEnvironment

opened = []

def lend(world, book: str, reader: str):
    world["loans"][book] = reader

def open_library(setup):
    opened.append(setup)
    return setup

def count(world) -> int:
    return len(opened)

def make():
    setup = {"books": {"emma": 1815, "dracula": 1897}, "readers": ["ann", "bo"], "loans": {}}
    return ToolEnvironment("library", [lend, count], open_library, [setup])
"""


def test_a_worker_finds_out_once_where_values_come_from(tmp_path, monkeypatch):
    (tmp_path / "lending.py").write_text(LENDING)
    monkeypatch.syspath_prepend(tmp_path)
    made = isolate("lending:make")
    try:
        episode = made.start(made.tasks("seed", 1)[0])
        episode.reset()
        lent = [action.calls[0].arguments for action in episode.affordances() if action.calls[0].name == "lend"]
        assert {arguments["book"] for arguments in lent} == {"emma", "dracula"}
        assert {arguments["reader"] for arguments in lent} == {"ann", "bo"}
        # Neither this episode nor the process from which it was forked has opened other worlds.
        assert episode.step(call("count")).text == "1"
        episode.close()
    finally:
        made.close()

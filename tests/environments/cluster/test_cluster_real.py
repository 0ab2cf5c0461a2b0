"""Environments on a Ray cluster of three nodes on this machine: the same episodes, and what a lost node costs."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import placed_trials
import pytest
from patience import patience
from placed_episodes import Solving, collected, collected_with_a_loss, until
from placed_trials import trial
from ray_nodes import RayNodes, command_line, ray_nodes

import environments
from cojax.environment import PLAYING, EnvironmentFailure, Episode, Progress, play, running, runs_policy_code, traits_of
from cojax.environment.replay import follow
from cojax.host.processes import family
from cojax.types import Action, Task
from environments.cluster import ClusterEnvironment, place

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(3) as made:
        yield made


@pytest.fixture(scope="module")
def desk(nodes) -> Iterator[ClusterEnvironment]:
    environment = place(nodes.address, "desk", {})
    yield environment
    environment.close()


@pytest.fixture(scope="module")
def trials(nodes) -> Iterator[ClusterEnvironment]:
    environment = place(nodes.address, "placed_trials:make", {})
    yield environment
    environment.close()


def test_the_desk_is_the_same_on_nodes(desk, nodes):
    local = environments.load("desk")
    tasks = local.tasks("eval", 60)
    used: Counter[str] = Counter()
    found = collected(desk, tasks, Solving(tasks, lambda episode: used.update([episode.server.id])))
    assert found == collected(local, tasks, Solving(tasks))
    assert all(trajectory.reward == 1.0 for trajectory in found)
    assert used.keys() == {one.node_id for one in nodes.nodes}
    assert not any(one.open_episode_ids for one in desk.nodes.live)
    assert (desk.name, desk.tools(), desk.lexicon()) == (local.name, local.tools(), local.lexicon())
    assert desk.tasks("dev", 30, 7) == local.tasks("dev", 30, 7)
    assert (desk.popularity(), desk.neighbours("finish")) == (local.popularity(), local.neighbours("finish"))
    shown = list(desk.demonstrations(300, 3, (0.1, 0.3)))
    assert shown == list(local.demonstrations(300, 3, (0.1, 0.3)))
    with pytest.raises(ValueError, match="nonsense"):
        desk.tasks("nonsense", 1)


def test_an_episode_offers_what_it_offers_here(desk):
    local = environments.load("desk")
    (task,) = local.tasks("challenge", 1)
    for one, other in [(desk.start(task), local.start(task))]:
        assert (one.reset(), one.tools()) == (other.reset(), other.tools())
        for action in (*task.solution[:-1], Action("nonsense"), task.solution[-1]):
            assert one.affordances() == other.affordances()
            assert one.step(action) == other.step(action)
            assert one.state() == other.state()
        assert one.evaluate() == other.evaluate()
        one.close()
        with pytest.raises(EnvironmentFailure):
            one.state()


@pytest.mark.parametrize("policy_code", [False, True])
def test_what_an_environment_raises_ends_an_episode_as_it_does_here(nodes, policy_code):
    settings = {"runs_policy_code": policy_code, "sizes": (1, 2)}
    placed, local = place(nodes.address, "placed_trials:make", settings), placed_trials.make(**settings)
    assert runs_policy_code(placed) is policy_code
    try:
        for task in local.tasks("all", 100):
            one, other = (
                play(environment, task, follow(task.solution), max_turns=2) for environment in (placed, local)
            )
            assert one.outcome == other.outcome, task.query
            assert len(one.turns) == len(other.turns), task.query
            if task.setup["deed"] in placed_trials.FAILURES:
                assert one.error == other.error
        with pytest.raises(ValueError, match="split 'some' not found; available: all"):
            placed.tasks("some", 1)
    finally:
        placed.close()


def test_a_reply_without_end_is_a_limit_that_the_action_hit(trials):
    task = trial("large", "step")
    trajectory = play(trials, task, follow(task.solution), max_turns=2)
    assert trajectory.outcome == "timeout"
    assert trajectory.error.startswith("step: the reply has 41,943,")
    assert trajectory.error.endswith(" bytes, more than the 33,554,432 that a node may send")


def test_a_hanging_call_is_given_up_as_it_is_here(trials):
    tasks = [trial("hang", "step"), trial("", "none")]
    limits = {"environment_deadline": 1.0, "error_rate": 1.0}
    found = collected(trials, tasks, Solving(tasks), **limits)
    assert [trajectory.outcome for trajectory in found] == ["timeout", "finished"]
    assert found == collected(placed_trials.make(), tasks, Solving(tasks), **limits)
    # The threads that waited for it have ended, and closed their episodes.
    until(lambda: not any(one.open_episode_ids for one in trials.nodes.live))


def test_a_call_of_the_environment_behind_one_that_hangs_has_a_deadline_of_its_own(trials):
    first, *_ = trials.nodes.live
    with ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(first.call, 0, "tasks", ["hang", 1, 0], 6.0)
        until(lambda: first._counted_s_by_call)
        behind = pool.submit(first.call, 0, "tasks", ["all", 3, 0], 3.0)
        assert str(behind.exception(60)).startswith("tasks took longer than 3 s on ")
        assert str(hanging.exception(60)).startswith("tasks took longer than 6 s on ")
    # As `Nodes.call_service` does after a failure: the next call gets another thread.
    first.end_episode(0)
    assert len(first.call(0, "tasks", ["all", 3, 0], 60.0)) == 3


def test_time_that_an_environment_excuses_is_excused_here(trials):
    task, progress = trial("excuse", "step"), Progress()
    episode = trials.start(task)
    episode.reset()
    playing = PLAYING.set(progress)
    try:
        progress.since = began = running()
        episode.step(task.solution[0])
    finally:
        PLAYING.reset(playing)
        episode.close()
    assert running() - began > 0.6
    assert progress.since - began > 0.5  # however long the rest takes


def test_a_stopped_node_is_lost_when_it_is_silent_for_too_long(nodes, monkeypatch):
    monkeypatch.setattr("environments.cluster.nodes.MAX_SILENCE_S", 2.0)
    environment = place(nodes.address, "placed_trials:make", {})
    episode = environment.start(trial("", "none"))
    episode.reset()
    process = episode.state()["process"]
    progress = Progress()
    playing = PLAYING.set(progress)
    os.kill(process, signal.SIGSTOP)
    try:
        progress.since = running()
        with pytest.raises(EnvironmentFailure, match="was silent for 2 s"):
            episode.step(Action())
        # The wait for a node that says nothing is not charged to the action.
        assert running() - progress.since < 1.0
        assert episode.server not in environment.nodes.live or episode.server.loss
        other = environment.start(trial("", "none"))
        assert other.server is not episode.server
        other.close()
    finally:
        PLAYING.reset(playing)
        os.kill(process, signal.SIGKILL)
        environment.close()


def test_an_actor_that_is_killed_is_replaced_and_its_worker_ends(nodes):
    environment = place(nodes.address, "desk", {"isolated": True})
    assert environment.layers.keys() == {"network", "files", "processes", "user", "calls"}
    (task,) = environment.tasks("eval", 1)
    episode = environment.start(task)
    episode.reset()
    until(lambda: episode.server.pid > 0)
    below = set(family(episode.server.pid))
    assert len(below) >= 4  # itself, supervisor, fork server, child
    os.kill(episode.server.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFailure, match=r"node .* was lost"):
        asked_without_end(episode)
    until(lambda: not any(map(command_line, below)))
    until(lambda: len([one for one in environment.nodes.live if not one.loss]) == 3)
    environment.close()


def test_an_environment_that_limits_its_episodes_does_so_on_each_node(nodes):
    environment = place(nodes.address, "placed_trials:make", {"most": 2})
    assert traits_of(environment).concurrency == 6
    task, started = trial("", "none"), []
    started += [environment.start(task) for _ in range(6)]
    assert Counter(one.server.id for one in started).most_common()[0][1] == 2
    with ThreadPoolExecutor(1) as threads:
        seventh = threads.submit(environment.start, task)
        assert not seventh.done()
        started[3].close()
        assert seventh.result(patience(100)).server is started[3].server
    environment.close()
    with pytest.raises(EnvironmentFailure, match="was closed"):
        environment.start(task)


def test_what_cannot_be_made_there_is_said_at_once_with_the_node(nodes, monkeypatch, tmp_path):
    with pytest.raises(
        EnvironmentFailure, match=r"node \S+ \(\w+\) cannot make placed_trials:make: RegistryError: .*walls"
    ):
        place(nodes.address, "placed_trials:make", {"walls": 4})
    (tmp_path / "only_here.py").write_text("def make():\n    raise AssertionError\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentFailure, match=r"cannot make only_here:make: .*no module 'only_here'"):
        place(nodes.address, "only_here:make", {})
    with pytest.raises(ValueError, match=f"this process uses {nodes.address} already"):
        place(nodes.client, "desk", {})


CLIENT = """
import sys
import environments
from cojax.environment import play
from cojax.environment.replay import follow
from environments.cluster import place
environment, local = place(sys.argv[1], "desk", {}), environments.load("desk")
for task in local.tasks("eval", 20):
    one, other = (play(e, task, follow(task.solution), max_turns=20) for e in (environment, local))
    assert (one.reward, one.checks, one.outcome) == (other.reward, other.checks, other.outcome)
    assert one.reward == 1.0
print(" ".join(node.id for node in environment.nodes.live), flush=True)
sys.stdin.read()
"""


@pytest.mark.nightly
def test_a_host_outside_the_cluster_uses_it_and_leaves_nothing_when_it_is_killed(nodes):
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, nodes.client],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    before = actors(nodes)
    assert client.stdout is not None
    assert len(client.stdout.readline().split()) == 3
    begun = actors(nodes) - before
    assert len(begun) == 3
    client.kill()
    client.communicate()
    # Ray keeps what belongs to a client for half a minute: it may come back.
    until(lambda: not begun & actors(nodes))


def asked_without_end(episode: Episode) -> None:
    while True:
        episode.state()


def actors(nodes: RayNodes) -> set[int]:
    """The processes of hosts on all nodes."""
    below = {pid for one in nodes.nodes for raylet in one.all_processes["raylet"] for pid in family(raylet.process.pid)}
    return {pid for pid in below if b"ray::Host" in command_line(pid)}


def test_two_hundred_desk_episodes_survive_the_loss_of_a_node(desk, nodes):
    local = environments.load("desk")
    tasks = local.tasks("eval", 200)
    found, struck = collected_with_a_loss(nodes, desk, tasks)
    assert struck > 0
    assert found == collected(local, tasks, Solving(tasks))
    assert all((trajectory.outcome, trajectory.reward) == ("finished", 1.0) for trajectory in found)
    nodes.add()
    until(lambda: len([one for one in desk.nodes.live if not one.loss]) == 3)


@pytest.mark.nightly
def test_forty_bfcl_episodes_survive_the_loss_of_a_node(nodes):
    local = environments.load("bfcl")
    # Half of them leave out the last call, so that not every verdict is the same.
    tasks = [shortened(task) if place % 2 else task for place, task in enumerate(local.tasks("base", 40))]
    environment = place(nodes.address, "bfcl", {})
    try:
        assert environment.layers == local.layers
        found, struck = collected_with_a_loss(nodes, environment, tasks)
        assert struck > 0
        assert found == collected(local, tasks, Solving(tasks))
        assert {trajectory.outcome for trajectory in found} <= {"finished", "truncated"}
        assert {trajectory.reward for trajectory in found} == {0.0, 1.0}
    finally:
        environment.close()
        local.close()


def shortened(task: Task) -> Task:
    *_, last = [index for index, action in enumerate(task.solution) if action.calls]
    solution = (*task.solution[:last], dataclasses.replace(task.solution[last], calls=()), *task.solution[last + 1 :])
    return dataclasses.replace(task, solution=solution)

"""Ends: nothing of a worker outlives its trainer, its supervisor or an episode, and what is lost is replaced."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from patience import patience
from worker_trials import BOUNDS, ROOT, attempt, descendants, do, gone, processes, program, task

from cojax.environment import EnvironmentFailure, LimitExceeded, SandboxLost
from cojax.types import Observation, Triplet
from environments.worker import IsolatedEnvironment, isolate

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")


@pytest.fixture(scope="module")
def world() -> Iterator[IsolatedEnvironment]:
    environment = isolate("hostile", bounds=BOUNDS, greeting="hello")
    yield environment
    environment.close()


def test_nothing_outlives_a_killed_trainer():
    code = """
    world = isolate("hostile")
    episodes = [world.start(task()) for _ in range(3)]
    for deed, episode in zip(("spin", "orphan", "bomb"), episodes):
        episode.reset()
        doing = threading.Thread(target=episode.step, args=(do(deed),), daemon=True)
        doing.start()
    doing.join()
    print("ready", flush=True)
    time.sleep(60)
    """
    with subprocess.Popen(program(code), cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "ready\n"
        family = descendants(trainer.pid)
        assert len(family) > 5
        trainer.kill()
        assert gone(family)


def test_closing_leaves_no_process_descriptor_or_file(world):
    attempt(world, "say")  # what Python opens once
    files, descriptors, threads = set(os.listdir("/tmp")), len(os.listdir("/proc/self/fd")), threading.active_count()
    other = isolate("hostile", bounds=BOUNDS)
    attempt(other, "say")
    family = descendants(other.supervisor) | {other.supervisor}
    assert len(family) >= 2
    other.close()
    assert gone(family)
    left = [f"/tmp/{name}" for name in os.listdir("/tmp") if name not in files]
    assert not [path for path in left if os.path.exists(path) and os.stat(path).st_uid >= 10**9]
    time.sleep(0.2)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)


def test_a_killed_supervisor_or_fork_server_is_replaced_and_nobodys_doing():
    world = isolate("hostile", bounds=BOUNDS, runs_policy_code=True, greeting="hello")
    for killed in ("supervisor", "fork server"):
        episode = world.start(task())
        episode.reset()
        victim = world.supervisor
        family = descendants(victim) | {victim}
        if killed == "fork server":
            victim = next(pid for pid, parent in processes().items() if parent == victim)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(EnvironmentFailure) as lost:
            episode.step(do("spin"))
        assert not isinstance(lost.value, SandboxLost)
        assert world.phrase([]) == "hello"
        assert attempt(world, "say", "hi").turns[0].observation.text == "hi"
        assert gone(family)
    world.close()


def test_a_hanging_service_is_replaced():
    world = isolate("hostile", bounds=dataclasses.replace(BOUNDS, service_deadline=0.5), greeting="hello")
    with pytest.raises(LimitExceeded, match=r"phrase took longer than 0\.5 s"):
        world.phrase([Triplet(do("spin"), Observation(), 0)])
    assert world.phrase([]) == "hello"
    world.close()


def test_a_forked_copy_of_the_trainer_leaves_the_worker_alone():
    code = """
    world = isolate("hostile")
    if not (pid := os.fork()):
        sys.exit(0)
    os.waitpid(pid, 0)
    print(attempt(world, "say", "still here").turns[0].observation.text)
    """
    done = subprocess.run(program(code), cwd=ROOT, capture_output=True, text=True, timeout=patience(60))
    assert done.stdout == "still here\n", done.stderr


def test_a_forked_copy_of_a_killed_trainer_keeps_nothing_alive():
    code = """
    world = isolate("hostile")
    world.tools()
    if not os.fork():
        time.sleep(30)
        os._exit(0)
    print(world.supervisor, flush=True)
    time.sleep(30)
    """
    with subprocess.Popen(program(code), cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        supervisor = int(trainer.stdout.readline())
        family = descendants(supervisor) | {supervisor}
        trainer.kill()
        assert len(family) > 2
        assert gone(family)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_trainer_that_ends_while_the_worker_starts_leaves_nothing(number):
    code = """
    from worker_trials import descendants
    threading.Thread(target=lambda: isolate("hostile", slow=60.0), daemon=True).start()
    while len(descendants(os.getpid())) < 2:
        time.sleep(0.05)
    print("started", flush=True)
    time.sleep(30)
    """
    with subprocess.Popen(program(code), cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "started\n"
        family = descendants(trainer.pid)
        assert len(family) == 2  # supervisor, fork server
        os.kill(trainer.pid, number)
        assert gone(family)


@pytest.mark.parametrize("deed", ["bomb", "orphan"])
def test_nothing_that_a_child_starts_outlives_it(world, deed):
    before = set(processes())
    assert attempt(world, deed).turns[0].observation.ok
    assert gone(set(processes()) - before)


def test_two_workers_leave_each_other_alone(world):
    other = isolate("hostile", bounds=BOUNDS)
    episode = other.start(task())
    episode.reset()
    for _ in range(8):
        attempt(world, "say", "x")
    assert episode.step(do("say", "untouched")).text == "untouched"
    other.close()
    with pytest.raises(EnvironmentFailure, match="was closed"):
        other.phrase([])

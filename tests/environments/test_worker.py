"""Isolation: what a hostile child tries is contained, lost children are told apart, and nothing outlives anyone."""

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import environments
from cojax.environment import EnvironmentFailure, LimitExceeded, play
from cojax.replay import follow
from cojax.types import Action, Call, Observation, Task, Triplet
from environments.worker import Bounds, IsolatedEnvironment, isolate, kernel

ROOT = Path(__file__).parents[2]
BOUNDS = Bounds(deadline=1.5, output=2**20)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")


@pytest.fixture(scope="module")
def world() -> Iterator[IsolatedEnvironment]:
    environment = isolate("hostile", bounds=BOUNDS, greeting="hello")
    yield environment
    environment.close()


def do(deed: str, argument: str = "") -> Action:
    return Action(calls=(Call(deed, {"argument": argument}),))


def task(**setup: object) -> Task:
    return Task("hostile", str(setup.pop("query", "")), setup)


def attempt(world: IsolatedEnvironment, deed: str, argument: str = ""):
    """What the deed told, and the verdict on an episode right after it."""
    trajectory = play(world, task(), follow([do(deed, argument)]), max_turns=1)
    after = play(world, task(), follow([do("say", "still here")]), max_turns=1)
    assert (after.turns[0].observation.text, after.reward) == ("still here", 0.25)
    return trajectory


def processes() -> dict[int, int]:
    """Every process and its parent."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def descendants(ancestor: int) -> set[int]:
    parents, found = processes(), {ancestor}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return found - {ancestor}


def gone(pids: set[int], seconds: float = 10.0) -> bool:
    """Whether all of them end in time."""
    deadline = time.monotonic() + seconds
    while pids & processes().keys():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


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
        ("spin", "step took longer than 1.5 s"),
        ("deaf", "step took longer than 1.5 s"),
        ("allocate", "out of memory"),
        ("flood", "the reply to step is no reply"),
        ("exit", "the child died during step"),
        ("forge", "the reply to step is no reply to this call"),
    ],
)
def test_a_limit_inside_step_is_the_actions_own(world, deed, reason):
    trajectory = attempt(world, deed)
    assert (trajectory.outcome, trajectory.reward, trajectory.valid) == ("timeout", 0.0, True)
    assert reason in trajectory.error
    assert not trajectory.turns[0].observation.ok


@pytest.mark.parametrize("where", ["reset", "evaluate"])
@pytest.mark.parametrize("deed", ["spin", "exit", "allocate"])
def test_the_same_elsewhere_is_an_environment_error(world, where, deed):
    lost = task(query=deed) if where == "reset" else task(at_evaluation=deed)
    trajectory = play(world, lost, follow([do("say", "x")]), max_turns=1)
    assert (trajectory.outcome, trajectory.valid) == ("environment_error", False)
    assert trajectory.error.startswith(where)


def test_a_child_that_died_idle_is_not_the_next_actions_doing(world):
    supervisor = world.supervisor
    world.phrase([])
    before = descendants(supervisor)
    episode = world.start(task())
    episode.reset()
    born = descendants(supervisor) - before
    # It ends by itself half a second after it has answered.
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
    time.sleep(0.6)
    assert born <= processes().keys()
    with pytest.raises(EnvironmentFailure, match="LOST"):
        episode.step(do("say", "x"))
    assert gone(born)
    episode.close()


@pytest.mark.parametrize("deed", ["raise", "leave"])
def test_an_environment_that_raises_loses_the_episode_alone(world, deed):
    assert attempt(world, deed).outcome == "environment_error"


def test_the_file_system_shows_only_what_is_needed(world):
    if not world.layers["files"]:
        pytest.skip("no mount namespace here")
    for secret in ("/etc/shadow", str(Path.home() / ".bashrc"), str(ROOT / "README.md"), str(ROOT / ".git" / "HEAD")):
        assert "No such file" in attempt(world, "read", secret).turns[0].observation.text
    assert "Read-only" in attempt(world, "write", "/usr/x").turns[0].observation.text
    assert "too large" in attempt(world, "fill").turns[0].observation.text
    assert attempt(world, "list", "/tmp").turns[0].observation.text == ""


@pytest.fixture
def open_folder():
    """One that any user may read and no layer covers, wherever this checkout, Python and pytest's folders lie."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        os.chmod(made, 0o755)
        yield Path(made)


def test_a_hidden_folder_is_empty_or_cannot_be_opened(open_folder):
    for name in ("beside", "secret"):
        (open_folder / name).mkdir()
        (open_folder / name / "truth.txt").touch()
        os.chmod(open_folder / name, 0o755)
    shown = isolate("hostile", bounds=BOUNDS, visible=(str(open_folder),))
    if not shown.layers["files"]:
        pytest.skip("neither a mount namespace nor Landlock here")
    secret, beside = str(open_folder / "secret"), str(open_folder / "beside")
    assert attempt(shown, "list", secret).turns[0].observation.text == "truth.txt"
    blind = isolate("hostile", bounds=BOUNDS, visible=(str(open_folder),), hidden=(secret,))
    found = attempt(blind, "list", secret).turns[0].observation.text
    assert found == "" or "Permission denied" in found
    assert attempt(blind, "list", beside).turns[0].observation.text == "truth.txt"
    for each in (shown, blind):
        each.close()


def test_there_is_no_network(world):
    if not world.layers["network"]:
        pytest.skip("no network namespace here")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        told = attempt(world, "connect", str(server.getsockname()[1])).turns[0].observation
    assert not told.ok
    assert told.text.startswith("refused")


def test_there_are_no_secrets_in_the_surroundings(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    world = isolate("hostile", bounds=BOUNDS)
    assert "OPENAI_API_KEY" not in attempt(world, "secrets").turns[0].observation.text.split()
    world.close()


def test_a_child_has_no_privileges(world):
    assert not attempt(world, "mount").turns[0].observation.ok
    assert not attempt(world, "signal", str(os.getpid())).turns[0].observation.ok
    if os.geteuid() == 0:
        assert "uid 0 " not in attempt(world, "identity").turns[0].observation.text


@pytest.mark.parametrize("deed", ["bomb", "orphan"])
def test_nothing_that_a_child_starts_outlives_it(world, deed):
    before = set(processes())
    assert attempt(world, deed).turns[0].observation.ok
    assert gone(set(processes()) - before)


def test_a_fork_bomb_is_bounded(world):
    forks, _ = attempt(world, "bomb").turns[0].observation.text.split()
    assert 0 < int(forks) < BOUNDS.processes


@pytest.mark.parametrize("text", ["x" * 10_000_000, "\ud800", "\x00\n\r", "<|im_end|>", '{"n":1,"value":1}\n'])
def test_any_text_gets_an_answer(world, text):
    trajectory = attempt(world, "say", text)
    assert trajectory.outcome == ("timeout" if len(text) > BOUNDS.output else "truncated")


def test_many_episodes_at_once_keep_apart():
    world = isolate("hostile")
    told: dict[int, str] = {}

    def one(number: int) -> None:
        trajectory = play(world, task(), follow([do("say", str(number))] * 3), max_turns=3)
        told[number] = trajectory.turns[-1].observation.text

    threads = [threading.Thread(target=one, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {number: str(number) for number in range(64)}
    world.close()


def test_a_hanging_service_is_replaced():
    world = isolate("hostile", bounds=dataclasses.replace(BOUNDS, service_deadline=0.5), greeting="hello")
    with pytest.raises(LimitExceeded, match=r"phrase took longer than 0\.5 s"):
        world.phrase([Triplet(do("spin"), Observation(), 0)])
    assert world.phrase([]) == "hello"
    world.close()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_killed_supervisor_or_fork_server_is_replaced(depth):
    world = isolate("hostile", bounds=BOUNDS, greeting="hello")
    episode = world.start(task())
    episode.reset()
    victim = world.supervisor
    family = descendants(victim) | {victim}
    for _ in range(depth - 1):
        victim = next(pid for pid, parent in processes().items() if parent == victim)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(EnvironmentFailure):
        episode.step(do("spin"))
    assert world.phrase([]) == "hello"
    assert attempt(world, "say", "hi").turns[0].observation.text == "hi"
    world.close()
    assert gone(family)


def test_nothing_outlives_a_killed_trainer():
    code = """
    world = isolate("hostile")
    for deed in ("spin", "orphan", "bomb"):
        episode = world.start(task())
        episode.reset()
        threading.Thread(target=episode.step, args=(do(deed),), daemon=True).start()
    time.sleep(1)
    print("ready", flush=True)
    time.sleep(60)
    """
    with subprocess.Popen(program(code), cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "ready\n"
        family = descendants(trainer.pid)
        assert len(family) > 5
        trainer.kill()
        assert gone(family)


def test_closing_leaves_no_process_descriptor_or_file():
    isolate("hostile", bounds=BOUNDS).close()  # what Python opens once
    files, descriptors, threads = set(os.listdir("/tmp")), len(os.listdir("/proc/self/fd")), threading.active_count()
    world = isolate("hostile", bounds=BOUNDS)
    attempt(world, "say")
    family = descendants(world.supervisor) | {world.supervisor}
    assert len(family) >= 2
    world.close()
    assert gone(family)
    left = [f"/tmp/{name}" for name in os.listdir("/tmp") if name not in files]
    assert not [path for path in left if os.path.exists(path) and os.stat(path).st_uid >= 10**9]
    time.sleep(0.2)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)


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


def test_without_enclosure_the_limits_still_hold():
    world = isolate("hostile", bounds=BOUNDS, enclosed=False)
    world.phrase([])
    # Of this worker alone: other tests start processes meanwhile.
    before = descendants(world.supervisor)
    assert attempt(world, "bomb").turns[0].observation.ok
    assert attempt(world, "orphan").turns[0].observation.ok
    assert attempt(world, "spin").outcome == "timeout"
    assert gone(descendants(world.supervisor) - before)
    world.close()


PROGRAM = """
import os, signal, subprocess, sys, threading, time
sys.path[:0] = [{tests!r}, {here!r}]
from environments.worker import isolate
from test_worker import attempt, do, task
"""


def program(code: str) -> list[str]:
    """A trainer of its own."""
    head = PROGRAM.format(tests=str(ROOT / "tests"), here=str(Path(__file__).parent))
    return [sys.executable, "-c", head + textwrap.dedent(code)]


def test_a_forked_copy_of_the_trainer_leaves_the_worker_alone():
    code = """
    world = isolate("hostile")
    if not (pid := os.fork()):
        sys.exit(0)
    os.waitpid(pid, 0)
    print(attempt(world, "say", "still here").turns[0].observation.text)
    """
    done = subprocess.run(program(code), cwd=ROOT, capture_output=True, text=True, timeout=60)
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
    threading.Thread(target=lambda: isolate("hostile", slow=60.0), daemon=True).start()
    time.sleep(1.5)
    print("started", flush=True)
    time.sleep(30)
    """
    with subprocess.Popen(program(code), cwd=ROOT, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "started\n"
        family = descendants(trainer.pid)
        assert len(family) == 2  # supervisor, fork server
        os.kill(trainer.pid, number)
        assert gone(family)


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


def test_a_child_that_fills_memory_with_others_shares_none_of_it(world):
    shared = "ipcmk -M 1000000 >/dev/null; ipcs -m | grep -c 1000000"
    assert attempt(world, "shell", shared).turns[0].observation.text.strip() in ("1", "0")
    if world.layers["processes"]:
        assert attempt(world, "shell", "ipcs -m | grep -c 1000000").turns[0].observation.text.strip() == "0"


def test_the_other_layers_hold_where_there_are_no_namespaces():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    chosen = "bomb or orphan or keep_apart or inside_step or alone or supervisor or privileges or killed_trainer"
    if kernel.landlock_version():
        chosen += " or hidden or closing_leaves or killed_supervisor"
    without = ["setpriv", "--bounding-set=-sys_admin"]
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-k", chosen, __file__]
    done = subprocess.run([*without, *tests], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3_000:]
    code = """
    print(isolate("hostile").layers)
    """
    layers = subprocess.run([*without, *program(code)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    # Where files cannot be kept out of sight, the kernel may still have rules about them.
    ruled = kernel.landlock_version() > 0
    assert layers.stdout == f"{{'network': False, 'files': {ruled}, 'processes': False, 'user': True}}\n"
    lacking = "network, processes" if ruled else "network, files, processes"
    assert f"without these layers of isolation: {lacking}" in layers.stderr


def test_rules_of_the_kernel_stand_in_for_a_view_of_the_files(tmp_path):
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not kernel.landlock_version():
        pytest.skip("needs root, setpriv and Landlock")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    (tmp_path / "secret").write_text("a secret")
    code = f"""
    before = set(os.listdir("/tmp"))
    world = isolate("hostile")
    def told(*deed):
        print(attempt(world, *deed).turns[0].observation.text.strip())
    told("read", {str(tmp_path / "secret")!r})
    told("list", "/tmp")
    told("write", "/tmp/x")
    told("write", "x")
    told("list", ".")
    told("list", {str(ROOT / "tests" / "signals")!r})
    world.close()
    time.sleep(0.5)
    print([name for name in set(os.listdir("/tmp")) - before if name.startswith("cojax-worker")])
    """
    command = ["setpriv", "--bounding-set=-sys_admin", *program(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    secret, shared, outside, inside, own, visible, left = done.stdout.splitlines()
    assert all("Permission denied" in refusal for refusal in (secret, shared, outside)), done.stdout
    assert "denied" not in inside + own
    assert "test_tools.py" in visible
    assert left == "[]"


def test_root_without_another_user_id_is_refused():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    code = """
    try:
        isolate("hostile")
    except Exception as error:
        print(error)
    """
    command = ["setpriv", "--bounding-set=-setuid,-sys_admin", *program(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "run as an ordinary user, or with the capability CAP_SETUID" in done.stdout


def test_the_desk_gives_the_same_through_a_worker():
    here, there = environments.load("desk"), environments.load("desk", isolated=True)
    assert there.tools() == here.tools()
    assert there.popularity() == here.popularity()
    assert there.neighbours("files_move") == here.neighbours("files_move")
    assert there.lexicon() == here.lexicon()
    ours = list(zip(range(300), here.demonstrations(300, 1, (0.1, 0.8)), strict=False))
    assert list(zip(range(300), there.demonstrations(300, 1, (0.1, 0.8)), strict=False)) == ours
    for split in ("seed", "eval"):
        tasks = here.tasks(split, 20, seed=3)
        assert there.tasks(split, 20, seed=3) == tasks
        for found in tasks:
            one, other = (play(world, found, follow(found.solution), max_turns=9) for world in (here, there))
            assert [turn.observation for turn in one.turns] == [turn.observation for turn in other.turns]
            assert (one.reward, one.checks, one.outcome) == (other.reward, other.checks, other.outcome)
    episode, other = here.start(tasks[0]), there.start(tasks[0])
    assert episode.reset() == other.reset()
    assert episode.affordances() == other.affordances()
    assert episode.state() == other.state()
    there.close()

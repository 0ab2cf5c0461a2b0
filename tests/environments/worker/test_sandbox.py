"""Confinement: what a child sees, reaches and may take."""

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience
from worker_trials import BOUNDS, ROOT, attempt, descendants, gone, program

from environments.worker import IsolatedEnvironment, isolate, kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")


@pytest.fixture(scope="module")
def world() -> Iterator[IsolatedEnvironment]:
    with pytest.MonkeyPatch.context() as surroundings:
        surroundings.setenv("OPENAI_API_KEY", "sk-secret")
        environment = isolate("hostile", bounds=BOUNDS)
    yield environment
    environment.close()


def test_the_file_system_shows_only_what_is_needed(world):
    if not world.layers["files"]:
        pytest.skip("no mount namespace here")
    for secret in ("/etc/shadow", str(Path.home() / ".bashrc"), str(ROOT / "README.md"), str(ROOT / ".git" / "HEAD")):
        assert "No such file" in attempt(world, "read", secret).turns[0].observation.text
    assert "Read-only" in attempt(world, "write", "/usr/x").turns[0].observation.text
    assert "too large" in attempt(world, "fill").turns[0].observation.text
    # What is shown may lie there itself, and has its way shown.
    ways = {place.parts[2] for place in (ROOT, Path(sys.prefix)) if place.parts[1] == "tmp"}
    assert set(attempt(world, "list", "/tmp").turns[0].observation.text.split()) <= ways


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


def test_there_are_no_secrets_in_the_surroundings(world):
    assert "OPENAI_API_KEY" not in attempt(world, "secrets").turns[0].observation.text.split()


def test_a_child_has_no_privileges(world):
    assert not attempt(world, "mount").turns[0].observation.ok
    assert not attempt(world, "signal", str(os.getpid())).turns[0].observation.ok
    if os.geteuid() == 0:
        assert "uid 0 " not in attempt(world, "identity").turns[0].observation.text


def test_a_fork_bomb_is_bounded(world):
    forks, _ = attempt(world, "bomb").turns[0].observation.text.split()
    assert 0 < int(forks) < BOUNDS.processes


def test_without_enclosure_the_limits_still_hold():
    world = isolate("hostile", bounds=dataclasses.replace(BOUNDS, deadline=0.5), enclosed=False)
    world.phrase([])
    # Of this worker alone: other tests start processes meanwhile.
    before = descendants(world.supervisor)
    assert attempt(world, "bomb").turns[0].observation.ok
    assert attempt(world, "orphan").turns[0].observation.ok
    assert attempt(world, "spin").outcome == "timeout"
    assert gone(descendants(world.supervisor) - before)
    world.close()


def test_a_child_that_fills_memory_with_others_shares_none_of_it(world):
    shared = "ipcmk -M 1000000 >/dev/null; ipcs -m | grep -c 1000000"
    assert attempt(world, "shell", shared).turns[0].observation.text.strip() in ("1", "0")
    if world.layers["processes"]:
        assert attempt(world, "shell", "ipcs -m | grep -c 1000000").turns[0].observation.text.strip() == "0"


@pytest.mark.real
def test_the_other_layers_hold_where_there_are_no_namespaces():
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    chosen = "bomb or orphan or keep_apart or inside_step or alone or supervisor or privileges or killed_trainer"
    if kernel.landlock_version():
        chosen += " or hidden or closing_leaves or killed_supervisor"
    without = ["setpriv", "--bounding-set=-sys_admin"]
    tests = [sys.executable, "-m", "pytest", "-q", "-x", "-k", chosen, str(Path(__file__).parent)]
    done = subprocess.run([*without, *tests], cwd=ROOT, capture_output=True, text=True, timeout=patience(200))
    assert done.returncode == 0, done.stdout[-3_000:]
    code = """
    print(isolate("hostile").layers)
    """
    layers = subprocess.run([*without, *program(code)], cwd=ROOT, capture_output=True, text=True, timeout=patience(60))
    # Where files cannot be kept out of sight, the kernel may still have rules about them.
    ruled = kernel.landlock_version() > 0
    assert layers.stdout == f"{{'network': True, 'files': {ruled}, 'processes': False, 'user': True, 'calls': True}}\n"
    lacking = "processes" if ruled else "files, processes"
    assert f"without these layers of isolation: {lacking}" in layers.stderr


def test_rules_of_the_kernel_stand_in_for_a_view_of_the_files(tmp_path):
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not kernel.landlock_version():
        pytest.skip("needs root, setpriv and Landlock")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    (tmp_path / "secret").write_text("a secret")
    code = f"""
    world = isolate("hostile")
    def told(*deed):
        print(attempt(world, *deed).turns[0].observation.text.strip())
    told("read", {str(tmp_path / "secret")!r})
    told("list", "/tmp")
    told("write", {f"/tmp/written-by-{os.getpid()}"!r})
    told("write", "x")
    told("list", ".")
    told("list", {str(ROOT / "tests" / "signals")!r})
    own = [f"cojax-worker-{{pid}}-" for pid in (world.supervisor, *descendants(world.supervisor))]
    def folders():
        return sum(name.startswith(tuple(own)) for name in os.listdir("/tmp"))
    print(folders())
    world.close()
    until = time.monotonic() + 20
    while folders() and time.monotonic() < until:
        time.sleep(0.05)
    print(folders())
    """
    command = ["setpriv", "--bounding-set=-sys_admin", *program(code)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(60))
    secret, shared, outside, inside, own, visible, made, left = done.stdout.splitlines()
    assert all("Permission denied" in refusal for refusal in (secret, shared, outside)), done.stdout
    assert "denied" not in inside + own
    assert "test_tools.py" in visible
    assert (made, left) == ("1", "0")


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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(60))
    assert "run as an ordinary user, or with the capability CAP_SETUID" in done.stdout

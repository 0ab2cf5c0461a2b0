"""No trace, no way out, no more than its share: what a hostile child tries, as each user, with namespaces and without.

One worker a surrounding is asked everything; the tests then look at what came back.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys

import ordinary
import pytest
from patience import patience
from worker_trials import ROOT, program

from environments.worker import kernel, seccomp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")

NUMBERS = [numbers[platform.machine() == "aarch64"] for numbers in seccomp._REFUSED_CALLS.values()]
NUMBERS = [number for number in NUMBERS if number is not None]
PROGRAM = """
import json, shutil, socket, tempfile
from environments.worker import Bounds
from worker_trials import descendants, play, follow, gone
bounds = Bounds(deadline=15.0, scratch=8 * 2**20, files=1_000, processes=8, memory=2**30)
world = isolate("hostile", bounds=bounds)
told = {{"layers": dict(world.layers)}}
world.tools()
resting = descendants(world.supervisor)

def tell(name, deed, argument=""):
    trajectory = attempt(world, deed, argument)
    told[name] = trajectory.error or trajectory.turns[0].observation.text

folder = tempfile.mkdtemp(dir="/var/tmp")
os.chmod(folder, 0o755)
path = os.path.join(folder, "socket")
families = (socket.AF_INET, socket.SOCK_DGRAM), (socket.AF_INET,), (socket.AF_UNIX,)
listening = [socket.socket(*family) for family in families]
listening[0].bind(("127.0.0.1", 0))
listening[1].bind(listening[0].getsockname())
listening[2].bind(path)
os.chmod(path, 0o777)
named = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
named.bind(path + "2")
os.chmod(path + "2", 0o777)
for server in listening[1:]:
    server.listen()

other = world.start(task())
other.reset()
tell("walk", "walk")
tell("planted", "plant", "trace7")
tell("found by the next", "find", "trace7")
told["found by another"] = other.step(do("find", "trace7")).text
for name, argument in (("port", listening[0].getsockname()[1]), ("path", path), ("datagrams", path + "2")):
    tell("reached by " + name, "reach", str(argument))
tell("honest", "legitimate", "environments.desk")
for deed in ("memory_file", "memory_mount", "namespace", "watching", "residency", "folders", "hoard", "shared"):
    tell(deed, deed)
tell("other_architecture", "other_architecture")
tell("hoard without names", "hoard", "unlinked")
tell("calls", "calls", {numbers!r})
tell("bomb", "bomb")
tell("hop", "hop")
other.close()
left = descendants(world.supervisor) - resting
told["left"] = "" if gone(left, 60.0) else subprocess.getoutput("ps -o pid,stat,cmd " + " ".join(map(str, left)))
world.close()
shutil.rmtree(folder)
print(json.dumps(told))
"""
SURROUNDINGS = {
    "root": lambda words: ordinary.command(words, root=True),
    "ordinary": ordinary.command,
    "root without namespaces": lambda words: ["setpriv", "--bounding-set=-sys_admin", *words],
    "ordinary without namespaces": lambda words: ordinary.command(words, refuse="unshare"),
}


@pytest.fixture(scope="module", params=SURROUNDINGS)
def told(request):
    """What came of every deed."""
    if request.param.startswith("root") and (os.geteuid() != 0 or shutil.which("setpriv") is None):
        pytest.skip("needs root and setpriv")
    if "without" in request.param and not kernel.landlock_version():
        pytest.skip("needs Landlock")
    command = SURROUNDINGS[request.param](program(PROGRAM.format(numbers=json.dumps(NUMBERS))))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(200))
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout)
    assert not [name for name, held in found["layers"].items() if not held and name != "processes"]
    return found


def test_nothing_can_be_changed_but_the_own_folder(told):
    walk = json.loads(told["walk"])
    assert walk["done"] == []
    assert walk["tried"] > 100


def test_no_note_reaches_another_episode(told):
    # A lock says yes, and is none.
    assert told["planted"] == "lock"
    assert told["found by the next"] == ""
    assert told["found by another"] == ""


def test_nobody_is_watched_or_made_to_wait_by_files(told):
    assert told["watching"] == ""


def test_no_socket_reaches_anyone(told):
    assert [told[f"reached by {name}"] for name in ("port", "path", "datagrams")] == ["", "", ""]


def test_an_honest_environment_misses_nothing(told):
    assert told["honest"] == "0 1 loop [(1,)] program environments.desk trespass.py"


def test_memory_that_no_limit_counts_is_refused(told):
    assert "Operation not permitted" in told["memory_file"]
    assert "Operation not permitted" in told["memory_mount"]
    assert told["namespace"] == "EPERM ENOSYS"
    assert told["residency"] == 'EPERM EPERM EPERM ENOSYS """'
    assert "Cannot allocate memory" in told["shared"]


@pytest.mark.parametrize("deed", ["folders", "hoard", "hoard without names"])
def test_scratch_is_bounded_in_bytes_and_files(told, deed):
    """By the kernel, or by the fork server, which ends the child."""
    # 1,000 less two; a few fewer where the repository lies in /tmp, as folders on the way to it count.
    bounded = re.fullmatch("9[89]. ENOSPC", told[deed]) or "No space left" in told[deed]
    assert bounded or "the child died during step" in told[deed]


def test_every_call_of_the_list_is_refused(told):
    assert told["calls"].split() == ["EPERM"] * len(NUMBERS)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there are two other kinds of calls on x86-64")
def test_calls_of_other_architectures_are_refused(told):
    assert told["other_architecture"] == "-38 ENOSYS"


def test_processes_are_bounded_and_none_is_left(told):
    forks = int(told["bomb"].split()[0])
    # Where they are counted with all others of this user, those that end meanwhile make room.
    assert 0 < forks <= 8 + (0 if told["layers"]["processes"] else 8)
    assert told["hop"] == "hopping"
    assert told["left"] == ""


def test_what_is_missing_is_said():
    code = """
    print(sorted(name for name, held in isolate("hostile").layers.items() if not held))
    """
    command = ordinary.command(program(code), refuse="unshare,landlock,seccomp")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "['calls', 'files', 'network', 'processes']\n", done.stderr
    assert "without these layers of isolation: network, files, processes, calls" in done.stderr

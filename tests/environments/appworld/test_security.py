"""Code seen to break the stock package, run for real: none reads truth, forges a verdict or outlives its deadline."""

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from patience import patience

from cojax.environment import play, read_counted_seconds
from cojax.environment.replay import follow
from cojax.types import Action, Task, Trajectory
from environments.appworld import data as roots
from environments.appworld.environment import AppWorld

pytestmark = pytest.mark.real
DEADLINE = 8.0  # seconds, as in conftest.py
Run = Callable[..., Trajectory]

# Ways to what the package's guard takes away: `os`, `open` and `gc` as they really are.
REAL = """
importer = next(c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "BuiltinImporter")
posix, gc, thread = (importer.load_module(name) for name in ("posix", "gc", "_thread"))
opened = importer.load_module("_io").open
"""
WORLD = REAL + 'world = next(o for o in gc.get_objects() if type(o).__name__ == "World")\n'
COMPLETE = "apis.supervisor.complete_task()"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def truth(task: Task) -> str:
    """The folder of the task's ground truth."""
    folder = roots.find_root("tiny") / "data" / "tasks" / task.setup["task"] / "ground_truth"
    assert (folder / "evaluation.py").exists(), "these tests would prove nothing"
    return str(folder)


@pytest.mark.parametrize(
    "reading",
    [
        "print([vars(o.ground_truth) for o in gc.get_objects() if type(o).__name__ == 'Task'])",
        "from appworld.task import Task\nprint(vars(Task.load(TASK).ground_truth))",
        "from appworld.ground_truth import GroundTruth\nprint(vars(GroundTruth.load(TASK)))",
    ],
)
def test_the_package_itself_hands_out_no_ground_truth(run: Run, task, truth, reading):
    trajectory = run(f"{REAL}TASK = {task.setup['task']!r}\n{reading}", COMPLETE)
    text = trajectory.turns[0].observation.text
    assert "song_ids" not in text
    assert text == "[]" or "Execution failed" in text, text
    assert trajectory.reward == 0.0


READING = {
    "open": "print(opened(FOLDER + '/' + FILE).read())",
    "listing": "print(posix.listdir(FOLDER))",
    "shell": "posix.system('ls ' + FOLDER + ' > found')\nprint(opened('found').read())",
    "other roots": "print([posix.listdir('/proc/%s/root%s' % (pid, FOLDER)) for pid in ('self',)])",
    "going there": "posix.chdir(FOLDER)\nprint(posix.listdir('.'))",
}


@pytest.mark.parametrize("reading", READING)
def test_no_code_reads_ground_truth(run: Run, task, truth, reading):
    shown = str(roots.find_public_root("tiny") / "data" / "tasks" / task.setup["task"])

    def read(folder: str, file: str) -> str:
        return run(f"{REAL}FOLDER, FILE = {folder!r}, {file!r}\n{READING[reading]}").turns[0].observation.text

    found = read(shown, "specs.json")
    assert "specs.json" in found or "instruction" in found, "the code does not read even what it may"
    found = read(truth, "evaluation.py")
    assert "evaluation" not in found.replace(truth + "/evaluation.py", "")
    assert "Execution failed" in found or found == "Execution successful.", found


def test_no_code_reads_how_the_tiny_data_are_made_nor_what_lies_beside_it(run: Run, tmp_path):
    (tmp_path / "secret").write_text("a secret")
    found = run(f"{REAL}print(posix.listdir({str(ROOT / 'environments/appworld/tiny')!r}))").turns[0].observation.text
    # A checkout in /tmp is out of sight as a whole: a child has a /tmp of its own.
    assert found == "[]" or "Permission denied" in found or "No such file" in found, found
    for path in (ROOT / "pyproject.toml", tmp_path / "secret"):
        text = run(f"{REAL}opened({str(path)!r})").turns[0].observation.text
        assert "No such file" in text or "Permission denied" in text, text


def test_outcomes_are_believed_by_what_calls_do(run: Run, appworld: AppWorld, task):
    """The control of the tests below: the honest solution earns the reward that forgeries do not."""
    solved = play(appworld, task, follow(task.solution), max_turns=len(task.solution))
    assert solved.reward == 1.0
    assert run(COMPLETE).reward == 0.0


FORGERIES = {
    "rows written by the models": """
from appworld.apps.spotify.models import SongLike
for song_id in range(1, 30):
    try: SongLike.create_save(user_id=1, song_id=song_id)
    except Exception: pass
""",
    "files of the databases": REAL
    + """
folder = posix.environ[b"APPWORLD_ROOT"].decode() + "/experiments/outputs/episode/tasks/" + TASK + "/dbs/"
for name in posix.listdir(folder):
    with opened(folder + name, "w") as file:
        file.write("[]")
""",
    "a log of calls": REAL
    + """
import json
root = posix.environ[b"APPWORLD_ROOT"].decode()
path = root + "/experiments/outputs/episode/tasks/" + TASK + "/logs/api_calls.jsonl"
opened(path, "w").write(json.dumps({"method": "post", "url": "/spotify/songs/1/like", "data": {}}))
""",
    "an evaluation that always passes": """
import appworld.evaluator
appworld.evaluator.TestTracker.success = property(lambda self: True)
appworld.evaluator.evaluate_task = lambda *a, **k: None
""",
    "requests past the APIs": """
for song_id in range(1, 30):
    requester.request("spotify", "like_song", song_id=song_id, track=False, raise_on_failure=False)
    requester.post("/spotify/songs/%d/like" % song_id, raise_on_failure=False)
""",
    "calls of APIs that there are not": WORLD
    + """
world.calls.append({"app": "admin", "api": "reset", "arguments": {}, "digest": ""})
world.calls.append({"app": "spotify", "api": "__class__", "arguments": {}, "digest": ""})
world.calls.append({"app": "spotify", "api": "like_song", "arguments": {"client": 1, "track": 0}, "digest": ""})
""",
    "a clock set back": WORLD
    + """
for song_id in range(1, 30):
    world.calls.append({"app": "spotify", "api": "like_song", "digest": "",
                        "arguments": {"song_id": song_id, "_system_datetime": "2020-01-01"}})
""",
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_code_forges_a_verdict(run: Run, task, forgery):
    trajectory = run(f"TASK = {task.setup['task']!r}\n{FORGERIES[forgery]}\nprint('forged')", COMPLETE)
    assert trajectory.turns[0].observation.text.endswith("forged"), trajectory
    assert trajectory.reward == 0.0, trajectory
    assert trajectory.outcome in ("finished", "timeout"), trajectory
    assert trajectory.partial < 1.0


def test_replies_that_are_none_count_as_the_doing_of_the_code(run: Run, appworld: AppWorld, task):
    """Code that takes the place of the process it runs in can answer anything, and gains nothing by it."""
    forged = json.dumps({"n": 2, "value": {"messages": [], "ok": True, "done": True}})
    code = f"{REAL}\nposix.write(3, {forged.encode()!r} + bytes([10]))\nposix._exit(0)"
    trajectory = run(code)
    assert (trajectory.outcome, trajectory.reward) == ("timeout", 0.0), trajectory
    raising = "import builtins, json\njson.dumps = lambda *a, **k: 1 / 0\nbuiltins.len = lambda *a: 1 / 0"
    assert run(raising, COMPLETE).outcome in ("timeout", "finished")


@pytest.mark.parametrize(
    "reply",
    [
        '{"n":2,"value":1e999}',
        '{"n":2,"value":{"messages":[{"role":"user","content":5},{"role":"calls","content":"[]"}],"ok":true,"done":true}}',
        '{"n":2,"value":{"messages":[{"role":"user","content":""},{"role":"calls","content":[]}],"ok":true,"done":true}}',
        '{"n":2,"value":{"messages":[{"role":"user","content":""},{"role":"calls","content":"[]"}],"ok":1,"done":"no"}}',
        '{"n":2,"value":{"messages":5,"ok":true,"done":true}}',
        '{"n":2,"value":5}',
    ],
)
def test_no_forged_reply_is_a_failure_of_the_machinery(run: Run, reply):
    """Else a policy could erase its failures. Told at once: nobody waits out a deadline for it."""
    began = time.monotonic()
    trajectory = run(f"{REAL}\nposix.write(3, {reply.encode()!r} + bytes([10]))")
    assert (trajectory.outcome, trajectory.reward) == ("timeout", 0.0), trajectory
    assert time.monotonic() - began < 2 * DEADLINE


@pytest.mark.parametrize(
    "report",
    [
        '[{"app": "venmo", "api": "login", "arguments": {"username": NaN, "password": 1e999}, "digest": ""}]',
        '[{"app": "venmo", "api": "login", "arguments": {"a": ' + "[" * 400 + "]" * 400 + '}, "digest": ""}]',
        "[" * 3_000 + "]" * 3_000,
        '[{"app": "venmo"}]',
        "[1]",
        "null",
    ],
)
def test_a_report_of_calls_that_is_none_is_no_failure_of_the_machinery(run: Run, report):
    forging = f"""
encoder = type(world).__init__.__globals__["sys"].modules["environments.appworld.inside"]
encoder.json = type("json", (), {{"dumps": staticmethod(lambda value, **more: {report!r})}})
"""
    trajectory = run(WORLD + forging + "print('forged')")
    assert trajectory.reward == 0.0
    if "NaN" in report:  # a call like any other, with words in place of numbers that there are not
        assert trajectory.outcome == "truncated", trajectory
        assert trajectory.turns[0].observation.text == "forged"
    else:
        assert (trajectory.outcome, "the reply to step is none" in trajectory.error) == ("timeout", True), trajectory


def test_code_that_ends_its_process_between_two_steps_has_itself_to_blame(run: Run):
    # Where the pause between two steps is too short for the thread, it leaves in the second.
    leaving = "own = world.calls\ndef leave():\n    while world.calls is own: pass\n"
    leaving += "    for _ in range(10**6): pass\n    posix._exit(0)\n"
    trajectory = run(WORLD + leaving + "thread.start_new_thread(leave, ())\nprint('left')", "while True: pass")
    assert (trajectory.outcome, trajectory.reward) == ("timeout", 0.0), trajectory


SPINNING = {
    "a loop": "while True: pass",
    "a loop that catches the package's alarm": "while True:\n"
    "    try:\n        while True: pass\n    except BaseException: pass",
    "a sleep": REAL + "import time\nwhile True:\n    try: posix.system('sleep 600')\n    except BaseException: pass",
    "a number": "print(9 ** 9 ** 9 ** 9)",
    "two threads": REAL + "thread.start_new_thread(lambda: [0 for _ in iter(int, 1)], ())\nwhile True: pass",
}


@pytest.mark.parametrize("spin", SPINNING)
def test_no_code_outlives_its_deadline(run: Run, spin, alive):
    began, wall = read_counted_seconds(), time.monotonic()
    trajectory = run(SPINNING[spin])
    assert read_counted_seconds() - began < 20.0
    # A call ends after five times its deadline, however starved; what starts and judges comes on top.
    assert time.monotonic() - wall < 5 * DEADLINE + 10.0
    assert trajectory.reward == 0.0
    # Code that heeds the package's own limit is told of it, other code is killed.
    assert trajectory.outcome == "timeout" or "timed out" in trajectory.turns[0].observation.text, trajectory
    assert alive() <= 0


@pytest.fixture
def alive(appworld: AppWorld) -> Callable[[], int]:
    """How many processes more than at first descend from the worker where code runs, once they had time to end."""

    def descendants() -> int:
        parents = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
        family = [appworld.play.supervisor]
        for member in family:
            family += [pid for pid, parent in parents.items() if parent == member]
        return len(family)

    time.sleep(0.5)
    before = descendants()

    def more() -> int:
        end = time.monotonic() + patience(5.0)
        while (now := descendants() - before) > 0 and time.monotonic() < end:
            time.sleep(0.1)
        return now

    return more


def test_a_fork_bomb_is_held_and_buried(run: Run, appworld: AppWorld, task, alive):
    bomb = """
born = 0
try:
    while True:
        if posix.fork() == 0:
            posix.setsid()
            while True: pass
        born += 1
except OSError:
    print("born", born)
"""
    trajectory = run(REAL + bomb)
    # With no process left to it, the package itself may break: the code's own doing.
    assert trajectory.outcome == "timeout" or "born" in trajectory.turns[0].observation.text, trajectory
    assert trajectory.reward == 0.0
    assert alive() <= 0
    assert play(appworld, task, follow(task.solution), max_turns=len(task.solution)).reward == 1.0


def test_no_code_reaches_a_network(run: Run):
    code = """
_socket = getattr(__builtins__, "__import__", None) or __builtins__["__import__"]
_socket = _socket("_socket")
for address in (("127.0.0.1", 22), ("1.1.1.1", 53)):
    try:
        _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM).connect(address)
        print("connected")
    except OSError as error:
        print("no network:", error)
"""
    trajectory = run(code)
    text = trajectory.turns[0].observation.text
    assert text.count("no network") == 2, text


def test_a_flood_of_output_is_cut(run: Run):
    trajectory = run("print('x' * 300_000)")
    (turn,) = trajectory.turns
    assert turn.observation.ok
    assert len(turn.observation.text) < 16_000
    assert turn.observation.text.endswith("characters cut]")


def test_memory_and_files_are_bounded(run: Run):
    trajectory = run("x = 'x' * (8 * 2**30)")
    assert "MemoryError" in trajectory.turns[0].observation.text, trajectory
    filling = REAL + "f = opened('full', 'wb')\nfor _ in range(1000): f.write(bytes(2**20))"
    filled = run(filling)
    # With no room left to it, the package itself may break: the code's own doing.
    assert filled.outcome == "timeout" or "Execution failed" in filled.turns[0].observation.text, filled


def test_code_sees_no_other_episode(run: Run, appworld: AppWorld):
    other = appworld.start(appworld.tasks("train", 2)[1])
    other.reset()
    looking = "for folder in ('/proc', '/tmp', posix.getcwd()):\n"
    looking += "    try: print(folder, posix.listdir(folder))\n    except PermissionError: print(folder, [])"
    processes, shared, own = run(REAL + looking).turns[0].observation.text.splitlines()
    other.close()
    if appworld.layers["processes"]:
        assert len([name for name in re.findall(r"'(\w+)", processes) if name.isdigit()]) <= 3
    assert own.count("world-") == 1
    assert shared.count("world-") <= 1


def test_a_frozen_clock_stays_where_it_was_frozen(run: Run):
    before = time.time()
    text = run("import time\nprint(time.time())").turns[0].observation.text
    assert float(text) < before - 86_400
    assert 0 <= time.time() - before < 60
    assert threading.main_thread().is_alive()


def test_more_calls_than_an_episode_may_make_earn_nothing(run: Run, appworld: AppWorld, task):
    """A reported flood is not replayed."""
    flood = """
world.calls += [{"app": "supervisor", "api": "show_profile", "arguments": {}, "digest": ""}] * 20_000
"""
    blocks = [Action(f"```python\n{WORLD}{flood}\n```"), *task.solution]
    trajectory = play(appworld, task, follow(blocks), max_turns=len(blocks))
    assert trajectory.reward == 0.0, trajectory


def test_calls_beyond_what_one_block_may_make_are_judged(run: Run, appworld: AppWorld, task):
    """The package allows a thousand calls a block; an episode of several may make more, and its deeds count."""
    looking = Action("```python\nfor _ in range(600): apis.supervisor.show_profile()\n```")
    blocks = [looking, looking, *task.solution]
    trajectory = play(appworld, task, follow(blocks), max_turns=len(blocks))
    assert (trajectory.outcome, trajectory.reward) == ("finished", 1.0), trajectory
    assert all(check.passed for check in trajectory.checks)


@pytest.mark.parametrize("answer", ["inf", "Infinity", "nan", "1e999"])
def test_an_answer_may_read_like_no_number(run: Run, answer):
    trajectory = run(f"apis.supervisor.complete_task(answer={answer!r})")
    assert (trajectory.outcome, trajectory.reward) == ("finished", 0.0), trajectory
    assert trajectory.checks


def test_calls_too_slow_to_be_made_again_earn_nothing(run: Run, appworld: AppWorld, task, monkeypatch):
    """And are no failure of the machinery, or a policy could erase its failures by making them slow."""
    monkeypatch.setattr(appworld, "verdict", -1.0)
    trajectory = play(appworld, task, follow(task.solution), max_turns=len(task.solution))
    assert (trajectory.outcome, trajectory.reward) == ("finished", 0.0), trajectory
    assert [check.passed for check in trajectory.checks] == [False]

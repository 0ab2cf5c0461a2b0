"""BFCL by the path that training uses: model text is parsed, carried out in a worker, and judged officially."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

import environments
from cojax.environment import Charted, play, read_counted_seconds
from cojax.environment.replay import follow
from cojax.rollout.chat import parse
from cojax.types import Action, Call, Task, Trajectory
from environments import check
from environments.soundness import GARBAGE
from environments.worker import IsolatedEnvironment

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
DEADLINE = 2.0  # seconds


@pytest.fixture(scope="module")
def bfcl() -> Iterator[IsolatedEnvironment]:
    environment = environments.load("bfcl", deadline=DEADLINE)
    assert isinstance(environment, IsolatedEnvironment)
    yield environment
    environment.close()


def first_with(bfcl: IsolatedEnvironment, tool: str) -> Task:
    for task in bfcl.tasks("base", 200):
        episode = bfcl.start(task)
        episode.reset()
        names = {entry["function"]["name"] for entry in episode.tools()}
        episode.close()
        if tool in names:
            return task
    raise LookupError(tool)


def say(bfcl: IsolatedEnvironment, task: Task, text: str) -> Trajectory:
    """The trajectory of one text of a model; the episode after it must be sound."""
    trajectory = play(bfcl, task, follow([parse(text)]), max_turns=1)
    after = play(bfcl, task, follow(task.solution), max_turns=len(task.solution))
    assert (after.outcome, after.reward) == ("finished", 1.0)
    return trajectory


def called(name: str, /, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    "category",
    ["base", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("miss_func", "miss_param", "long_context"))],
)
def test_every_official_solution_passes_and_none_does_without_a_call(category, capsys):
    assert check.main(["bfcl", f"--category={category}"]) == 0
    line = json.loads(capsys.readouterr().out)
    counts = {key: line[key] for key in ("tasks", "replayed", "mutated", "mutated_rejected", "harmless", "fault_count")}
    assert counts == {
        "tasks": 200,
        "replayed": 200,
        "mutated": 200,
        "mutated_rejected": 200,
        "harmless": 0,
        "fault_count": 0,
    }
    assert line["answered"] == line["thrown"] == len(GARBAGE) + 2


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch /tmp/cojax-pwned')",
        "[cat(file_name='x'), globals()]",
        "import os\nwhile True:\n    os.fork()",
        ":(){ :|:& };:",
        "x" * 10_000_000,
        called("cat", file_name="x" * 10_000_000),
    ],
)
def test_text_without_a_call_only_ends_the_turn(bfcl, text):
    task = first_with(bfcl, "cat")
    trajectory = say(bfcl, task, text)
    assert (trajectory.outcome, trajectory.reward) == ("truncated", 0.0)
    assert [message.role for message in trajectory.turns[0].observation.messages] == ["user"]
    assert not os.path.exists("/tmp/cojax-pwned")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (called("__import__", name="os"), "there is no function '__import__'"),
        (called("cat.__class__"), "there is no function 'cat.__class__'"),
        (called("globals"), "there is no function 'globals'"),
        (called("_load_scenario", scenario={}), "there is no function '_load_scenario'"),
        (called("cat", file_name="__import__('os').popen('id').read()"), "No such file"),
        (called("cat", file_name="/root/.cache/possible_answer/BFCL_v4_multi_turn_base.json"), "Invalid character"),
        (called("cat", file_name="../" * 20 + "etc/passwd"), "Invalid character"),
        (called("cat", file_name={"a": [1, 2]}), ""),
        (called("cat", nothing=1), "unexpected keyword argument"),
        (called("sort"), "missing 1 required positional argument"),
    ],
)
def test_calls_that_try_more_are_answered_as_an_api_would(bfcl, text, answer):
    trajectory = say(bfcl, first_with(bfcl, "cat"), text)
    told = trajectory.turns[0].observation
    assert not told.ok
    assert told.messages[0].role == "tool"
    assert answer in told.text
    assert (trajectory.outcome, trajectory.reward) == ("truncated", 0.0)


@pytest.mark.parametrize(
    "text", [called("power", base=9, exponent=100_000_000), called("logarithm", value=7, base=3, precision=100_000_000)]
)
def test_a_call_that_never_ends_is_the_actions_own_doing(bfcl, text):
    began, wall = read_counted_seconds(), time.monotonic()
    trajectory = say(bfcl, first_with(bfcl, "power"), text)
    assert (trajectory.outcome, trajectory.reward, trajectory.valid) == ("timeout", 0.0, True)
    assert read_counted_seconds() - began < 10.0
    # A call ends after five times its deadline, however starved; a new child comes on top.
    assert time.monotonic() - wall < 5 * DEADLINE + 5.0


def test_a_long_argument_is_refused_by_the_environment(bfcl):
    action = Action(calls=(Call("echo", {"content": "x" * 10_000_000}),))
    trajectory = play(bfcl, first_with(bfcl, "echo"), follow([action]), max_turns=1)
    assert "more than 100000 characters in the arguments" in trajectory.turns[0].observation.text


def test_the_explorer_finds_its_way(bfcl):
    assert isinstance(bfcl, Charted)
    task = bfcl.tasks("seed", 1, seed=5)[0]
    assert (task.query, task.solution) == ("", ())
    episode = bfcl.start(task)
    episode.reset()
    offered = episode.affordances()
    assert offered[-1] == Action()
    assert len(offered) > 10
    episode.close()


@pytest.mark.nightly
def test_the_main_command_runs_with_the_tiny_policy(tmp_path):
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/bfcl.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(1_500))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["tasks_final"] > summary["tasks_initial"]
    assert summary["outcomes"].get("environment_error", 0) == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    assert set(summary["final_by"]) == {
        "GorillaFileSystem", "MathAPI", "MessageAPI", "TicketAPI", "TradingBot", "TravelAPI", "TwitterAPI",
        "VehicleControlAPI",
    }  # fmt: skip

"""Environments of `openenv` by the path that training uses: with tools and a state, and with records as actions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import environments
from cojax.environment import play, traits_of
from cojax.environment.replay import follow
from cojax.types import Action, Call, Task, Trajectory
from environments import check
from environments.tools import ToolEnvironment

pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
HELD_OUT = '[{"seed": 100}, {"seed": 102}]'


@pytest.fixture(scope="module")
def lamps() -> ToolEnvironment:
    return load("houses:Lamps")


@pytest.fixture(scope="module")
def safe() -> ToolEnvironment:
    return load("houses:Safe")


def load(module: str, **settings) -> ToolEnvironment:
    environment = environments.load("openenv", module=module, path=str(FOLDER), evaluation=HELD_OUT, **settings)
    assert isinstance(environment, ToolEnvironment)
    return environment


def call(name: str, **arguments) -> Action:
    return Action(calls=(Call(name, arguments),))


def played(environment: ToolEnvironment, task: Task, *actions: Action) -> Trajectory:
    return play(environment, task, follow(actions), max_turns=len(actions))


def test_a_task_of_its_own_has_its_own_reward_and_end(lamps: ToolEnvironment) -> None:
    task = lamps.tasks("eval", 1)[0]
    right = played(lamps, task, call("look", room="hall"), call("paint", room="cellar", color="green"))
    assert (right.outcome, right.reward) == ("finished", 1.0)
    assert [turn.observation.ok for turn in right.turns] == [True, True]
    wrong = played(lamps, task, call("paint", room="moon", color="green"), call("finish"))
    assert (wrong.outcome, wrong.reward) == ("finished", 0.0)
    assert "there is no room moon" in wrong.turns[0].observation.text
    assert not wrong.turns[0].observation.ok


def test_a_synthesized_task_is_judged_by_replay(lamps: ToolEnvironment) -> None:
    setup = lamps.tasks("seed", 1)[0].setup
    paint, finish = call("paint", room="hall", color="green"), call("finish")
    task = Task("openenv", "Paint the lamp of the hall green.", setup, (paint, finish))
    assert played(lamps, task, paint, finish).reward == 1.0
    assert played(lamps, task, call("paint", room="attic", color="green"), finish).reward == 0.0
    assert traits_of(lamps).incomparable == ""


def test_a_record_is_the_one_tool_and_no_state_synthesizes_nothing(safe: ToolEnvironment) -> None:
    assert [tool["function"]["name"] for tool in safe.tools()] == ["act", "finish"]
    assert set(safe.tools()[0]["function"]["parameters"]["properties"]) == {"way", "by"}
    assert traits_of(safe).incomparable == "its state holds nothing but episode_id and step_count"
    task = safe.tasks("train", 2)[1]
    assert task.setup == {"seed": 1}
    assert played(safe, task, call("act", way="right", by=2)).reward == 1.0
    refused = played(safe, task, call("act", way="up", by=2), call("finish"))
    assert (refused.reward, refused.turns[0].observation.ok) == (0.0, False)


def test_a_reader_makes_it_comparable() -> None:
    environment = load("houses:Safe", state="houses:position")
    assert traits_of(environment).incomparable == ""
    turn, finish = call("act", way="left", by=2), call("finish")
    task = Task("openenv", "Turn.", environment.tasks("seed", 1)[0].setup, (turn, finish))
    assert played(environment, task, turn, finish).reward == 1.0
    assert played(environment, task, finish).reward == 0.0


@pytest.mark.parametrize(("name", "solution"), [("Lamps", "painted"), ("Safe", "opens")])
def test_the_check_finds_no_fault(name: str, solution: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = [f"module=houses:{name}", f"path={FOLDER}", f"evaluation={HELD_OUT}", f"solution=houses:{solution}"]
    assert check.main(["openenv", "--count=2", *(word for one in given for word in ("--set", one))]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["fault_count"] == 0 and line["replayed"] == line["tasks"] > 0 for line in lines)


def test_two_steps_of_the_main_command(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/openenv.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.workdir={tmp_path / 'run'}", "--config.environment.module=houses:Lamps",
        f"--config.environment.path={FOLDER}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["outcomes"].get("environment_error", 0) == 0
    assert summary["tasks_final"] > summary["tasks_initial"]

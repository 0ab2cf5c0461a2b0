"""Tasksets of `verifiers` by the path that training uses: with a state, and without one that can be compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import environments
from cojax.environment import EnvironmentFailure, play, traits_of
from cojax.environment.replay import follow
from cojax.types import Action, Call, Task, Trajectory
from environments import check
from environments.tools import ToolEnvironment
from environments.verifiers import RECIPE
from environments.worker.venv import interpreter

pytestmark = pytest.mark.nightly
FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
RIGHT = (("letters", "friday"), ("lamp", "monday"))


@pytest.fixture(scope="module")
def lists() -> ToolEnvironment:
    return load("lists_taskset")


@pytest.fixture(scope="module")
def sums() -> ToolEnvironment:
    return load("sums_taskset", full=1.5)


def load(module: str, **settings) -> ToolEnvironment:
    environment = environments.load("verifiers", module=module, path=str(FOLDER), **settings)
    assert isinstance(environment, ToolEnvironment)
    return environment


def move(item: str, day: str) -> Action:
    return Action("Moving.", (Call("list_move", {"item": item, "day": day}),))


def played(environment: ToolEnvironment, task: Task, *actions: Action) -> Trajectory:
    return play(environment, task, follow(actions), max_turns=len(actions))


def messages(trajectory: Trajectory) -> list[dict]:
    """The conversation as the package writes it."""
    written: list[dict] = [{"role": one.role, "content": one.content} for one in trajectory.opening]
    for number, turn in enumerate(trajectory.turns):
        calls = [
            {"id": f"{number}.{n}", "name": call.name, "arguments": json.dumps(call.arguments)}
            for n, call in enumerate(turn.action.calls)
        ]
        written.append({"role": "assistant", "content": turn.action.text, "tool_calls": calls or None, "sampled": True})
        for call, one in zip(calls, turn.observation.messages, strict=False):
            written.append({"role": "tool", "tool_call_id": call["id"], "content": one.content})
    return written


def test_rewards_are_those_of_the_package(lists: ToolEnvironment) -> None:
    """Also partial ones: of two moves and of what is said."""
    task = lists.tasks("train", 1)[0]
    moves = [move(*one) for one in RIGHT]
    done = Action("done")
    plays = {
        "all": [*moves, done],
        "one move": [moves[0], done],
        "not said": [*moves, Action("ended")],
        "refused": [move("nothing", "friday"), done],
        "not ended": moves,
        "nothing": [Action("done")],
    }
    ended = {"all": {"letters": "friday", "lamp": "monday"}, "one move": {"letters": "friday"}}
    ended["not said"] = ended["not ended"] = ended["all"]
    trajectories = {name: played(lists, task, *actions) for name, actions in plays.items()}
    start = lists.start(task)
    start.reset()
    items = start.state()["world"]["items"]
    start.close()
    rollouts = [
        [
            task.setup["task"],
            {"items": {**items, **{item: {"day": day} for item, day in ended.get(name, {}).items()}}},
            messages(trajectory),
        ]
        for name, trajectory in trajectories.items()
    ]
    scored = subprocess.run(
        [interpreter("verifiers", RECIPE), FOLDER / "official_rewards.py", FOLDER],
        input=json.dumps(["lists_taskset", rollouts]), capture_output=True, text=True, check=True,
    )  # fmt: skip
    ours = {name: trajectory.reward for name, trajectory in trajectories.items()}
    assert ours == dict(zip(plays, json.loads(scored.stdout), strict=True))
    assert ours["all"] == 1.0
    assert 0.0 < ours["one move"] < 1.0
    assert ours["not said"] == 0.75


def test_a_synthesized_task_is_judged_by_replay(lists: ToolEnvironment) -> None:
    setup = lists.tasks("seed", 1)[0].setup
    task = Task("verifiers", "Move the letters to Tuesday.", setup, (move("letters", "tuesday"), Action()))
    assert played(lists, task, move("letters", "tuesday"), Action("I moved them.")).reward == 1.0
    assert played(lists, task, move("lamp", "tuesday"), Action("I moved them.")).reward == 0.0
    assert played(lists, task, move("letters", "tuesday")).reward == 0.0
    assert traits_of(lists).incomparable == ""


def test_a_stop_of_the_task_ends_the_episode(lists: ToolEnvironment) -> None:
    task = lists.tasks("train", 1)[0]
    trajectory = played(lists, task, *[move("letters", "friday")] * 13)
    assert (trajectory.outcome, len(trajectory.turns)) == ("finished", 12)


def test_text_alone_is_an_answer_and_nothing_can_be_synthesized(sums: ToolEnvironment) -> None:
    task = next(task for task in sums.tasks("train", 100) if task.query == "1 + 2 =")
    assert played(sums, task, Action("3")).reward == 1.0
    assert played(sums, task, Action("<think>1 + 2</think>\n3")).reward == 1.0
    assert played(sums, task, Action("4")).reward == pytest.approx(1 / 3)
    assert played(sums, task, Action("three", (), "no tool call found")).reward == 0.0
    assert sums.tools() == ()
    assert traits_of(sums).incomparable == "the taskset has no tools"
    splits = [{task.id for task in sums.tasks(split, 100)} for split in ("train", "dev", "eval")]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 30


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("box", "task 0 needs a container"),
        ("rewriting", "shorter rewrites messages"),
        ("no prompt", "has no prompt: its user, a model, opens the conversation"),
        ("conversation", "is a conversation"),
        ("image", "holds images"),
    ],
)
def test_what_has_no_counterpart_is_refused(kind: str, reason: str) -> None:
    with pytest.raises((ValueError, EnvironmentFailure), match=reason):
        load("refused_taskset", arguments=json.dumps({"kind": kind}))


@pytest.mark.parametrize("module", ["lists_taskset", "sums_taskset"])
def test_the_check_finds_no_fault(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--set", "full=1.5"] if module == "sums_taskset" else []
    solved = ["--set", f"solution={module}:solved"]
    given = ["--set", f"module={module}", "--set", f"path={FOLDER}", "--count=2", *more, *solved]
    assert check.main(["verifiers", *given]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(line["fault_count"] == 0 and line["replayed"] == line["tasks"] > 0 for line in lines)


@pytest.mark.parametrize("module", ["lists_taskset", "sums_taskset"])
def test_two_steps_of_the_main_command(module: str, tmp_path: Path) -> None:
    evolving = module == "lists_taskset"
    more = (
        [] if evolving else ["--config.evolve=none", "--config.warm_start.steps=0", "--config.sampling.max_tokens=16"]
    )
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/verifiers.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.workdir={tmp_path / 'run'}", f"--config.environment.module={module}",
        f"--config.environment.path={FOLDER}", *more,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["outcomes"].get("environment_error", 0) == 0
    assert (summary["tasks_final"] > summary["tasks_initial"]) == evolving
    assert ("nothing is synthesized: the taskset has no tools" in done.stdout) != evolving

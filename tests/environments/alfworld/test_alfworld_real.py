"""ALFWorld by the path that training uses, on games generated here: the official engine plays and judges."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patience

import environments
from cojax.environment import play
from cojax.environment.replay import follow, replay
from cojax.types import Action, Call, Task, canonical
from environments import check
from environments.alfworld import RECIPE
from environments.alfworld.data import find_games_folder, find_root
from environments.soundness import GARBAGE
from environments.worker import IsolatedEnvironment
from environments.worker.venv import interpreter

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
KINDS = {
    "pick_and_place_simple", "look_at_obj_in_light", "pick_clean_then_place_in_recep", "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep", "pick_two_obj_and_place",
}  # fmt: skip
FINISH = Action(calls=(Call("finish", {}),))


@pytest.fixture(scope="module")
def alfworld() -> Iterator[IsolatedEnvironment]:
    environment = environments.load("alfworld", data="tiny")
    assert isinstance(environment, IsolatedEnvironment)
    yield environment
    environment.close()


def act(command: str) -> Action:
    return Action(calls=(Call("act", {"command": command}),))


def commands(task: Task) -> list[str]:
    return [action.calls[0].arguments["command"] for action in task.solution]


def test_every_split_has_games_of_all_kinds_also_with_slices(alfworld: IsolatedEnvironment) -> None:
    counts = {split: len(alfworld.tasks(split, 1_000)) for split in ("train", "valid_seen", "valid_unseen", "seed")}
    assert counts == {"train": 58, "valid_seen": 23, "valid_unseen": 23, "seed": 58}
    for split in ("train", "valid_seen", "valid_unseen"):
        tasks = alfworld.tasks(split, 1_000)
        assert {task.setup["game"].split("/")[1].partition("-")[0] for task in tasks} == KINDS
        assert sum(any(command.startswith("slice ") for command in commands(task)) for task in tasks) >= 5
    setups = {canonical(task.setup) for task in alfworld.tasks("seed", 1_000)}
    assert not setups & {canonical(task.setup) for split in ("dev", "eval") for task in alfworld.tasks(split, 1_000)}


def test_all_solutions_win_and_none_does_without_one_of_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["alfworld", "--data=tiny"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["split"], line["tasks"], line["replayed"]) for line in lines] == [
        ("train", 58, 58),
        ("valid_seen", 23, 23),
        ("valid_unseen", 23, 23),
    ]
    for line in lines:
        assert (line["mutated_rejected"], line["let_through"]) == (line["mutated"], [])
        assert line["answered"] == line["thrown"] == len(GARBAGE)
        assert (line["unsolved"], line["fault_count"]) == (0, 0)


def test_verdicts_are_those_of_the_benchmarks_own_environment(alfworld: IsolatedEnvironment) -> None:
    folder, played, ours = find_games_folder(find_root("tiny")), [], []
    for task in alfworld.tasks("valid_unseen", 100):
        whole = task.solution
        plays = [whole, *(whole[:i] + whole[i + 1 :] for i in range(len(whole)) if len(whole) > 1)]
        played.append((f"{folder / task.setup['game']}", [commands(Task("", "", {}, one)) for one in plays]))
        ours += [play(alfworld, task, follow(one), max_turns=len(one)).reward for one in plays]
    done = subprocess.run(
        [interpreter("alfworld", RECIPE), Path(__file__).with_name("official_wins.py")],
        input=json.dumps(played), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ours.count(1.0) == 23
    assert json.loads(done.stdout) == [reward == 1.0 for reward in ours]


IN_ONE_PROCESS = """
import json, sys
from environments.alfworld.data import find_games_folder, read_game_list
from environments.alfworld.inside import World
from pathlib import Path
root = Path(sys.argv[1])
for one in read_game_list(root)[::20]:
    world = World(find_games_folder(root), {"game": one["game"]})
    print(json.dumps([world.introduction(), world.state(), world.commands()]))
    for command in one["walkthrough"]:
        said = world.call("act", {"command": command})
        print(json.dumps([said, world.state(), world.commands(), world.over()]))
"""


def test_a_game_is_the_same_in_every_process() -> None:
    told = []
    for seed in ("1", "2"):
        own = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        call = [interpreter("alfworld", RECIPE), "-c", IN_ONE_PROCESS, str(find_root("tiny"))]
        told.append(subprocess.run(call, env=own, capture_output=True, text=True, check=True).stdout.splitlines())
    assert told[0] == told[1]
    assert sum(line.endswith("true]") for line in told[0]) == 6


def test_a_state_shows_where_things_are_and_what_was_done_to_them(alfworld: IsolatedEnvironment) -> None:
    task = next(task for task in alfworld.tasks("train", 100) if any(c.startswith("heat ") for c in commands(task)))
    replayed = replay(alfworld, task, task.solution)
    before, after = (replayed.states[number]["world"] for number in (0, -1))
    (heat,) = (command for command in commands(task) if command.startswith("heat "))
    thing = heat.removeprefix("heat ").partition(" with ")[0]
    assert (before.get("ishot"), after["ishot"]) == (None, [thing])
    assert before["atlocation"] != after["atlocation"]
    assert len({canonical(state) for state in replayed.states}) == len(task.solution) + 1


def test_looking_changes_no_state_and_what_does_nothing_is_refused(alfworld: IsolatedEnvironment) -> None:
    task = alfworld.tasks("valid_seen", 1)[0]
    idle = ["look", "inventory", "help", "fly to fridge 1", "", "x" * 301]
    replayed = replay(alfworld, task, [act(command) for command in idle])
    shown = [turn.observation for turn in replayed.trajectory.turns]
    assert [one.ok for one in shown] == [True, True, True, False, False, False]
    assert shown[3].text == "error: Nothing happens."
    assert len({canonical(state["world"]) for state in replayed.states}) == 1


def test_an_episode_ends_after_fifty_commands(alfworld: IsolatedEnvironment) -> None:
    task = alfworld.tasks("valid_seen", 1)[0]
    late = play(alfworld, task, follow([act("look")] * (51 - len(task.solution)) + list(task.solution)), max_turns=60)
    assert (len(late.turns), late.reward) == (50, 0.0)
    in_time = [act("look")] * (50 - len(task.solution)) + list(task.solution)
    assert play(alfworld, task, follow(in_time), max_turns=60).reward == 1.0


def test_an_explorer_sees_no_task_and_is_offered_commands_that_do_something(alfworld: IsolatedEnvironment) -> None:
    task = alfworld.tasks("seed", 1)[0]
    episode = alfworld.start(task)
    try:
        system, *_ = episode.reset()
        *offered, ending = episode.affordances()
    finally:
        episode.close()
    assert "you see" in system.content
    assert "Your task" not in system.content
    assert ending == FINISH
    assert offered
    for action in offered:
        assert play(alfworld, task, follow([action]), max_turns=1).turns[0].observation.ok


def test_a_synthesized_task_is_judged_by_its_solution(alfworld: IsolatedEnvironment) -> None:
    place = alfworld.tasks("train", 1)[0]
    going = [act(command) for command in commands(place) if command.startswith("go to ")][:1]
    task = Task("alfworld", "Please go there.", place.setup, (*going, FINISH))
    assert play(alfworld, task, follow(task.solution), max_turns=5).reward == 1.0
    assert play(alfworld, task, follow([FINISH]), max_turns=5).reward == 0.0


def test_the_main_command_adds_tasks_with_the_tiny_policy(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "experiments.run", "--config=experiments/alfworld.py", "--config.policy=tiny",
        "--config.steps=2", f"--config.workdir={tmp_path / 'run'}",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(3_600))
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["tasks_final"] > summary["tasks_initial"]
    assert summary["outcomes"].get("environment_error", 0) == 0

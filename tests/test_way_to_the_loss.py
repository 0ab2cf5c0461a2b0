"""From a command to the loss: which functions of the repository are on the stack when the first line of `grpo` runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from commands import Commands

ROOT = Path(__file__).parents[1]
MOST = 11
# Runs a command as its own process would, and writes the stacks once an update has been traced. All that was compiled
# in the rehearsal is forgotten before the step, so that the update is traced where it happens.
PROGRAM = """
import json, os, runpy, sys
import jax
import cojax.coevolve
from cojax.learner import losses

jax.config.update("jax_disable_most_optimizations", True)
root, out, needed, way = sys.argv[1:5]
rooms = tuple(root + room for room in ("cojax/", "environments/", "experiments/"))
stacks, exponential, sample = [], losses.bounded_exp, cojax.coevolve.order_steps

def first_line(log_ratio):
    frame, names = sys._getframe(1), []
    of_grpo = frame.f_code.co_name == "grpo"
    while frame is not None:
        if frame.f_code.co_filename.startswith(rooms):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    if of_grpo:
        stacks.append(names[::-1])
        if set(needed.split(",")) <= set(names):
            with open(out, "w") as file:
                json.dump(stacks, file)
            os._exit(0)
    return exponential(log_ratio)

def forgotten(*arguments):
    jax.clear_caches()
    return sample(*arguments)

losses.bounded_exp, cojax.coevolve.order_steps = first_line, forgotten
sys.argv[:] = [way, *sys.argv[5:]]
os.chdir(root)
if way == "cojax":
    from cojax.command import main
    sys.exit(main())
runpy.run_module(way, run_name="__main__", alter_sys=True)
"""
SETTINGS = {
    "steps": 1, "batch_size": 1, "group_size": 2, "initial_tasks": 1, "evolve_every": 5, "warm_start.steps": 0,
    "evaluation.tasks": 1, "evaluation.dev_tasks": 1, "evaluation.every": 0, "model.shape.hidden_size": 16,
    "model.shape.intermediate_size": 16, "model.shape.num_hidden_layers": 1, "engine.slots": 2,
    "learner.loss_settings.entropy_coefficient": 0.001,
}  # fmt: skip


def stacks_of(way: list[str], needed: str, folder: Path, cache: Path, commands: Commands) -> list[list[str]]:
    """The functions of the repository on the stack, at each first line of `grpo` up to one with the `needed` names."""
    out = folder / "stacks.json"
    (folder / "on_the_way.py").write_text(PROGRAM)
    settings = [f"--config.{name}={value}" for name, value in SETTINGS.items()]
    done = commands.run(
        "on_the_way", f"{ROOT}/", str(out), needed, *way, "--config=experiments/desk.py", *settings,
        f"--workdir={folder / 'run'}", folder=folder, environment={**os.environ, "COJAX_CACHE": str(cache)},
    )  # fmt: skip
    assert out.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(out.read_text())


def test_few_functions_lie_between_a_command_and_the_loss(
    tmp_path: Path, shared_cache: Path, commands: Commands
) -> None:
    stacks = stacks_of(["cojax", "run"], "coevolve,_add_micro_batch", tmp_path, shared_cache, commands)
    way = [
        "main",
        "train",
        "run",
        "coevolve",
        "update",
        "compute",  # what jit_policy compiles
        "update",
        "_add_micro_batch",
        "score_micro",
        "loss",
        "grpo",
    ]
    assert stacks[-1] == way
    # Wherever else the loss is traced: as the settings are checked, as the learner is made, and in the rehearsal.
    assert max(map(len, stacks)) <= MOST, max(stacks, key=len)
    assert any("rehearse" in stack for stack in stacks)


def test_the_module_of_the_command_begins_as_the_command_does(
    tmp_path: Path, shared_cache: Path, commands: Commands
) -> None:
    (stack,) = stacks_of(["experiments.run"], "grpo", tmp_path, shared_cache, commands)
    assert stack[:3] == ["<module>", "train", "run"]

"""A run directory with as many tasks and episodes as a long run leaves, written in seconds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from cojax.pool import make_task_record
from cojax.storage.files import write_json
from cojax.types import Action, Call, Check, Lineage, Message, Observation, Task, Trajectory, Turn, to_json

GROUP, BATCH, SEEDS = 8, 16, 100
SAMPLE, REWARD = "@sample@", 0.123454321


def write_run(folder: Path, tasks: int, episodes: int) -> None:
    """Steps of BATCH groups of GROUP episodes; every fiftieth evolves, and tasks join evenly."""
    steps = -(-episodes // (GROUP * BATCH))
    pool = [_task(number, number * steps // tasks, tasks, steps) for number in range(tasks)]
    write_json(
        folder / "config.json", {"config": {"environment": {"name": "large"}, "learner": {"advantage": "mean_centred"}}}
    )
    _log(folder / "tasks.jsonl", (make_task_record(task) for task in pool))
    (folder / "episodes").mkdir()
    left = episodes
    rows = []
    for step in range(1, steps + 1):
        groups = min(BATCH, -(-left // GROUP))
        left -= groups * GROUP
        played = (pool[(step * BATCH + place) % tasks] for place in range(groups))
        with gzip.open(folder / f"episodes/{step:06d}.jsonl.gz", "wb", compresslevel=1) as file:
            file.write("".join(_group(task, step) for task in played).encode())
        counts = {"signals": {"boundary": 5}, "outcomes": {"finished": groups * GROUP}}
        rows.append({"step": step, "success": 0.4 + 0.2 * step / steps, "reward": 0.5, "tasks": tasks, **counts})
        if step % 50 == 0:
            rows[-1]["evolution"] = {"accepted": 300, "retained": 1, "discarded": 20, "added": {"boundary": 300}}
    _log(folder / "metrics.jsonl", rows)


def name_of(task: Task, step: int, sample: int) -> str:
    return f"{step}-{task.id}-{sample}"


def _task(number: int, step: int, tasks: int, steps: int) -> Task:
    words = f"file the report of room {number}, then tell ana about {number % 97} and forward what she says to the desk"
    solution = tuple(Action(calls=(Call(f"tool{n}", {"room": number, "text": "as it was said"}),)) for n in range(4))
    if number < SEEDS:
        return Task("large", words, {"room": number}, solution, "unguided", Lineage(verdict="accepted"))
    parent = _task(number % SEEDS, 0, tasks, steps)
    evidence = tuple(f"examination {n}: found to be as it should be, in every state that it passes" for n in range(7))
    source = name_of(parent, max(1, step - 1), number % GROUP)
    lineage = Lineage(parent.id, "3 of 8 solved", source, "scripted", (0,), "accepted", evidence, max(1, step))
    return Task("large", words, {"room": number}, solution, ("boundary", "rare", "forgetting")[number % 3], lineage)


def _group(task: Task, step: int) -> str:
    turn = Turn(
        Action("", (Call("tool", {"room": 1, "text": "words of a call"}),)),
        Observation((Message("tool", "what the environment said about it, in a line or two"),)),
        prompt_tokens=(1, 2, 3),
        action_tokens=tuple(range(6)),
        action_logprobs=(-0.125,) * 6,
        weights_version=step,
    )
    opening = (Message("user", task.query),)
    whole = Trajectory(
        task, name_of(task, step, 0)[:-1] + SAMPLE, opening, (turn,) * 2, REWARD, (Check("done", False),)
    )
    text = json.dumps({**to_json(whole), "signals": []}) + "\n"
    return "".join(
        text.replace(SAMPLE, str(sample)).replace(str(REWARD), str(float((sample + step) % 3 == 0)))
        for sample in range(GROUP)
    )


def _log(path: Path, rows) -> None:  # type: ignore[no-untyped-def]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

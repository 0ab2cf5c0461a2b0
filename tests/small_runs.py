"""A run directory as a run of six steps leaves it, made in a second and without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cojax.explorer.llm.chat_model import Journal
from cojax.metrics import Metrics
from cojax.storage.checksums import add_checksum
from cojax.storage.files import Log, write_json, write_text
from cojax.storage.run_directory import RunDirectory
from cojax.types import Action, Call, Group, Message, Observation, Signal, Task, Trajectory, Turn

CONFIG = {"seed": 0, "steps": 6, "workdir": "", "evolve": {"every": 2}}
LIKE = {"w": np.zeros(3, np.float32)}


def task(name: str) -> Task:
    return Task("counter", f"count to {name}", {"target": name}, (Action(calls=(Call("add"),)),))


def group(of: Task, step: int) -> Group:
    observation = Observation((Message("tool", f"step {step}"),))
    turn = Turn(Action("go"), observation, (1, 2), (5, 6), (-0.1, -1e-9), weights_version=step)
    return Group(
        of, tuple(Trajectory(of, f"{step}-{of.id}-{reward}", (), (turn,), float(reward)) for reward in range(2))
    )


def begun(folder: Path, **settings: Any) -> RunDirectory:
    """A run after step 0."""
    directory = RunDirectory(folder, **settings)
    directory.claim(CONFIG, {"versions": {"python": "3"}})
    write_json(folder / "model.json", {"config": {"hidden_size": 3}, "dtype": "float32"})
    directory.files.add_evaluation(
        "zero_shot", {"success": 0.25, "tasks": {"a": 0.25}}, group(task("held out"), 0).trajectories
    )
    for file_name in ("tokenizer.json", "tokenizer_config.json"):
        write_json(folder / "tokenizer" / file_name, {"words": ["add", "finish"], "name": file_name})
    directory.begin()
    directory.add_tasks([task(str(target)) for target in range(3)])
    write_json(folder / "initial.json", {"expeditions": 3})
    directory.files.note(["initial.json"])
    save(directory, 0, 0)
    return directory


def save(directory: RunDirectory, step: int, evolved: int) -> None:
    clock = {"parts": {"update": float(step)}, "total": float(step)}
    host_state = {"evolved": evolved, "fresh": 1, "clock": clock, "record": None}
    waiting_groups = [group(task("1"), step + 1)] if step in (4, 6) else []
    directory.save(step, {"w": np.full(3, step, np.float32)}, host_state, [waiting_groups])


def play(directory: RunDirectory, step: int, metrics: Metrics) -> None:
    """One step; every third ends with an evolution, every second with a checkpoint."""
    first_task = task("1")
    changes = {"forgetting": {first_task.id: [0.5, step / 8]}}
    directory.memory.append([{"step": step, "changes": changes}])
    signals = [Signal("rare", first_task.id, f"{step}-{first_task.id}-0", "one of a kind")]
    directory.add_episodes(step, [group(first_task, step), group(task("2"), step)], signals)
    if evolves := step % 3 == 0:
        directory.add_tasks([task(f"new {step}")])
        directory.drafts.append([{"step": step, "draft": {"query": "count"}}, {"step": step, "draft": {"query": "up"}}])
        directory.expeditions.append([{"step": step, "expedition": 0}])
    Journal(directory.folder / "journal.jsonl").add(f"{step:032x}", {"place": "p", "text": f"reply {step}"})
    Log(directory.folder / "embeddings.jsonl").append([{"key": f"{step:032x}", "vector": "AACAPw=="}])
    metrics.write({"step": step, "success": step / 8, "seconds": {"total": 1.0}})
    if step % 2 == 0:
        save(directory, step, step if evolves else step // 3 * 3)


def finished(folder: Path, steps: int = 6, **settings: Any) -> Path:
    """A run that has ended, and its folder let go."""
    directory = begun(folder, **settings)
    metrics = Metrics(folder, log=directory.metrics)
    for step in range(1, steps + 1):
        play(directory, step, metrics)
    metrics.close()
    end(directory, steps)
    return folder


def end(directory: RunDirectory, steps: int) -> None:
    parts: dict[str, Any] = {
        part_name: {} for part_name in ("signals", "verdicts", "added", "outcomes", "seconds", "tokens")
    }
    directory.files.add_evaluation("final", {"success": 0.5}, group(task("held out"), steps).trajectories)
    write_json(directory.folder / "summary.json", add_checksum({"steps": steps, **parts}))
    write_text(directory.folder / "report.html", "<html></html>\n")
    write_text(directory.folder / "run.log", "resumed\n")
    directory.close()


def older(folder: Path) -> None:
    """Takes from a run directory all that versions without checksums did not write."""
    for host_path in folder.glob("checkpoints/*/host.json"):
        record = json.loads(host_path.read_text())
        del record["checksum"]
        extents = record["host"].pop("logs")
        del record["host"]["first_episodes"]
        names = ("metrics", "tasks", "signals", "drafts", "expeditions", "quarantine", "memory")
        record["host"]["lengths"] = {name: extents[name][0] for name in names}
        host_path.write_text(json.dumps(record, indent=1) + "\n")
    for name in ("config.json", "summary.json", "final.json"):
        record = json.loads((folder / name).read_text())
        del record["checksum"]
        (folder / name).write_text(json.dumps(record, indent=1) + "\n")
    (folder / "checksums.jsonl").unlink()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, by name."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}

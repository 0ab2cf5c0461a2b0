"""A sound run directory, made without a model, and the attacks that somebody else may plant in one."""

import contextlib
import dataclasses
import gzip
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

from cojax.storage.checksums import add_checksum
from cojax.storage.files import write_json
from cojax.types import Action, Call, Group, Message, Observation, Task, Trajectory, Turn

_STEPS = 3
# What commands write beside the files of a run, and what older ones left.
_WRITTEN = (
    "report.html", "report_files", "report_files/episodes-000001.js", "report_files/tasks-0000.js", "run.log",
    "summary.json", "final.json", "tensorboard", "tensorboard/events.out.tfevents.1", "evaluations", ".lock", "base",
    "waiting", "weights", "journal.jsonl", "result.json", "checkpoints", "tokenizer", "episodes", "config.json",
    ".report.html.0123456789abcdef.tmp", "report_files/.episodes-000001.js.0123456789abcdef.tmp",
    "report_files/.episodes-000001.partial", ".report.html.partial", "held_out.json", "asleep.json", "engine.json",
    "episodes/000001.jsonl.gz", "final_episodes.jsonl.gz",
)  # fmt: skip
_MODULE = "import pathlib\npathlib.Path({!r}).touch()\ndef entry(*_, **__):\n    return 1.0\n"
_ENTRIES = ("curriculum", "learner.loss", "learner.advantage", "evolve", "environment.name", "signals", "explorer.name")


@dataclasses.dataclass(frozen=True)
class Place:
    """The folders of one fault: the run, what lies elsewhere and may not change, and the current folder."""

    run: Path
    elsewhere: Path
    here: Path
    planted: set[Path] = dataclasses.field(default_factory=set)

    @property
    def marker(self) -> Path:
        """A file that code of the run directory makes."""
        return self.here / "code ran"

    def name(self, rng: random.Random, suffix: str = "") -> Path:
        """The path of a file of the run, or of one that a command writes."""
        files = [str(path.relative_to(self.run)) for path in sorted(self.run.rglob("*")) if path.is_file()]
        path = self.run / rng.choice([name for name in (*files, *_WRITTEN) if name.endswith(suffix)])
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path if path.parent.is_dir() and path.parent.resolve().is_relative_to(self.run) else self.run / "run.log"


def _remove(path: Path) -> Path:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    return path


def _stored(path: Path) -> dict[str, Any] | None:
    """A record without its checksum; None where another attack took its place."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 2**20:
        return None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(path.read_text())
        return {key: value for key, value in found.items() if key != "checksum"} if isinstance(found, dict) else None
    return None


def _link(place: Place, rng: random.Random) -> str:
    """A link to a file or folder with the content of what it replaces, or to nothing."""
    path, kind = place.name(rng), rng.choice(("file", "folder", "nothing"))
    target = place.elsewhere / f"{len(place.planted)}-{path.name}"
    if kind != "nothing":
        if os.path.lexists(path) and not path.is_symlink():
            path.rename(target)
        elif kind == "file":
            target.write_text("a canary\n")
        else:
            target.mkdir()
        if target.is_dir():
            for name in ("episodes-000009.js", ".episodes-000009.partial", "notes.txt", "000001.jsonl.gz"):
                (target / name).touch()
    _remove(path).symlink_to(target)
    return f"{path.relative_to(place.run)} is a link to {kind}"


def _unknown(place: Place, rng: random.Random) -> str:
    """Files that no command made, beside those that one did."""
    folder = place.run / rng.choice(("", "report_files", "evaluations", "tensorboard", "episodes", "checkpoints"))
    if not folder.is_symlink():
        folder.mkdir(exist_ok=True)
        for name in ("notes.txt", "episodes-1.js", "mine.tmp", ".mine.tmp", "my/tasks-0000.js"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("mine\n")
            place.planted.add(folder / name)
    return f"unknown files in {folder.name}"


def _code(place: Place, rng: random.Random) -> str:
    """A name of code in config.json: a module of the directory, one of the standard library, or a program."""
    path = place.run / "config.json"
    stored = _stored(path) or {}
    if not isinstance(config := stored.get("config"), dict) or not isinstance(config.get("environment"), dict):
        return "no settings"
    (place.run / "foreign_code.py").write_text(_MODULE.format(str(place.marker)))
    kind = rng.choice(("module", "module", "library", "program", "folder"))
    if kind == "program":
        config["environment"] |= {"name": "mcp", "command": f"/usr/bin/touch '{place.marker}'", "python": "/bin/false"}
    else:
        section, _, key = rng.choice(_ENTRIES).rpartition(".")
        name = rng.choice(("os:abort", "antigravity:a")) if kind == "library" else "foreign_code:entry"
        holder = config.get(section) if section else config
        holder = holder if isinstance(holder, dict) else {}
        holder[key] = name
        if kind == "folder":
            code = {"name": name, "folder": str(place.run)}
            stored["code"] = {f"{section}.{key}".strip("."): code}
    write_json(path, stored)
    return f"config.json names code, a {kind}"


def _expanding(place: Place, rng: random.Random) -> str:
    path = place.name(rng, ".jsonl.gz")
    part = rng.choice((b"\0" * 64, b"\n" * 64, b"{}\n" * 21, b"[" * 64, b'{"a":' + b"9" * 59)) * 2**14
    _remove(path).write_bytes(gzip.compress(part) * (rng.choice((2**20, 2**28, 2**30)) // len(part)))
    return f"{path.relative_to(place.run)} expands"


def _endless(place: Place, rng: random.Random) -> str:
    """A line of 3 GB, which takes no room on the disk. A journal may hold as much, and is read."""
    path = place.name(rng, ".json" if rng.random() < 0.5 else ".jsonl")
    if path.name != "journal.jsonl":
        _remove(path).touch()
        os.truncate(path, 3 * 2**30)
    return f"{path.relative_to(place.run)} is endless"


def _pipe(place: Place, rng: random.Random) -> str:
    os.mkfifo(_remove(path := place.name(rng)))
    return f"{path.relative_to(place.run)} is a pipe"


def _deep(place: Place, rng: random.Random) -> str:
    path, levels = place.name(rng, rng.choice((".json", ".jsonl", ".jsonl.gz"))), rng.choice((900, 100_000))
    start, end = rng.choice(((b"[", b"]"), (b'{"step":', b"}")))
    content = start * levels + b"1" + end * levels + b"\n"
    _remove(path).write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return f"{path.relative_to(place.run)} is {levels} levels deep"


def _forged(place: Place, rng: random.Random) -> str:
    """A record with another value or without one, and with the right checksum."""
    path = place.run / rng.choice(("summary.json", "final.json", "zero_shot.json", "model.json", "config.json"))
    if (value := _stored(path)) is None:
        return f"no {path.name}"
    holder, key = value, rng.choice(sorted(value) or ["seed"])
    while isinstance(holder.get(key), dict) and holder[key] and rng.random() < 0.7:
        holder, key = holder[key], rng.choice(sorted(holder[key]))
    other: Any = rng.choice((None, [], {}, "text", -1, 1e300, True, ...))
    if other is ...:
        holder.pop(key, None)
    else:
        holder[key] = other
    write_json(path, add_checksum(value))
    return f"{path.name} has another {key}"


ATTACKS = (_link, _link, _link, _unknown, _code, _code, _expanding, _endless, _pipe, _deep, _forged)


def whole(folder: Path) -> None:
    """A run of the desk as it ends, made without a model; its arrays are no policy's."""
    import numpy as np

    from cojax.metrics import Metrics
    from cojax.rollout.vocabulary import train_byte_tokenizer
    from cojax.settings import presets
    from cojax.storage.run_directory import RunDirectory
    from environments.desk import Desk
    from experiments import desk

    config = presets.apply_preset(desk.get_config(), ())
    config.steps = _STEPS
    tasks = Desk().tasks("seed", 3)

    def group(task: Task, step: int) -> Group:
        # So long that a report has pieces beside its page.
        action, seen = Action(calls=(Call("look", {"at": "x" * 4_000}),)), Observation((Message("tool", "nothing"),))
        turns = (Turn(action, seen, (1, 2), (5, 6), (-0.1, -0.2), weights_version=step),) * 16
        return Group(task, tuple(Trajectory(task, f"{step}-{task.id}-{k}", (), turns, float(k > 1)) for k in range(4)))

    directory = RunDirectory(folder)
    try:
        directory.claim(json.loads(json.dumps(config.to_dict())), {})
        write_json(folder / "model.json", {"config": {"hidden_size": 3}, "dtype": "float32"})
        directory.files.add_evaluation(
            "zero_shot", {"success": 0.25, "tasks": {tasks[0].id: 0.25}}, group(tasks[0], 0).trajectories
        )
        train_byte_tokenizer(["a b c"], 300).save_pretrained(folder / "tokenizer")
        directory.begin()
        directory.add_tasks(tasks)
        metrics = Metrics(folder, log=directory.metrics)
        for step in range(_STEPS + 1):
            if step:
                directory.memory.append([{"step": step, "changes": {}}])
                directory.add_episodes(step, [group(task, step) for task in tasks], [])
                metrics.write({"step": step, "success": step / 8, "seconds": {"total": 1.0}})
            host = {"evolved": 0, "fresh": 1, "clock": {"parts": {}, "total": float(step)}, "record": None}
            directory.save(step, {"w": np.zeros(3, np.float32)}, host, [])
        metrics.close()
        directory.files.add_evaluation(
            "final", {"success": 0.5, "tasks": {tasks[0].id: 0.5}}, group(tasks[0], _STEPS).trajectories
        )
        parts: dict[str, Any] = {name: {} for name in ("signals", "verdicts", "added", "outcomes", "seconds", "tokens")}
        parts |= {"tasks_initial": 3, "tasks_final": 3, "seconds": {"total": 1.0}}
        write_json(folder / "summary.json", add_checksum({"steps": _STEPS, **parts}))
    finally:
        directory.close()

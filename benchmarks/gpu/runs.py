"""The main command on the card: the desk's demo and a pretrained model by GRPO, side by side, as far as time goes."""

import dataclasses
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy

from benchmarks.gpu import children, records
from benchmarks.results import Row
from cojax import open_run
from cojax.durable import own_file
from cojax.run.machine import versions_and_commit
from cojax.storage.files import last_lines, write_json

# Memory, in GB, from which on both runs share the card.
_BOTH = 30.0
# Seconds in which a run that is told to stop ends its step and saves a checkpoint, but at most this share of its time.
_SAVING, _SHARE = 40.0, 1 / 3
_POLL = 2.0  # seconds between looks at its progress
_LEAST = 20.0  # seconds in which a run can come to something
MODEL = "SmolLM2-135M-Instruct"


@dataclasses.dataclass(frozen=True)
class Run:
    """An experiment with settings, and the same in miniature. `share` is of the card's memory, beside the other run."""

    experiment: str
    settings: tuple[str, ...]
    miniature: tuple[str, ...]
    share: float


RUNS: Mapping[str, Run] = {
    "desk": Run(
        "experiments/desk.py",
        ("steps=20",),
        (
            "steps=2", "batch_size=2", "group_size=2", "initial_tasks=4", "model.shape.hidden_size=32",
            "model.shape.num_hidden_layers=1", "warm_start.steps=4", "warm_start.check_every=4",
            "warm_start.demonstrations=64", "warm_start.lengthen=0", "warm_start.check_tasks=4",
            "warm_start.target=0.0", "evaluation.tasks=4", "evaluation.dev_tasks=4", "engine.slots=4",
            "limits.concurrency=4", "learner.updates_per_batch=1",
        ),
        share=0.3,
    ),
    "smollm2": Run(
        "experiments/desk_smollm2.py",
        (
            "method=coevolve", "preference.tasks=static", "steps=1000", "batch_size=8", "group_size=8",
            "evolve_every=6", "evaluation.tasks=100",
        ),
        (
            "steps=2", "batch_size=2", "group_size=2", "initial_tasks=4", "warm_start.steps=0", "evaluation.tasks=1",
            "evaluation.dev_tasks=1", "engine.slots=4", "engine.lanes=1", "limits.max_turns=2", "sampling.max_tokens=4",
        ),
        share=0.6,
    ),
}  # fmt: skip


def play(kit: Path, out: Path, until: float) -> None:
    """Starts the runs, or goes on with them, and stops them in time for a checkpoint. Those that ended are left."""
    memory = _memory(out)
    waiting = [name for name in RUNS if not _ended(out, name)]
    rounds = [waiting] if memory is None or memory >= _BOTH else [[name] for name in waiting]
    for number, names in enumerate(rounds):
        left = (until - time.monotonic()) / (len(rounds) - number)
        if names and left > _LEAST:
            _together(names, kit, out, time.monotonic() + left, miniature=memory is None)


def _memory(out: Path) -> float | None:
    """GB that a program can have of the card; None on a CPU, where all is in miniature."""
    found = records.read(out, "ceilings")
    return (found["rows"][0]["memory_gb"] if found and "rows" in found else 0.0) or None


def _ended(out: Path, name: str) -> bool:
    found = records.read(out, name)
    return found is not None and "rows" in found and found["rows"][0]["ended"]


def _together(names: list[str], kit: Path, out: Path, until: float, *, miniature: bool) -> None:
    began, running, told = time.monotonic(), {}, False
    telling = until - min(_SAVING, (until - began) * _SHARE)
    try:
        for name in names:
            if (failure := _prepare(name, kit, out, until, miniature=miniature)) is not None:
                records.write_failure(out, name, failure, 0.0, versions_and_commit())
                continue
            share = RUNS[name].share if len(names) > 1 else 0.9
            running[name] = _started(name, kit, out, share, miniature)
        while any(child.poll() is None for child in running.values()) and time.monotonic() < until:
            time.sleep(_POLL)
            for name, child in running.items():
                _note(out, name, child, time.monotonic() - began, told)
            if not told and time.monotonic() > telling:
                told = True
                for child in running.values():
                    child.send_signal(signal.SIGTERM)
    finally:
        for name, child in running.items():
            told = told or child.poll() is None
            children.end(child)
            _note(out, name, child, time.monotonic() - began, told)


def _prepare(name: str, kit: Path, out: Path, until: float, *, miniature: bool) -> str | None:
    """Makes the pretrained model's folder where it is missing; what was wrong, or None."""
    folder, made = out / MODEL, out / f".{MODEL}"
    if name != "smollm2" or folder.exists():
        return None
    shutil.rmtree(made, ignore_errors=True)
    command = [sys.executable, "-m", "experiments.convert", "smollm2", str(made)]
    try:
        done = subprocess.run(
            command, cwd=children.ROOT, env=_environment(kit), capture_output=True, text=True, check=False,
            timeout=max(1.0, until - time.monotonic()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "no time was left to convert the pretrained model"
    if done.returncode:
        return (done.stdout.strip().splitlines() or ["it could not be converted"])[-1][:300]
    if miniature:
        _cut(made)
    made.rename(folder)
    return None


def _cut(folder: Path) -> None:
    """Leaves a model its first layer, with which two processor cores come to a first step in half a minute."""
    config, weights = folder / "config.json", folder / "model.safetensors"
    write_json(config, {**json.loads(config.read_text()), "num_hidden_layers": 1})
    arrays = safetensors.numpy.load_file(weights)
    kept = {name: array for name, array in arrays.items() if ".layers." not in name or ".layers.0." in name}
    safetensors.numpy.save_file(kept, weights)


def _started(name: str, kit: Path, out: Path, share: float, miniature: bool) -> subprocess.Popen[bytes]:
    run = RUNS[name]
    # Those of the miniature take the place of others.
    given = dict(setting.split("=", 1) for setting in (*run.settings, *(run.miniature if miniature else ())))
    given["workdir"] = str(out / "runs" / name)
    if name == "smollm2":
        given["model.path"] = str(out / MODEL)
    command = ["-m", "experiments.run", f"--config={run.experiment}"]
    command += [f"--config.{key}={value}" for key, value in given.items()]
    environment = {**_environment(kit), "XLA_PYTHON_CLIENT_MEM_FRACTION": str(share)}
    with open(out / f"{name}.txt", "ab", opener=own_file) as log:
        return children.start(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _environment(kit: Path) -> dict[str, str]:
    """The kit holds the package of the pretrained model as the cache of cojax does."""
    own = {"COJAX_CACHE": str(kit.resolve())} if (kit / "packages").is_dir() else {}
    return {**os.environ, **own, "PYTHONUNBUFFERED": "1"}


def _note(out: Path, name: str, child: subprocess.Popen[bytes], seconds: float, told: bool) -> None:
    """Writes how far a run has come; what it said last, where it failed before its first step and was not stopped."""
    folder, status, about = out / "runs" / name, child.poll(), versions_and_commit()
    steps = open_run(folder).metrics() if (folder / "metrics.jsonl").exists() else []
    if steps:
        records.write(out, name, [_row(steps, folder, ended=status == 0)], seconds, about)
    elif status and not told:
        said = last_lines(out / f"{name}.txt")
        records.write_failure(out, name, (said or ["it said nothing"])[-1][:300], seconds, about)


def _row(steps: list[dict[str, Any]], folder: Path, *, ended: bool) -> Row:
    """Medians of all steps but the first, which compiles, where there are more."""
    timed = [step["seconds"] for step in steps[1:] or steps]
    names = sorted({name for seconds in timed for name in seconds} - {"total"})
    summary = open_run(folder).summary() if ended else None
    return {
        "steps": len(steps),
        "ended": ended,
        "step_seconds": statistics.median(seconds["total"] for seconds in timed),
        **{f"{name}_seconds": statistics.median(seconds.get(name, 0.0) for seconds in timed) for name in names},
        "success": steps[-1]["success"],
        **({key: summary[key] for key in ("zero_shot", "final", "logprob_mismatch")} if summary else {}),
    }

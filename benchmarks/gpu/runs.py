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
from cojax.durable import open_own_file
from cojax.run.machine import read_versions
from cojax.storage.files import read_last_lines, write_json

# Memory, in GB, from which on both runs share the card.
_SHARED_CARD_GB = 30.0
# Seconds in which a run that is told to stop ends its step and saves a checkpoint, but at most this share of its time.
_MAX_SAVING_S, _MAX_SAVING_SHARE = 40.0, 1 / 3
_POLL_PERIOD_S = 2.0  # seconds between looks at its progress
_MIN_RUN_S = 20.0  # seconds in which a run can come to something
MODEL_NAME = "SmolLM2-135M-Instruct"


@dataclasses.dataclass(frozen=True)
class Run:
    """An experiment with settings, and the same in miniature. `memory_share` is of the card's, beside another run."""

    experiment: str
    settings: tuple[str, ...]
    miniature_settings: tuple[str, ...]
    memory_share: float


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
        memory_share=0.3,
    ),
    "smollm2": Run(
        "experiments/desk_smollm2.py",
        ("episodes=0", "steps=1000", "evaluation.tasks=100"),
        (
            "steps=2", "batch_size=2", "group_size=2", "dynamic_sampling=4", "initial_tasks=4",
            "warm_start.steps=0", "evaluation.tasks=1", "evaluation.dev_tasks=1", "engine.slots=4", "engine.lanes=1",
            "limits.max_turns=2", "sampling.max_tokens=4",
        ),
        memory_share=0.6,
    ),
}  # fmt: skip


def play_runs(kit_folder: Path, results_folder: Path, deadline: float) -> None:
    """Starts the runs, or goes on with them, and stops them in time for a checkpoint. Those that ended are left."""
    memory_gb = _read_card_memory(results_folder)
    waiting_names = [name for name in RUNS if not _has_ended(results_folder, name)]
    rounds = (
        [waiting_names] if memory_gb is None or memory_gb >= _SHARED_CARD_GB else [[name] for name in waiting_names]
    )
    for round_index, names in enumerate(rounds):
        round_s = (deadline - time.monotonic()) / (len(rounds) - round_index)
        if names and round_s > _MIN_RUN_S:
            _run_side_by_side(
                names, kit_folder, results_folder, time.monotonic() + round_s, is_miniature=memory_gb is None
            )


def _read_card_memory(results_folder: Path) -> float | None:
    """GB that a program can have of the card; None on a CPU, where all is in miniature."""
    record = records.read_record(results_folder, "ceilings")
    return (record["rows"][0]["memory_gb"] if record and "rows" in record else 0.0) or None


def _has_ended(results_folder: Path, run_name: str) -> bool:
    record = records.read_record(results_folder, run_name)
    return record is not None and "rows" in record and record["rows"][0]["ended"]


def _run_side_by_side(
    run_names: list[str], kit_folder: Path, results_folder: Path, deadline: float, *, is_miniature: bool
) -> None:
    started_at, child_by_run, was_told_to_stop = time.monotonic(), {}, False
    stop_at = deadline - min(_MAX_SAVING_S, (deadline - started_at) * _MAX_SAVING_SHARE)
    try:
        for run_name in run_names:
            if (
                failure := _prepare_model(run_name, kit_folder, results_folder, deadline, is_miniature=is_miniature)
            ) is not None:
                records.write_failure(results_folder, run_name, failure, 0.0, read_versions())
                continue
            share = RUNS[run_name].memory_share if len(run_names) > 1 else 0.9
            child_by_run[run_name] = _start_run(run_name, kit_folder, results_folder, share, is_miniature)
        while any(child.poll() is None for child in child_by_run.values()) and time.monotonic() < deadline:
            time.sleep(_POLL_PERIOD_S)
            for run_name, child in child_by_run.items():
                _record_progress(results_folder, run_name, child, time.monotonic() - started_at, was_told_to_stop)
            if not was_told_to_stop and time.monotonic() > stop_at:
                was_told_to_stop = True
                for child in child_by_run.values():
                    child.send_signal(signal.SIGTERM)
    finally:
        for run_name, child in child_by_run.items():
            was_told_to_stop = was_told_to_stop or child.poll() is None
            children.end_child(child)
            _record_progress(results_folder, run_name, child, time.monotonic() - started_at, was_told_to_stop)


def _prepare_model(
    run_name: str, kit_folder: Path, results_folder: Path, deadline: float, *, is_miniature: bool
) -> str | None:
    """Makes the pretrained model's folder where it is missing; what was wrong, or None."""
    folder, new_folder = results_folder / MODEL_NAME, results_folder / f".{MODEL_NAME}"
    if run_name != "smollm2" or folder.exists():
        return None
    shutil.rmtree(new_folder, ignore_errors=True)
    command = [sys.executable, "-m", "experiments.convert", "smollm2", str(new_folder)]
    try:
        process = subprocess.run(
            command, cwd=children.ROOT, env=_make_environment(kit_folder), capture_output=True, text=True, check=False,
            timeout=max(1.0, deadline - time.monotonic()),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "no time was left to convert the pretrained model"
    if process.returncode:
        return (process.stdout.strip().splitlines() or ["it could not be converted"])[-1][:300]
    if is_miniature:
        _cut_to_one_layer(new_folder)
    new_folder.rename(folder)
    return None


def _cut_to_one_layer(folder: Path) -> None:
    """Leaves a model its first layer, with which two processor cores come to a first step in half a minute."""
    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    write_json(config_path, {**json.loads(config_path.read_text()), "num_hidden_layers": 1})
    arrays = safetensors.numpy.load_file(weights_path)
    kept_arrays = {name: array for name, array in arrays.items() if ".layers." not in name or ".layers.0." in name}
    safetensors.numpy.save_file(kept_arrays, weights_path)


def _start_run(
    run_name: str, kit_folder: Path, results_folder: Path, memory_share: float, is_miniature: bool
) -> subprocess.Popen[bytes]:
    run = RUNS[run_name]
    # Those of the miniature take the place of others.
    settings = dict(
        setting.split("=", 1) for setting in (*run.settings, *(run.miniature_settings if is_miniature else ()))
    )
    settings["workdir"] = str(results_folder / "runs" / run_name)
    if run_name == "smollm2":
        settings["model.path"] = str(results_folder / MODEL_NAME)
    command = ["-m", "experiments.run", f"--config={run.experiment}"]
    command += [f"--config.{setting}={value}" for setting, value in settings.items()]
    variables = {**_make_environment(kit_folder), "XLA_PYTHON_CLIENT_MEM_FRACTION": str(memory_share)}
    with open(results_folder / f"{run_name}.txt", "ab", opener=open_own_file) as log:
        return children.start_child(command, stdout=log, stderr=subprocess.STDOUT, env=variables)


def _make_environment(kit_folder: Path) -> dict[str, str]:
    """The kit holds the package of the pretrained model as the cache of cojax does."""
    own_variables = {"COJAX_CACHE": str(kit_folder.resolve())} if (kit_folder / "packages").is_dir() else {}
    return {**os.environ, **own_variables, "PYTHONUNBUFFERED": "1"}


def _record_progress(
    results_folder: Path, run_name: str, child: subprocess.Popen[bytes], seconds: float, was_told_to_stop: bool
) -> None:
    """Writes how far a run has come; what it said last, where it failed before its first step and was not stopped."""
    run_folder, exit_status, about = results_folder / "runs" / run_name, child.poll(), read_versions()
    steps = open_run(run_folder).metrics() if (run_folder / "metrics.jsonl").exists() else []
    if steps:
        records.write_result(
            results_folder, run_name, [_make_row(steps, run_folder, has_ended=exit_status == 0)], seconds, about
        )
    elif exit_status and not was_told_to_stop:
        lines = read_last_lines(results_folder / f"{run_name}.txt")
        records.write_failure(results_folder, run_name, (lines or ["it said nothing"])[-1][:300], seconds, about)


def _make_row(steps: list[dict[str, Any]], run_folder: Path, *, has_ended: bool) -> Row:
    """Medians of all steps but the first, which compiles, where there are more."""
    seconds_of_steps = [step["seconds"] for step in steps[1:] or steps]
    part_names = sorted({part_name for seconds in seconds_of_steps for part_name in seconds} - {"total"})
    summary = open_run(run_folder).summary() if has_ended else None
    return {
        "steps": len(steps),
        "ended": has_ended,
        "step_seconds": statistics.median(seconds["total"] for seconds in seconds_of_steps),
        **{
            f"{part_name}_seconds": statistics.median(seconds.get(part_name, 0.0) for seconds in seconds_of_steps)
            for part_name in part_names
        },
        "success": steps[-1]["success"],
        **({key: summary[key] for key in ("zero_shot", "final", "logprob_mismatch")} if summary else {}),
    }

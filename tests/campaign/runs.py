"""Kills the main command at random moments and resumes it: the end must equal that of a run that was not killed."""

import contextlib
import dataclasses
import gzip
import itertools
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from campaign.cases import ROOT, Violation, child, draw

# A policy of two layers that learns for four steps and evolves twice.
SETTINGS = (
    "steps=4", "evolve_every=2", "checkpoint_every=1", "batch_size=4", "group_size=4", "initial_tasks=8",
    "model.shape.hidden_size=64", "model.shape.intermediate_size=128", "model.shape.num_hidden_layers=2",
    "warm_start.steps=200", "warm_start.check_every=100", "warm_start.demonstrations=2000",
    "warm_start.lengthen=1000", "warm_start.noise_low=0.1", "warm_start.noise_high=0.3", "warm_start.check_tasks=40",
    "warm_start.learning_rate=0.005", "evaluation.tasks=8", "evaluation.dev_tasks=8", "evaluation.every=2",
    "engine.slots=16", "engine.lanes=1", "limits.concurrency=16", "learner.updates_per_batch=1",
    "synthesis.contexts=4", "synthesis.budget=4",
    "signal_settings.rare.minimum=16", "signal_settings.rare.percent=20.0",
)  # fmt: skip
# Kills of one life of a run; lives at once.
_KILLS, _LIVES = 5, 2
# Seconds that a run may take to its end, or to the end of its step after a SIGTERM.
_PATIENCE = 1_200.0
LOGS = ("metrics.jsonl", "tasks.jsonl", "signals.jsonl", "drafts.jsonl", "expeditions.jsonl", "memory.jsonl")
FIGURES = (
    "zero_shot", "final", "steps", "tasks_initial", "tasks_final", "signals", "verdicts", "outcomes", "tokens",
    "logprob_mismatch",
)  # fmt: skip
Moment = Callable[[], bool]


def command(workdir: Path, *settings: str) -> list[str]:
    flags = [f"--config.{setting}" for setting in (*SETTINGS, f"workdir={workdir}", *settings)]
    return [sys.executable, "-m", "experiments.run", "--config=experiments/desk.py", *flags]


@contextlib.contextmanager
def started(workdir: Path, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """Starts the main command, with its output in a file beside its folder; kills it at the end of the block."""
    with open(workdir.with_suffix(".said"), "a") as said:
        process = subprocess.Popen(
            command(workdir, *settings), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def finish(workdir: Path, *settings: str) -> str:
    """Runs to the end; returns why it did not get there, "" if it did."""
    with started(workdir, *settings) as process:
        try:
            status = process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            return f"no end within {_PATIENCE:.0f} s"
    return "" if status == 0 else f"exit status {status}: {last_line(workdir)}"


def last_line(workdir: Path) -> str:
    """The last line that the command printed."""
    lines = workdir.with_suffix(".said").read_text(errors="replace").strip().splitlines()
    return lines[-1][:400] if lines else "no output"


@dataclasses.dataclass(frozen=True)
class Reference:
    """The run that was not killed: its folder, its records, and the seconds that such a run takes with warm caches."""

    folder: Path
    records: dict[str, Any]
    seconds: float


_MAKING = threading.Lock()


def reference(folder: Path) -> Reference:
    """The reference, made once a campaign: one run fills the caches of warm start and compiler, the next is timed."""
    with _MAKING:
        first, second = folder / "first", folder / "reference"
        for workdir in (first, second):
            if (workdir / "summary.json").exists():
                continue
            began = time.monotonic()
            if reason := finish(workdir):
                raise OSError(f"the run that was not killed failed: {reason}")
            (folder / "seconds").write_text(str(time.monotonic() - began))
        return Reference(second, records(second), float((folder / "seconds").read_text()))


def records(workdir: Path) -> dict[str, Any]:
    """What must be equal in two equal runs, by name: logs without times, episodes, figures."""
    found: dict[str, Any] = {}
    for name in LOGS:
        lines = [json.loads(line) for line in (workdir / name).read_text().splitlines()]
        found[name] = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    for path in sorted((workdir / "episodes").iterdir()):
        with gzip.open(path) as file:
            found[f"episodes/{path.name}"] = [_without_times(json.loads(line)) for line in file]
    summary = json.loads((workdir / "summary.json").read_text())
    return {**found, **{f"summary {name}": summary[name] for name in FIGURES}}


def _without_times(record: dict[str, Any]) -> dict[str, Any]:
    """An episode's record without how long its parts took."""

    def kept(found: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in found.items() if not key.endswith("_seconds")}

    return {**kept(record), "turns": list(map(kept, record["turns"]))}


def differing(workdir: Path, other: Reference) -> list[str]:
    """The names of logs, figures and arrays in which a run's end differs from the other's."""
    mine = records(workdir)
    names = sorted(name for name in mine.keys() | other.records.keys() if mine.get(name) != other.records.get(name))
    done = subprocess.run(
        child("campaign.resumption", "arrays", str(workdir), str(other.folder)),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [
        *names,
        *([] if done.returncode == 0 else [f"arrays ({done.stdout.strip() or done.stderr.strip()[-200:]})"]),
    ]


class Life:
    """One run that is killed several times, then finishes and is compared."""

    def __init__(self, folder: Path, name: str, isolated: bool, whole: Reference) -> None:
        self.folder, self.name, self.whole, self.number = folder, name, whole, 0
        # The desk in workers gives the same run, and has processes that could remain.
        self.settings = ("environment.isolated=True",) if isolated else ()
        self.workdir = folder / name

    def kill(self, rng: random.Random) -> list[str]:
        """Kills the run once, at a random moment; returns what is wrong where the run had ended before."""
        wrong: list[str] = []
        for attempt in itertools.count():
            number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            moment = self._moment(rng, early=attempt > 0)
            with started(self.workdir, *self.settings) as process:
                while process.poll() is None and not moment():
                    time.sleep(0.002)
                if process.poll() is None:
                    process.send_signal(number)
                    try:
                        process.wait(_PATIENCE)
                    except subprocess.TimeoutExpired:
                        wrong.append(f"signal {number} did not end it")
                    return wrong
            # The run ended before the moment came: its end is compared, and another life begins.
            wrong += self.end(process.returncode)
        raise AssertionError

    def end(self, status: int | None = None) -> list[str]:
        """Finishes this life; returns what is wrong with its end. The next kill begins another life."""
        reason = finish(self.workdir, *self.settings) if status is None else ""
        if status:
            reason = f"exit status {status}: {last_line(self.workdir)}"
        wrong = [reason] if reason else [f"{name} differs" for name in differing(self.workdir, self.whole)]
        shutil.rmtree(self.workdir, ignore_errors=True)
        self.number += 1
        self.workdir = self.folder / f"{self.name}-{self.number}"
        return wrong

    def _moment(self, rng: random.Random, early: bool) -> Moment:
        """When to kill: by the clock, in a checkpoint, after a step's episodes, or in the last evaluation."""
        began = time.monotonic()
        until = began + rng.uniform(0.05, 0.5 if early else 1.0) * self.whole.seconds
        step, later = rng.randrange(1, 5), rng.choice((0.0, 0.0, 0.02, 0.3))
        kind = "clock" if early else rng.choice(("clock", "clock", "checkpoint", "episodes", "evaluation"))
        workdir, seen = self.workdir, [0.0]
        there = {
            "clock": lambda: time.monotonic() > until,
            "checkpoint": lambda: (
                (workdir / "checkpoints").is_dir()
                and any(re.fullmatch(r"\.\d+\.\d+\.tmp", path.name) for path in (workdir / "checkpoints").iterdir())
            ),
            "episodes": lambda: (workdir / f"episodes/{step:06d}.jsonl.gz").exists(),
            "evaluation": lambda: (workdir / "checkpoints/4/host.json").exists(),
        }[kind]

        def moment() -> bool:
            if not seen[0] and there():
                seen[0] = time.monotonic()
            return bool(seen[0]) and time.monotonic() >= seen[0] + later

        return moment


def inject(ids: Sequence[str], seed: int, folder: Path, done: Callable[[], None]) -> list[Violation]:
    """A kill for each id, several of them in one life of a run."""
    whole = reference(folder)

    def live(number: int) -> list[Violation]:
        mine = ids[number * _KILLS : (number + 1) * _KILLS]
        in_workers = draw(seed, f"{mine[0]} workers").random() < 0.5
        life = Life(folder, f"life-{mine[0]}", in_workers, whole)
        found = []
        for id in mine:
            found += [Violation("lost", id, f"killed: {wrong}") for wrong in life.kill(draw(seed, id))]
            done()
        found += [Violation("lost", mine[-1], f"killed {len(mine)} times: {wrong}") for wrong in life.end()]
        return found

    with ThreadPoolExecutor(_LIVES, "campaign-life") as pool:
        return [violation for found in pool.map(live, range(-(-len(ids) // _KILLS))) for violation in found]

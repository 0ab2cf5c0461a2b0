"""Runs in order, several at a time, each on a core of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cojax.host.processes import descendants, end
from cojax.storage.run_directory import RunDirectoryError, locked
from experiments.study.launch import THREADS
from experiments.study.tables import Job

ROOT = Path(__file__).parents[2]
_POLL = 0.5  # seconds
# A run that is asked to stop first ends its step and writes a checkpoint.
_GRACE = 120.0
# Sections of the configuration that decide the warm start, beside the seed.
_WARM = ("warm_start", "model", "environment")


class Queue:
    """Jobs in order, for several threads. Of those that share a warm start one goes ahead until it is there."""

    def __init__(self, jobs: Sequence[Job]):
        self._jobs = list(jobs)
        self._warm: set[tuple] = set()
        self._warming: set[tuple] = set()
        self._changed = threading.Condition()

    def take(self) -> Job | None:
        """The next job that can begin, waited for; None once none is left."""
        with self._changed:
            while self._jobs:
                for job in self._jobs:
                    key = _warm_start(job)
                    if key in self._warming:
                        continue
                    if key not in self._warm:
                        self._warming.add(key)
                    self._jobs.remove(job)
                    return job
                self._changed.wait(_POLL)
            return None

    def warmed(self, job: Job) -> None:
        """The warm start of this job is there for others."""
        with self._changed:
            self._warming.discard(_warm_start(job))
            self._warm.add(_warm_start(job))
            self._changed.notify_all()

    def ended(self, job: Job) -> None:
        """The job is over, perhaps before its warm start was there: then another one makes it."""
        with self._changed:
            self._warming.discard(_warm_start(job))
            self._changed.notify_all()

    def clear(self) -> None:
        """No further job begins."""
        with self._changed:
            self._jobs.clear()
            self._changed.notify_all()


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    cores: Sequence[int | None],
    deadline: float,
    stop: threading.Event,
    on_end: Callable[[Job, str, float], None],
) -> None:
    """Runs the jobs in `folder`/NAME, one on each of the cores (None: on any), until all are done or `stop` is set.

    `on_end(job, why, seconds)` is called on the thread of the run, one at a time; `why` it failed is empty for one
    that finished. A run that takes longer than `deadline` seconds is stopped; all can be gone on with.
    """
    queue, ending = Queue(jobs), threading.Lock()
    errors: list[BaseException] = []

    def work(core: int | None) -> None:
        try:
            while not stop.is_set() and (job := queue.take()) is not None:
                began = time.monotonic()
                try:
                    why = run(job, folder / job.name, core, deadline, stop, lambda: queue.warmed(job))
                finally:
                    queue.ended(job)
                with ending:
                    on_end(job, why, time.monotonic() - began)
        except BaseException as error:
            errors.append(error)
            stop.set()
        finally:
            if stop.is_set():
                queue.clear()

    threads = [threading.Thread(target=work, args=(core,), name=f"core {core}") for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # signals reach the main thread between two waits
            thread.join(_POLL)
    if errors:
        raise errors[0]


def command(job: Job, place: Path) -> list[str]:
    """The main command of a job, after the interpreter."""
    settings = [f"--config.{name}={value}" for name, value in job.settings.items()]
    return ["-m", "experiments.run", "--config=experiments/desk.py", *settings, f"--config.workdir={place.absolute()}"]


def run(
    job: Job, place: Path, core: int | None, deadline: float, stop: threading.Event, warmed: Callable[[], None]
) -> str:
    """Runs one job to its end; why it has not finished, or an empty string. What it prints goes to PLACE.log."""
    log = place.with_name(f"{place.name}.log")
    free(place, stop)
    where = "-" if core is None else str(core)
    launch = [sys.executable, "-m", "experiments.study.launch", where, str(os.getpid()), *command(job, place)]
    environment = {**os.environ, **THREADS, "PYTHONUNBUFFERED": "1"}
    with open(log, "ab") as out:
        # A session of its own: an interrupt of the terminal reaches the study alone, which passes it on once.
        process = subprocess.Popen(
            launch, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        began, asked = time.monotonic(), 0.0
        while process.poll() is None:
            time.sleep(_POLL)
            if (place / "model.json").exists():
                warmed()
            now = time.monotonic()
            if not asked and (stop.is_set() or now - began > deadline):
                process.terminate()
                asked = now
            elif asked and now - asked > _GRACE:
                end(lambda: descendants(process.pid))
                process.kill()
    if process.returncode == 0:
        return ""
    if stop.is_set():
        return "stopped"
    if asked:
        return f"took longer than {deadline:g} s; run the same command again to go on with it, or raise --deadline"
    return f"exit status {process.returncode}: {_last_words(log)} (see {log})"


def free(place: Path, stop: threading.Event) -> None:
    """Waits while another process holds the run directory: a run that a killed study left ends its step first."""
    until = time.monotonic() + _GRACE
    while not stop.is_set():
        try:
            locked(place, "--runs").close()
            return
        except RunDirectoryError:
            if time.monotonic() > until:
                return  # the run itself says what is wrong
            time.sleep(_POLL)


def available_cores(count: int) -> list[int | None]:
    """`count` of the cores that this process may use, None for each where a process cannot be pinned.

    Raises ValueError where there are fewer.
    """
    if count < 1:
        raise ValueError(f"--jobs={count}; expected at least 1 run at a time")
    if sys.platform != "linux":
        return [None] * count
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise ValueError(f"--jobs={count}, but this process may use {len(cores)} cores; give at most as many")
    return list(cores[:count])


def _warm_start(job: Job) -> tuple:
    deciding = [(name, repr(value)) for name, value in job.settings.items() if name.partition(".")[0] in _WARM]
    return (job.seed, *sorted(deciding))


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ")]
    return (told or lines or ["it said nothing"])[-1][:400]

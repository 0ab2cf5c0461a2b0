"""Makes runs in order, several at a time, each on its own core."""

import concurrent.futures
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cojax.durable import own_file
from cojax.host.processes import descendants, end
from cojax.storage.files import RunDirectoryError, last_lines, lock_folder
from .comparison import begun_otherwise
from .launch import OTHERS, VARIABLES
from .tables import ROOT, StudyRun

_POLL = 0.5  # seconds
# Seconds that a run may take to stop; it first completes its step and writes a checkpoint.
_GRACE = 120.0


def run_all(
    jobs: Sequence[StudyRun],
    folder: Path,
    cores: Sequence[int | None],
    deadline: float,
    stop: threading.Event,
    on_end: Callable[[StudyRun, str, float], None],
) -> None:
    """Makes the runs in `folder`/NAME, one at a time on each core (None: any), until all have ended or `stop` is set.

    `on_end(job, why, seconds)` is called on the thread of the run, one call at a time; `why` says why the run failed,
    and is empty if it finished. A run that takes longer than `deadline` seconds is stopped. Stopped runs can resume.
    """
    pending, warm = list(jobs), dict[tuple[Any, ...], bool]()  # of started runs: whether their warm start exists
    queue, ending = threading.Lock(), threading.Lock()

    def take() -> StudyRun | None:
        """Waits for the next run that can start; those that share a warm start wait until one of them has made it."""
        while not stop.is_set():
            with queue:
                for job in pending:
                    if warm.get(job.warm_start, True):
                        warm.setdefault(job.warm_start, False)
                        pending.remove(job)
                        return job
                if not pending:
                    return None
            stop.wait(_POLL)
        return None

    def work(core: int | None) -> None:
        try:
            while (job := take()) is not None:
                began = time.monotonic()
                mark_warm = functools.partial(warm.__setitem__, job.warm_start, True)
                try:
                    why = run(job, folder / job.name, core, deadline, stop, mark_warm)
                finally:
                    with queue:
                        if not warm[job.warm_start]:  # another run may make it
                            del warm[job.warm_start]
                with ending:
                    on_end(job, why, time.monotonic() - began)
        except BaseException:
            stop.set()
            raise

    with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
        futures = [pool.submit(work, core) for core in cores]
        while concurrent.futures.wait(futures, _POLL).not_done:
            pass  # signals reach the main thread between two waits
    for future in futures:
        future.result()


def command(job: StudyRun, workdir: Path) -> list[str]:
    """The interpreter's arguments for this run."""
    settings = [f"--config.{name}={value}" for name, value in job.settings.items()]
    settings.append(f"--config.workdir={workdir.absolute()}")
    return ["-m", "experiments.run", "--config=experiments/desk.py", *settings]


def run(
    job: StudyRun, workdir: Path, core: int | None, deadline: float, stop: threading.Event, on_warm: Callable[[], None]
) -> str:
    """Makes one run. Returns why it has not finished, or an empty text. Its output goes to WORKDIR.log.

    `on_warm` is called repeatedly once the warm start exists.
    """
    log = workdir.with_name(f"{workdir.name}.log")
    wait_until_free(workdir, stop)  # if another process still holds it, the run says so
    where = "-" if core is None else str(core)
    launch = [sys.executable, "-m", f"{__package__}.launch", where, str(os.getpid()), *command(job, workdir)]
    if why := begun_otherwise(job, workdir):
        return why
    shell_variables = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, *OTHERS)}
    environment = {**shell_variables, **job.variables, "PYTHONUNBUFFERED": "1"}
    with open(log, "ab", opener=own_file) as out:
        # A new session: an interrupt from the terminal reaches only the study, which then stops each run once.
        process = subprocess.Popen(
            launch, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        began, terminated_at = time.monotonic(), 0.0
        while process.poll() is None:
            time.sleep(_POLL)
            if (workdir / "model.json").exists():
                on_warm()
            now = time.monotonic()
            if not terminated_at and (stop.is_set() or now - began > deadline):
                process.terminate()
                terminated_at = now
            elif terminated_at and now - terminated_at > _GRACE:
                end(lambda: descendants(process.pid))
                process.kill()
    if process.returncode == 0:
        return ""
    if stop.is_set():
        return "stopped"
    if terminated_at:
        return f"took longer than {deadline:g} s; run the same command again to resume it, or raise --deadline"
    return f"exit status {process.returncode}: {_last_words(log)}"


def wait_until_free(workdir: Path, stop: threading.Event) -> bool:
    """Waits while another process holds the run directory: a run of a killed study first completes its step.

    Returns whether it is free; it may not be after _GRACE seconds, or when `stop` is set.
    """
    until = time.monotonic() + _GRACE
    while not stop.is_set():
        try:
            lock_folder(workdir, "--runs").close()
            return True
        except RunDirectoryError:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL)
    return False


def available_cores(count: int) -> list[int | None]:
    """`count` of the cores that this process may use, or None for each if processes cannot be pinned.

    Raises ValueError if there are fewer.
    """
    if count < 1:
        raise ValueError(f"--jobs={count}; expected at least 1 run at a time")
    if sys.platform != "linux":
        return [None] * count
    cores = sorted(os.sched_getaffinity(0))
    if count > len(cores):
        raise ValueError(f"--jobs={count}, but this process may use {len(cores)} cores; give at most as many")
    return list(cores[:count])


def _last_words(log: Path) -> str:
    try:
        lines = [line.strip() for line in last_lines(log) if line.strip()]
    except OSError:
        return f"its log {log} is gone; was the folder --runs deleted while it ran?"
    errors = [line for line in lines if line.startswith("error: ")]
    return f"{(errors or lines or ['no output'])[-1][:400]} (see {log})"

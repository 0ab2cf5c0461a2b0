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

from cojax.durable import open_own_file
from cojax.host.processes import end_pids, list_descendants
from cojax.storage.files import RunDirectoryError, lock_folder, read_last_lines
from .comparison import explain_other_variables
from .launch import OTHER_VARIABLES, VARIABLES
from .tables import ROOT, StudyRun

_POLL_PERIOD_S = 0.5  # seconds
# Seconds that a run may take to stop; it first completes its step and writes a checkpoint.
_STOP_GRACE_S = 120.0


def run_all(
    jobs: Sequence[StudyRun],
    runs_folder: Path,
    cores: Sequence[int | None],
    timeout_s: float,
    stop: threading.Event,
    on_end: Callable[[StudyRun, str, float], None],
) -> None:
    """Makes the runs in `runs_folder`/NAME, one at a time on each core (None: any), until all have ended or
    `stop` is set.

    `on_end(job, failure, seconds)` is called on the thread of the run, one call at a time; `failure` says why the run
    failed, "" if it finished. A run that takes longer than `timeout_s` seconds is stopped. Stopped runs can resume.
    """
    pending, warm_starts = list(jobs), dict[tuple[Any, ...], bool]()  # of started runs: whether their warm start exists
    queue_lock, ending_lock = threading.Lock(), threading.Lock()

    def take_job() -> StudyRun | None:
        """Waits for the next run that can start; those that share a warm start wait until one of them has made it."""
        while not stop.is_set():
            with queue_lock:
                for job in pending:
                    if warm_starts.get(job.warm_start, True):
                        warm_starts.setdefault(job.warm_start, False)
                        pending.remove(job)
                        return job
                if not pending:
                    return None
            stop.wait(_POLL_PERIOD_S)
        return None

    def run_jobs(core: int | None) -> None:
        try:
            while (job := take_job()) is not None:
                start_time = time.monotonic()
                mark_warm_start = functools.partial(warm_starts.__setitem__, job.warm_start, True)
                try:
                    failure = run_job(job, runs_folder / job.name, core, timeout_s, stop, mark_warm_start)
                finally:
                    with queue_lock:
                        if not warm_starts[job.warm_start]:  # another run may make it
                            del warm_starts[job.warm_start]
                with ending_lock:
                    on_end(job, failure, time.monotonic() - start_time)
        except BaseException:
            stop.set()
            raise

    with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
        futures = [pool.submit(run_jobs, core) for core in cores]
        while concurrent.futures.wait(futures, _POLL_PERIOD_S).not_done:
            pass  # signals reach the main thread between two waits
    for future in futures:
        future.result()


def make_arguments(job: StudyRun, workdir: Path) -> list[str]:
    """The interpreter's arguments for this run."""
    setting_flags = [f"--config.{setting}={value}" for setting, value in job.settings.items()]
    setting_flags.append(f"--config.workdir={workdir.absolute()}")
    return ["-m", "experiments.run", "--config=experiments/desk.py", *setting_flags]


def run_job(
    job: StudyRun, workdir: Path, core: int | None, timeout_s: float, stop: threading.Event, on_warm: Callable[[], None]
) -> str:
    """Makes one run. Returns why it has not finished, or an empty text. Its output goes to WORKDIR.log.

    `on_warm` is called repeatedly once the warm start exists.
    """
    log_path = workdir.with_name(f"{workdir.name}.log")
    wait_until_free(workdir, stop)  # if another process still holds it, the run says so
    core_text = "-" if core is None else str(core)
    launch = [sys.executable, "-m", f"{__package__}.launch", core_text, str(os.getpid()), *make_arguments(job, workdir)]
    if failure := explain_other_variables(job, workdir):
        return failure
    shell_variables = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, *OTHER_VARIABLES)}
    variables = {**shell_variables, **job.variables, "PYTHONUNBUFFERED": "1"}
    with open(log_path, "ab", opener=open_own_file) as log:
        # A new session: an interrupt from the terminal reaches only the study, which then stops each run once.
        run_process = subprocess.Popen(
            launch, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        start_time, terminated_at = time.monotonic(), 0.0
        while run_process.poll() is None:
            time.sleep(_POLL_PERIOD_S)
            if (workdir / "model.json").exists():
                on_warm()
            current_time = time.monotonic()
            if not terminated_at and (stop.is_set() or current_time - start_time > timeout_s):
                run_process.terminate()
                terminated_at = current_time
            elif terminated_at and current_time - terminated_at > _STOP_GRACE_S:
                end_pids(lambda: list_descendants(run_process.pid))
                run_process.kill()
    if run_process.returncode == 0:
        return ""
    if stop.is_set():
        return "stopped"
    if terminated_at:
        return f"took longer than {timeout_s:g} s; run the same command again to resume it, or raise --deadline"
    return f"exit status {run_process.returncode}: {_read_last_words(log_path)}"


def wait_until_free(workdir: Path, stop: threading.Event) -> bool:
    """Waits while another process holds the run directory: a run of a killed study first completes its step.

    Returns whether it is free; it may not be after _STOP_GRACE_S, or when `stop` is set.
    """
    deadline = time.monotonic() + _STOP_GRACE_S
    while not stop.is_set():
        try:
            lock_folder(workdir, "--runs").close()
            return True
        except RunDirectoryError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_PERIOD_S)
    return False


def list_cores(max_cores: int) -> list[int | None]:
    """`max_cores` of the cores that this process may use, or None for each if processes cannot be pinned.

    Raises ValueError if there are fewer.
    """
    if max_cores < 1:
        raise ValueError(f"--jobs={max_cores}; expected at least 1 run at a time")
    if sys.platform != "linux":
        return [None] * max_cores
    cores = sorted(os.sched_getaffinity(0))
    if max_cores > len(cores):
        raise ValueError(f"--jobs={max_cores}, but this process may use {len(cores)} cores; give at most as many")
    return list(cores[:max_cores])


def _read_last_words(log_path: Path) -> str:
    try:
        log_lines = [line.strip() for line in read_last_lines(log_path) if line.strip()]
    except OSError:
        return f"its log {log_path} is gone; was the folder --runs deleted while it ran?"
    error_lines = [line for line in log_lines if line.startswith("error: ")]
    return f"{(error_lines or log_lines or ['no output'])[-1][:400]} (see {log_path})"

"""Which run of the study starts when, on which core, and how it ends."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from patience import patience

from cojax.storage.files import RunDirectoryError, lock_folder
from experiments.study import schedule
from experiments.study.tables import COMMON, StudyRun, jobs

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _it_looks_often(monkeypatch):
    monkeypatch.setattr(schedule, "_POLL_PERIOD_S", 0.01)


def test_of_runs_that_share_a_warm_start_one_goes_ahead(monkeypatch, tmp_path):
    begun, goes = [], {name: threading.Event() for name in ("static-101", "static-102", "own-101")}
    all_three = threading.Barrier(3, timeout=patience(30))

    def run(job, workdir, core, deadline, stop, warmed):
        begun.append(job.name)
        if job.name in goes:
            all_three.wait()
            if job.name == "static-102":
                warmed()
            assert goes[job.name].wait(patience(30))
        return ""

    monkeypatch.setattr(schedule, "run_job", run)
    made = [*jobs(["static", "feedback"], [101, 102]), StudyRun("own", 101, {"seed": 101, "warm_start.steps": 7})]
    ended = []

    def on_end(job, why, seconds):
        ended.append(job.name)
        if job.name == "feedback-102":  # its warm start was there
            assert "feedback-101" not in begun
            goes["static-101"].set()  # it ends before its warm start is there
        if job.name == "feedback-101":
            goes["static-102"].set()
            goes["own-101"].set()

    schedule.run_all(made, tmp_path, [None] * 4, 60.0, threading.Event(), on_end)
    assert sorted(begun[:3]) == ["own-101", "static-101", "static-102"]
    assert begun[3:] == ["feedback-102", "feedback-101"]
    assert sorted(ended) == sorted(job.name for job in made)


def test_a_study_that_is_stopped_begins_no_further_run(monkeypatch, tmp_path):
    begun, stop = [], threading.Event()

    def run(job, *given):
        begun.append(job.name)
        stop.set()
        return "stopped"

    monkeypatch.setattr(schedule, "run_job", run)
    schedule.run_all(jobs(["static", "feedback"], [101]), tmp_path, [None] * 2, 60.0, stop, lambda *given: None)
    assert begun == ["static-101"]


def launch(core, parent, code):
    return [sys.executable, "-m", "experiments.study.launch", core, str(parent), "-c", code]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins processes and tells of a parent's death")
def test_a_run_is_pinned_and_ends_with_the_study(tmp_path):
    core = max(os.sched_getaffinity(0))
    said = subprocess.run(
        launch(str(core), os.getpid(), "import os; print(os.sched_getaffinity(0))"),
        cwd=ROOT, capture_output=True, text=True, timeout=patience(60), check=True,
    )  # fmt: skip
    assert said.stdout.strip() == str({core})
    assert subprocess.run(launch("-", 1, "print('ran')"), cwd=ROOT, timeout=patience(60), check=False).returncode == 143

    child = (
        "import signal, sys; from pathlib import Path;"
        "signal.signal(15, lambda *_: (Path('stopped').touch(), sys.exit())); Path('ready').touch(); signal.pause()"
    )
    parent = (
        "import os, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-m', 'experiments.study.launch', '-', str(os.getpid()), '-c', {child!r}],"
        f"env={{**os.environ, 'PYTHONPATH': {str(ROOT)!r}}}).wait()"
    )
    study = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path)
    try:
        wait_for(tmp_path / "ready")
    finally:
        study.kill()
        study.wait()
    wait_for(tmp_path / "stopped")


def wait_for(path: Path) -> None:
    until = time.monotonic() + patience(30)
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.02)


def test_a_run_that_fails_says_why_and_the_others_go_on(tmp_path, monkeypatch):
    ended = []
    # The first one's directory is still held by a run that a killed study left, and is waited for.
    held, refused = lock_folder(tmp_path / "wrong-1", "--runs"), []

    def locking(folder, flag):
        try:
            return lock_folder(folder, flag)
        except RunDirectoryError:
            refused.append(folder)
            held.close()
            raise

    monkeypatch.setattr(schedule, lock_folder.__name__, locking)
    schedule.run_all(
        [StudyRun("wrong", 1, {"batch_size": 0}), StudyRun("worse", 1, {"nosuch": 0})], tmp_path, [None], 60.0,
        threading.Event(), lambda job, why, seconds: ended.append((job.name, why)),
    )  # fmt: skip
    assert [name for name, _ in ended] == ["wrong-1", "worse-1"]
    assert refused == [tmp_path / "wrong-1"]
    assert ended[0][1].startswith("exit status 1: error: batch_size is 0; expected a whole number at least 1 (see ")
    assert "nosuch is not a setting" in (tmp_path / "worse-1.log").read_text()


def test_a_run_that_takes_too_long_is_stopped(tmp_path):
    began = time.monotonic()
    why = schedule.run_job(
        StudyRun("slow", 1, dict(COMMON)), tmp_path / "slow", None, 0.25, threading.Event(), lambda: None
    )
    assert why.startswith("took longer than 0.25 s; run the same command again")
    assert time.monotonic() - began < patience(30)


def test_a_run_has_its_own_variables_and_not_those_of_the_shell(tmp_path, monkeypatch):
    class Launched(Exception):
        pass

    def launch(*_, env, **__):
        raise Launched(env)

    monkeypatch.setattr(schedule.subprocess, "Popen", launch)
    monkeypatch.setenv("TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL", "1")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    job = StudyRun("wrong", 1, {}, {"NPROC": "1"})
    with pytest.raises(Launched) as launched:
        schedule.run_job(job, tmp_path / "run", None, 1.0, threading.Event(), lambda: None)
    (environment,) = launched.value.args
    assert environment["NPROC"] == "1"
    assert environment["HOME"] == os.environ["HOME"]
    assert not {"TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL", "ONEDNN_MAX_CPU_ISA"} & set(environment)


def test_cores_are_those_that_the_process_may_use():
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    assert len(set(schedule.list_cores(count))) == count
    if sys.platform == "linux":
        with pytest.raises(ValueError, match=f"--jobs={count + 1}, but this process may use {count} cores"):
            schedule.list_cores(count + 1)


def test_a_folder_that_stays_in_use_is_not_called_free(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "_STOP_GRACE_S", 0.0)
    with lock_folder(tmp_path, "--runs"):
        assert not schedule.wait_until_free(tmp_path, threading.Event())
    assert schedule.wait_until_free(tmp_path, threading.Event())


def test_a_run_whose_log_was_deleted_says_so(tmp_path):
    said = schedule._read_last_words(tmp_path / "static-101.log")
    assert said == f"its log {tmp_path / 'static-101.log'} is gone; was the folder --runs deleted while it ran?"

"""Waits follow the machine, and a test that leaves a thread behind fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import patience
import pytest

ROOT = Path(__file__).parents[1]
_LEAKING = """
import threading
from pathlib import Path
import patience
from conftest import _no_thread_outlives_its_test

patience._GRACE_S = 0.05
patience._OWN_FOLDERS = (str(Path(__file__).parent),)
over = threading.Event()

def wait():
    over.wait(60)

def fails():
    over.wait(60)
    raise ValueError("late")

def start(target, daemon):
    thread = threading.Thread(target=target, daemon=daemon)
    thread.start()
    return thread

def test_leaves_one_that_keeps_the_process():
    start(over.wait, False)

def test_leaves_its_own():
    start(wait, True)

def test_leaves_one_of_a_library():
    start(over.wait, True)

def test_ends_its_own():
    mine = threading.Event()
    thread = start(lambda: mine.wait(60), False)
    mine.set()
    thread.join()

def test_has_one_that_fails():
    thread = start(fails, True)
    over.set()
    thread.join()
"""


def test_a_test_that_leaves_a_thread_fails_and_so_does_one_whose_thread_fails(tmp_path: Path) -> None:
    (tmp_path / "test_leaking.py").write_text(_LEAKING)
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-rfE", "test_leaking.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=patience.patience(60),
        check=False,
    )
    found = {line.partition(" - ")[0] for line in done.stdout.splitlines() if line.startswith(("ERROR ", "FAILED "))}
    assert found == {
        "ERROR test_leaking.py::test_leaves_one_that_keeps_the_process",
        "ERROR test_leaking.py::test_leaves_its_own",
        "FAILED test_leaking.py::test_has_one_that_fails",
    }, done.stdout
    assert "still running: [<Thread(Thread-" in done.stdout


@pytest.mark.parametrize(("reference", "expected"), [(1e9, 1.0), (1e-9, 8.0)])
def test_a_wait_is_never_shorter_than_on_an_idle_machine_and_has_a_bound(
    reference: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "_REFERENCE_S", reference)
    monkeypatch.setattr(patience, "factor", patience.factor.__wrapped__)
    assert patience.patience(3.0) == 3.0 * expected

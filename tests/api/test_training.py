"""`cojax.train` and `cojax.steps`: as a user's program calls them, against the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_project import make_project
from patience import patience

import cojax

ROOT = Path(__file__).parents[2]
SMALL = "lab/small.py"


@pytest.fixture(autouse=True, scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Iterator[Path]:
    """The current folder of the tests."""
    folder = make_project(tmp_path_factory.mktemp("projects") / "a project")
    (folder / "types.py").write_text("raise RuntimeError('it came before the module of the standard library')\n")
    with pytest.MonkeyPatch.context() as changed:
        changed.chdir(folder)
        changed.setenv("COJAX_CACHE", str(shared_cache))
        changed.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # two steps take less than compiling them
        yield folder


@pytest.fixture(scope="module")
def trained(project: Path) -> Path:
    """A run of two steps that a thread has trained, with the steps that its callback saw."""
    seen: list[int] = []

    def work() -> None:
        run = cojax.train(
            SMALL,
            workdir="runs/by a thread",
            callbacks=lambda record: seen.append(record["step"]),
            learner={"loss": "lab.losses:careful", "loss_settings": {"caution": 0.25}},
        )
        seen.append(run.summary()["steps"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(patience(300))
    assert seen == [1, 2, 2]
    return project / "runs" / "by a thread"


def program(text: str, **variables: str) -> subprocess.Popen[str]:
    """A program of the user, in the current folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", text], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def until(ended: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return ended.communicate(timeout=patience(200))
    finally:
        ended.kill()


def assert_ends(pid: int, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + patience(seconds)
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


def steps_of(workdir: Path | str) -> list[int]:
    return [record["step"] for record in cojax.open_run(workdir).metrics()]


def test_a_thread_trains_by_the_users_own_code(trained: Path) -> None:
    code = json.loads((trained / "config.json").read_text())
    assert code["config"]["seed"] == 7
    assert code["code"]["learner.loss"]["path"] == "lab.losses:careful"
    assert code["code"]["learner.loss"]["settings"] == {"caution": 0.25}
    assert steps_of(trained) == [1, 2]


def test_a_run_that_is_there_goes_on_and_a_loop_that_is_left_stops_it_with_a_checkpoint(trained: Path) -> None:
    with cojax.steps(workdir=trained, steps=50) as training:
        first = next(training)
        assert first["step"] == 3
        assert training.workdir == trained
        pid = training._child.process.pid
    assert not Path(f"/proc/{pid}").exists()
    last = steps_of(trained)[-1]
    assert 3 <= last < 50
    assert max(int(path.name) for path in (trained / "checkpoints").iterdir() if path.name.isdigit()) == last


@pytest.mark.real
def test_what_a_callback_raises_stops_the_run_and_is_raised(trained: Path) -> None:
    begun = steps_of(trained)[-1]

    def fail(record: dict) -> None:
        raise LookupError(f"at step {record['step']}")

    with pytest.raises(LookupError, match=f"at step {begun + 1}"):
        cojax.train(workdir=trained, steps=begun + 50, callbacks=[fail])
    assert steps_of(trained)[-1] < begun + 50


@pytest.mark.real
def test_a_command_that_is_killed_is_a_failure_that_names_the_signal(trained: Path) -> None:
    begun = steps_of(trained)[-1]
    training = cojax.steps(workdir=trained, steps=begun + 50)
    next(training)
    os.kill(training._child.process.pid, signal.SIGKILL)
    with pytest.raises(cojax.RunFailed, match="ended by SIGKILL; call again to go on from its checkpoint") as failed:
        list(training)
    assert failed.value.status == -signal.SIGKILL


@pytest.mark.real
def test_a_run_ends_with_the_program_that_started_it_however_that_ends(trained: Path) -> None:
    begun = steps_of(trained)[-1]
    text = (
        f"import cojax\nfor record in cojax.steps(workdir={str(trained)!r}, steps={begun + 50}) as training:\n"
        "    print(training._child.process.pid, flush=True)"
    ).replace("for record in cojax.steps", "with cojax.steps")
    text += "\n    for record in training: print(record['step'], flush=True)"
    parent = program(text)
    assert parent.stdout is not None
    pid, step = int(parent.stdout.readline()), int(parent.stdout.readline())
    parent.kill()
    until(parent)
    assert_ends(pid)
    assert step <= steps_of(trained)[-1] < begun + 50


@pytest.mark.real
def test_an_interrupt_stops_the_run_in_order(trained: Path) -> None:
    begun = steps_of(trained)[-1]
    text = (
        f"import cojax\ncojax.train(workdir={str(trained)!r}, steps={begun + 50}, "
        "callbacks=lambda record: print(record['step'], flush=True))"
    )
    parent = program(text)
    assert parent.stdout is not None
    step = int(parent.stdout.readline())
    parent.send_signal(signal.SIGINT)
    _, error = until(parent)
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert step <= steps_of(trained)[-1] < begun + 50
    assert cojax.train(workdir=trained, steps=steps_of(trained)[-1] + 1).summary()["steps"] == steps_of(trained)[-1]


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        pytest.param("nowhere.py", {}, "--config=nowhere.py: there is no such file", marks=pytest.mark.real),
        ("wrong.py", {}, "wrong.py:4: steps is 'many'; expected a whole number"),
        (SMALL, {"learner": {"los": "x"}}, "learner.los is not a setting; did you mean learner.loss"),
        pytest.param(SMALL, {"learner.loss": "cojax.settings.base:mine"}, "defines no 'mine'", marks=pytest.mark.real),
        ({"steps": "many"}, {}, "the configuration that was given: steps is 'many'; expected a whole number"),
    ],
)
def test_an_error_is_the_one_line_of_the_command(project: Path, config, settings: dict, message: str) -> None:
    (project / "wrong.py").write_text(
        "from experiments import desk\ndef get_config():\n    config = desk.get_config()\n    config.steps = 'many'\n"
    )
    with pytest.raises(cojax.RunFailed) as failed:
        cojax.train(config, workdir="runs/none", **settings)
    assert str(failed.value).startswith(message) or message in str(failed.value)
    assert "\n" not in str(failed.value)
    assert failed.value.status == 1


def test_what_is_no_configuration_is_refused_before_anything_starts() -> None:
    with pytest.raises(TypeError, match="give config, or the workdir of a run"):
        cojax.train()
    with pytest.raises(TypeError, match="config holds an invalid value"):
        cojax.train({"steps": object()})
    with pytest.raises(TypeError, match="config is of type int; expected a file, a ConfigDict or a dict"):
        cojax.train(3)  # type: ignore[arg-type]


@pytest.mark.nightly
def test_other_settings_than_those_of_the_run_are_refused_in_one_line(trained: Path) -> None:
    with pytest.raises(cojax.RunFailed, match="holds a run with other settings: group_size") as failed:
        cojax.train(workdir=trained, steps=90, group_size=3)
    assert "\n" not in str(failed.value)


def test_where_a_locale_knows_no_letters_the_same_is_said(project: Path) -> None:
    bare = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = program(f"import cojax; cojax.train('{project}/größe.py')", PYTHONIOENCODING="ascii:backslashreplace")
    assert "there is no such file" in until(done)[1]
    for arguments in (["--help"], ["report", "größe"]):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cojax", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), **bare}, capture_output=True,
            timeout=patience(100), check=False,
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert b"run directory" in done.stderr


def test_importing_cojax_is_light() -> None:
    names = ("jax", "numpy", "rich", "transformers", "experiments", "environments")
    text = f"import sys, cojax; cojax.train, cojax.open_run; print([name for name in {names} if name in sys.modules])"
    done = program(text)
    assert until(done)[0] == "[]\n"


def test_the_stable_names_are_there_and_no_other() -> None:
    stub: dict[str, object] = {}
    exec((ROOT / "cojax" / "__init__.pyi").read_text(), stub)
    assert stub["__all__"] == cojax.__all__
    assert cojax.__all__ == sorted(cojax._MODULE_BY_NAME)
    assert all(callable(getattr(cojax, name)) for name in cojax.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        cojax.trian  # noqa: B018

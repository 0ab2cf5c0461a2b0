"""Makes the helpers beside the tests importable from every folder, and keeps tests from changing one another."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from commands import Commands
from package_versions import quick_flags, versions
from patience import outliving


def pytest_configure(config: pytest.Config) -> None:
    """`make test` mostly waits for small programs to be compiled; tests marked real go by what XLA itself chooses.
    Its servers are on this machine and without TLS: no client reads the certificates of the world, for 20 ms each.

    In the environment before JAX looks there, so that commands of the tests, and workers of xdist, have it too.
    """
    if hasattr(config, "workerinput"):
        return
    # In the background of a script SIGINT is ignored, and would be by every command of the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    quick_options = os.environ["QUICK_XLA_FLAGS"] = quick_flags(config)
    own_options = os.environ.get("XLA_FLAGS", "").strip()
    if "not real" not in config.getoption("markexpr"):
        return
    if not own_options or own_options.startswith("--"):  # else they are in a file
        os.environ["XLA_FLAGS"] = f"{own_options} {quick_options}".strip()
    os.environ |= {"SSL_CERT_FILE": "", "SSL_CERT_DIR": os.devnull}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"tested with {versions()}")


# The longest files of `make test`. A worker gets one file at a time: these go first, so that all workers end together.
_LONGEST_FILES = (
    "test_run.py", "test_types.py", "test_rehearsal.py", "test_update.py", "test_bench.py", "test_stops.py",
    "test_run_settings.py", "test_learner_invariance.py", "test_learner.py", "test_campaign.py", "test_logprobs.py",
    "test_sglang_fleet.py", "test_local.py", "test_precision.py", "test_fitting.py", "test_sglang_process.py",
    "test_moe.py", "test_training.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: (
            _LONGEST_FILES.index(item.path.name) if item.path.name in _LONGEST_FILES else len(_LONGEST_FILES)
        )
    )


def pytest_collection_finish() -> None:
    """What all tests import stays until the end: no later collection has to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Where commands are run that need not import everything anew."""
    with Commands() as forking_commands:
        yield forking_commands


@pytest.fixture(autouse=True)
def _the_process_stays_as_it_was() -> Iterator[None]:
    """A command that is called in this process takes back what it set for the whole of it."""
    settings_before = _settings()
    yield
    assert _settings() == settings_before


@pytest.fixture(autouse=True)
def _no_thread_outlives_its_test() -> Iterator[None]:
    """One that did would fail, or hold its ports and files, in the middle of another test."""
    threads_before = set(threading.enumerate())
    yield
    assert not (running_threads := outliving(threads_before)), (
        f"still running: {running_threads}; end them, and join them, in the test"
    )


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of all commands of the tests: what is equal warm-starts and compiles once, in whichever worker."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "cache"


@pytest.fixture(autouse=True, scope="module")
def _programs_are_compiled_fast(request: pytest.FixtureRequest, shared_cache: Path) -> Iterator[None]:
    """Most of what the tests of arrays take is compiling small programs: they are optimised less, and found
    again on disk where another file compiles the same."""
    folder = Path(__file__).parent
    path_parts = request.path.relative_to(folder).parts if request.path.is_relative_to(folder) else ()
    compiling = {"learner", "policy", "rollout", "experiments", "test_compose.py", "test_load.py", "test_warm_start.py"}
    if not compiling & {*path_parts}:
        yield
        return
    import jax

    settings = {
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(shared_cache / "arrays"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    old_settings = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in old_settings.items():
        jax.config.update(name, value)


@pytest.fixture(autouse=True, scope="module")
def _memory_is_given_back() -> Iterator[None]:
    """Compiled programs and freed arrays of one file do not stay with the worker that runs the next."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


_GET_CHILD_SUBREAPER = 37


def _settings() -> dict[str, object]:
    adopts_orphans = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts_orphans), 0, 0, 0)
    return {
        "adopts orphans": adopts_orphans.value,
        "SIGTERM": signal.getsignal(signal.SIGTERM),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "warnings": [logging.getLogger(name).level <= logging.WARNING for name in ("cojax", "environments")],
    }

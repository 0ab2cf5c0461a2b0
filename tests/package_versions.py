"""What the tests need of the installed packages, asked before the first test."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from typing import NoReturn

import pytest
from packaging.requirements import Requirement

# XLA's older code generator for CPUs takes half the time, where jaxlib still has it. Results differ in their last bits
# from those of the newer one, so that what is compared bit for bit must be compiled by one of them alone.
_QUICK_OPTION = "xla_cpu_use_fusion_emitters"
_QUICK_FLAG = f"--{_QUICK_OPTION}=false"
# XLA ends a process whose XLA_FLAGS it does not know; an unknown option of one program is an error like others.
_PROBE = f"""
try:
    import jax, flax.nnx, optax, orbax.checkpoint, transformers
    program = jax.jit(lambda x: x + 1).lower(0)
    program.compile()
except BaseException as error:
    print("failed", type(error).__name__, *str(error).splitlines()[:1], sep=": ")
    raise SystemExit(1)
try:
    program.compile(compiler_options={{{_QUICK_OPTION!r}: False}})
    print({_QUICK_FLAG!r})
except jax.errors.JaxRuntimeError:
    print()
"""
_PROBE_TIMEOUT_S = 45
_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS")
_CACHE_KEY = "cojax/packages"  # in pytest's cache


def quick_flags(config: pytest.Config) -> str:
    """The flags of XLA that the installed jaxlib knows, and by which it compiles small programs faster.

    Ends pytest with one line where a package is not of a version that setup.py allows, cannot be imported, or does not
    know XLA_FLAGS. For a part of the tests the last answer for the same versions is taken from pytest's cache.
    """
    versions_and_variables = [sys.version, *(os.environ.get(name, "") for name in _VARIABLES), *_requirements()]
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return _ask_new_process()
    assert config.cache is not None
    stored_answer = config.cache.get(_CACHE_KEY, None)
    runs_all_tests = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if not runs_all_tests:
        for flags in ("", _QUICK_FLAG):
            if stored_answer == {"question": versions_and_variables, "flags": flags}:
                return flags
    flags = _ask_new_process()
    config.cache.set(_CACHE_KEY, {"question": versions_and_variables, "flags": flags})
    return flags


def versions() -> str:
    """The versions that decide most, in one line."""
    package_names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
    version_texts = [f"{name} {importlib.metadata.version(name)}" for name in package_names]
    return ", ".join([f"Python {sys.version.split()[0]}", *version_texts])


def _requirements() -> list[str]:
    """NAME==VERSION of each package that the tests need."""
    pins = []
    try:
        lines = importlib.metadata.requires("cojax") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []  # a checkout on the import path, without an installation
    for requirement in map(Requirement, ["jax", "jaxlib", *lines]):
        if requirement.marker is None or requirement.marker.evaluate({"extra": "test"}):
            try:
                version = importlib.metadata.version(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                _end_pytest(f"{requirement.name} is not installed; install what the tests need: make .venv/.test")
            if not requirement.specifier.contains(version, prereleases=True):
                _end_pytest(
                    f"{requirement.name} {version} is installed; expected {requirement.name}{requirement.specifier}: "
                    "make .venv/.test"
                )
            pins.append(f"{requirement.name}=={version}")
    return pins


def _ask_new_process() -> str:
    """What a new process says of the installed packages."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        _end_pytest(
            "the installed packages are of no use: importing them and compiling a program took more than "
            f"{_PROBE_TIMEOUT_S} s"
        )
    if not process.returncode:
        return process.stdout.splitlines()[-1]
    # XLA's last words begin as glog's do: F1127 21:41:03.942535 2569 file.cc:234] reason
    fatal_reasons = [
        line.partition("] ")[2] for line in process.stderr.splitlines() if line.startswith("F") and "] " in line
    ]
    failures = [line.partition(": ")[2] for line in process.stdout.splitlines() if line.startswith("failed: ")]
    exit_status = process.returncode
    status_text = (
        f"the process ended by {signal.Signals(-exit_status).name}" if exit_status < 0 else f"exit status {exit_status}"
    )
    variables = "".join(f"; {name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name))
    _end_pytest(
        f"the installed packages cannot compile a program: {[*fatal_reasons, *failures, status_text][0]}{variables}"
    )


def _end_pytest(reason: str) -> NoReturn:
    pytest.exit(reason, returncode=2)

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
_QUICK = "xla_cpu_use_fusion_emitters"
_QUICK_FLAG = f"--{_QUICK}=false"
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
    program.compile(compiler_options={{{_QUICK!r}: False}})
    print({_QUICK_FLAG!r})
except jax.errors.JaxRuntimeError:
    print()
"""
_SECONDS = 45
_VARIABLES = ("XLA_FLAGS", "JAX_PLATFORMS")
_STORED = "cojax/packages"  # in pytest's cache


def quick_flags(config: pytest.Config) -> str:
    """The flags of XLA that the installed jaxlib knows, and by which it compiles small programs faster.

    Ends pytest with one line where a package is not of a version that setup.py allows, cannot be imported, or does not
    know XLA_FLAGS. For a part of the tests the last answer for the same versions is taken from pytest's cache.
    """
    question = [sys.version, *(os.environ.get(name, "") for name in _VARIABLES), *_requirements()]
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return _answer()
    assert config.cache is not None
    stored = config.cache.get(_STORED, None)
    whole = config.args_source == pytest.Config.ArgsSource.TESTPATHS
    if not whole:
        for flags in ("", _QUICK_FLAG):
            if stored == {"question": question, "flags": flags}:
                return flags
    flags = _answer()
    config.cache.set(_STORED, {"question": question, "flags": flags})
    return flags


def versions() -> str:
    """The versions that decide most, in one line."""
    named = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
    found = [f"{name} {importlib.metadata.version(name)}" for name in named]
    return ", ".join([f"Python {sys.version.split()[0]}", *found])


def _requirements() -> list[str]:
    """NAME==VERSION of each package that the tests need."""
    found = []
    try:
        lines = importlib.metadata.requires("cojax") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []  # a checkout on the import path, without an installation
    for one in map(Requirement, ["jax", "jaxlib", *lines]):
        if one.marker is None or one.marker.evaluate({"extra": "test"}):
            try:
                version = importlib.metadata.version(one.name)
            except importlib.metadata.PackageNotFoundError:
                _end(f"{one.name} is not installed; install what the tests need: make .venv/.test")
            if not one.specifier.contains(version, prereleases=True):
                _end(f"{one.name} {version} is installed; expected {one.name}{one.specifier}: make .venv/.test")
            found.append(f"{one.name}=={version}")
    return found


def _answer() -> str:
    """What a new process says of the installed packages."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        _end(
            f"the installed packages are of no use: importing them and compiling a program took more than {_SECONDS} s"
        )
    if not done.returncode:
        return done.stdout.splitlines()[-1]
    # XLA's last words begin as glog's do: F1127 21:41:03.942535 2569 file.cc:234] reason
    fatal = [line.partition("] ")[2] for line in done.stderr.splitlines() if line.startswith("F") and "] " in line]
    failed = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("failed: ")]
    code = done.returncode
    ended = f"the process ended by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    variables = "".join(f"; {name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name))
    _end(f"the installed packages cannot compile a program: {[*fatal, *failed, ended][0]}{variables}")


def _end(reason: str) -> NoReturn:
    pytest.exit(reason, returncode=2)

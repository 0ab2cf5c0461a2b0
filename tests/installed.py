"""What the tests need of the installed packages, asked once before the first test."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from typing import NoReturn

import pytest
from packaging.requirements import Requirement

# XLA's older code generator for CPUs takes half the time, where jaxlib still has it. Results differ in their last bits
# from those of the newer one, so that what is compared bit for bit must be compiled by one of them alone.
_QUICK = "xla_cpu_use_fusion_emitters"
# XLA ends a process whose XLA_FLAGS it does not know; an unknown option of one program is an error like others.
_PROBE = f"""
import jax, flax.nnx, optax, orbax.checkpoint, transformers
program = jax.jit(lambda x: x + 1).lower(0)
program.compile()
try:
    program.compile(compiler_options={{{_QUICK!r}: False}})
    print("--{_QUICK}=false")
except jax.errors.JaxRuntimeError:
    print()
"""
_SECONDS = 120
_KEPT = "cojax/installed"


def quick_flags(config: pytest.Config) -> str:
    """The flags of XLA that the installed jaxlib knows, and by which it compiles small programs faster.

    Ends pytest with one line where a package is not of a version that setup.py allows, cannot be imported, or does not
    know XLA_FLAGS. The answer for a set of versions stays in pytest's cache.
    """
    asked = [sys.version, os.environ.get("XLA_FLAGS", ""), *_versions()]
    if not config.pluginmanager.hasplugin("cacheprovider"):
        return _ask()
    assert config.cache is not None
    kept = config.cache.get(_KEPT, {})
    if kept.get("asked") != asked:
        kept = {"asked": asked, "flags": _ask()}
        config.cache.set(_KEPT, kept)
    return kept["flags"]


def versions() -> str:
    """The versions that decide most, in one line."""
    named = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "transformers", "numpy")
    found = [f"{name} {importlib.metadata.version(name)}" for name in named]
    return ", ".join([f"Python {sys.version.split()[0]}", *found])


def _versions() -> list[str]:
    """NAME==VERSION of each package that the tests need."""
    found = []
    try:
        lines = importlib.metadata.requires("cojax") or []
    except importlib.metadata.PackageNotFoundError:
        lines = []  # a checkout on the import path, without an installation
    for one in map(Requirement, ["jaxlib", *lines]):
        if one.marker is None or one.marker.evaluate({"extra": "test"}):
            try:
                version = importlib.metadata.version(one.name)
            except importlib.metadata.PackageNotFoundError:
                _end(f"{one.name} is not installed; install what the tests need: make .venv/.test")
            if not one.specifier.contains(version, prereleases=True):
                _end(f"{one.name} {version} is installed; expected {one.name}{one.specifier}: make .venv/.test")
            found.append(f"{one.name}=={version}")
    return found


def _ask() -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        _end(f"importing JAX and compiling a program took more than {_SECONDS} s")
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        # XLA's fatal lines begin as glog's do: F1127 21:41:03.942535 2569 file.cc:234] reason
        fatal = [line.partition("] ")[2] for line in said if line.startswith("F") and "] " in line]
        reason = (fatal or said[-1:] or [f"exit status {done.returncode}"])[0]
        told = f"; XLA_FLAGS={os.environ['XLA_FLAGS']!r}" if os.environ.get("XLA_FLAGS") else ""
        _end(f"the installed packages cannot compile a program: {reason}{told}")
    return done.stdout.splitlines()[-1]


def _end(reason: str) -> NoReturn:
    pytest.exit(reason, returncode=2)

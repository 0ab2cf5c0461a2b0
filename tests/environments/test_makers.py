"""A `make` that makes no environment is refused in one line."""

from __future__ import annotations

import sys
import types

import pytest

import environments
from cojax.registry import RegistryError


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: 3, "is of type int; expected what its `make` returns to have tools, tasks, start and phrase"),
        (lambda setup: setup, "its settings, which stand after a *: missing a required argument: 'setup'"),
    ],
)
def test_what_makes_no_environment_is_refused(monkeypatch, make, reason) -> None:
    module = types.ModuleType("world_of_mine")
    make.__module__ = module.__name__
    module.make = make
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(RegistryError, match="^environment 'world_of_mine:make'.*" + reason.replace("*", r"\*")):
        environments.load("world_of_mine:make")

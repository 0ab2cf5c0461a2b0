"""Signals: where the policy's own rollouts show that it is weak (CoEvolve §3.1).

A detector is a pair init/update with explicit memory: a flat dict of JSON values. `update` never touches the memory
it is given; it returns the new values of the changed keys, so that a step costs the same at 100 or 1,000,000 tasks seen
and the memory is what its log of changes folds to. Trajectories lost to the machinery are ignored everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cojax.signals.boundary import Boundary
from cojax.signals.forgetting import Forgetting
from cojax.signals.rare import Rare
from cojax.types import Group, Signal, SignalKind

__all__ = ["SIGNALS", "Boundary", "Detector", "Forgetting", "Memory", "Rare", "apply", "detect", "init"]

Memory = dict[str, dict[str, Any]]  # kind → what its detector remembers


class Detector(Protocol):
    """One kind of signal."""

    def init(self) -> dict[str, Any]:
        """The memory before the first step."""

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        """New values of the changed keys, and the signals of this step's groups."""


SIGNALS: dict[SignalKind, Any] = {"forgetting": Forgetting, "boundary": Boundary, "rare": Rare}


def init(detectors: Mapping[str, Detector]) -> Memory:
    """The memory of all detectors before the first step."""
    return {kind: detector.init() for kind, detector in detectors.items()}


def detect(
    detectors: Mapping[str, Detector], memory: Mapping[str, Mapping[str, Any]], groups: Sequence[Group]
) -> tuple[Memory, list[Signal]]:
    """Judges a step's groups by every detector on its own; one trajectory may carry several signals.

    Returns the changes to the memory, for `apply` and for the log, and the signals by kind, then task, then sample.
    """
    changes: Memory = {}
    signals: list[Signal] = []
    for kind, detector in detectors.items():
        changes[kind], found = detector.update(memory[kind], groups)
        signals += found
    return changes, signals


def apply(memory: Memory, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Merges the changes into the memory, in place, in O(changes)."""
    for kind, values in changes.items():
        memory.setdefault(kind, {}).update(values)

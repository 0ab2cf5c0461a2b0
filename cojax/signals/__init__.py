"""Signals: where the policy's own rollouts show that it is weak (CoEvolve §3.1).

A signal is one object: how it is detected, what it is about, what it asks of an explorer, how far it is to be trusted,
its name and its colour. A detector is a pair init/update with explicit memory: a flat dict of JSON values. `update`
never touches the memory it is given; it returns the new values of the changed keys, so that a step costs the same at
100 or 1,000,000 tasks seen and the memory is what its log of changes folds to. Trajectories lost to the machinery are
ignored everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from cojax.signals.boundary import Boundary
from cojax.signals.forgetting import Forgetting
from cojax.signals.kinds import TRAJECTORY, Guidance, Visit, above
from cojax.signals.rare import Rare
from cojax.signals.tools import focus, telling_tools, tools_called, tools_of
from cojax.types import Group, Signal

__all__ = [
    "SIGNALS", "TRAJECTORY", "Boundary", "Detector", "Forgetting", "Guidance", "Memory", "Rare", "SignalKind", "Visit",
    "above", "apply", "check", "detect", "focus", "guidance", "init", "named", "telling_tools", "tools_called",
    "tools_of",
]  # fmt: skip

Memory = dict[str, dict[str, Any]]  # kind → what its detector remembers


class Detector(Protocol):
    """What remembers rollouts, and marks some of them."""

    def init(self) -> dict[str, Any]:
        """The memory before the first step."""

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        """New values of the changed keys, and the signals of this step's groups, of the kind that it is called by."""


class SignalKind(Detector, Protocol):
    """One kind of signal."""

    @property
    def name(self) -> str:
        """The kind of its signals, and the origin of the tasks that come of them."""

    @property
    def colour(self) -> str:
        """In charts, as #rrggbb."""

    @property
    def guidance(self) -> Guidance:
        """What it asks of an explorer."""

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """Probability of what a signal claims, by the visits of its task, oldest first; there is at least one."""


SIGNALS: dict[str, Callable[..., SignalKind]] = {"forgetting": Forgetting, "boundary": Boundary, "rare": Rare}
# Origins of tasks that no signal may be called by.
_TAKEN = {"seed", "unguided", "uniform", "trajectory", "visits", "played"}


def check(kind: Any) -> SignalKind:
    """The object, once it has all that a signal has. Raises ValueError, which names what is missing."""
    parts = ("name", "colour", "guidance", "confidence", "init", "update")
    if missing := [part for part in parts if not hasattr(kind, part)]:
        raise ValueError(
            f"a {type(kind).__name__} is no signal: it has no {', '.join(missing)}; one has {', '.join(parts)}"
        )
    if not re.fullmatch(r"[a-z]\w*", str(kind.name)) or kind.name in _TAKEN:
        raise ValueError(
            f"its name is {kind.name!r}; expected a word in small letters other than {', '.join(sorted(_TAKEN))}"
        )
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", str(kind.colour)):
        raise ValueError(f"its colour is {kind.colour!r}; expected one like #d6504b")
    if not isinstance(kind.guidance, Guidance):
        raise ValueError(f"its guidance is a {type(kind.guidance).__name__}; expected cojax.signals.Guidance")
    return kind


def guidance(kinds: Mapping[str, SignalKind]) -> dict[str, Guidance]:
    """What contexts ask of an explorer, by their kind: those of signals, and of trajectories that none points at."""
    return {**{name: kind.guidance for name, kind in kinds.items()}, "trajectory": TRAJECTORY}


def named(kinds: Iterable[str]) -> list[str]:
    """Our own kinds, whether they are used or not, and the others after them."""
    return [*sorted(SIGNALS), *(kind for kind in kinds if kind not in SIGNALS)]


def init(detectors: Mapping[str, Detector]) -> Memory:
    """The memory of all detectors before the first step. Raises ValueError where JSON would not give it back."""
    memory = {kind: detector.init() for kind, detector in detectors.items()}
    _check_kept(memory)
    return memory


def detect(
    detectors: Mapping[str, Detector], memory: Mapping[str, Mapping[str, Any]], groups: Sequence[Group]
) -> tuple[Memory, list[Signal]]:
    """Judges a step's groups by every detector on its own; one trajectory may carry several signals.

    Returns the changes to the memory, for `apply` and for the log, and the signals by kind, then task, then sample.
    Raises ValueError for a signal of another kind than its detector's, and for a memory that JSON would not give back.
    """
    changes: Memory = {}
    signals: list[Signal] = []
    for kind, detector in detectors.items():
        changes[kind], found = detector.update(memory[kind], groups)
        if strange := next((signal.kind for signal in found if signal.kind != kind), None):
            raise ValueError(
                f"the detector of {kind!r} raised a signal of kind {strange!r}; give it the detector's name"
            )
        signals += found
    _check_kept(changes)
    return changes, signals


def _check_kept(memory: Mapping[str, Mapping[str, Any]]) -> None:
    """That a resumed run remembers what this one does: the memory is written as JSON. Raises ValueError."""
    for kind, values in memory.items():
        for key, value in values.items():
            try:
                same = json.loads(json.dumps({key: value}, allow_nan=False)) == {key: value}
            except (TypeError, ValueError):
                same = False
            if not same:
                raise ValueError(
                    f"signal {kind!r} remembers {key!r}: {str(value)[:80]}, which JSON does not give back; expected "
                    "text as keys, and lists, dicts, text, finite numbers, booleans and None as values"
                )


def apply(memory: Memory, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Merges the changes into the memory, in place, in O(changes)."""
    for kind, values in changes.items():
        memory.setdefault(kind, {}).update(values)

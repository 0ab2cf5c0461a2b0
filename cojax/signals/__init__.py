"""Signals: where the policy's own rollouts show that it is weak (CoEvolve §3.1).

A kind of signal is one object that has a detector, guidance for explorers, a confidence, a name and a colour. A
detector is an init/update pair with explicit memory, a flat dict of JSON values. A detector that only remembers and
raises no signals is a *statistic*. `update` does not change the memory that it receives. It returns the new values of
the changed keys. So a step costs the same after 100 tasks as after 1,000,000, and the log of changes, applied in order,
rebuilds the memory. All detectors ignore invalid trajectories.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from cojax.signals.detectors import Boundary, Forgetting, Rare
from cojax.signals.kinds import PLAN_GUIDANCE, TRAJECTORY, Guidance, Visit, above, step_of, task_of
from cojax.signals.tools import distinguishing_tools, focus, tools_called, tools_of
from cojax.types import Group, Signal

__all__ = [
    "SIGNALS", "TRAJECTORY", "Boundary", "Detector", "Forgetting", "Guidance", "Memory", "Rare", "SignalKind", "Visit",
    "above", "apply", "check", "detect", "distinguishing_tools", "focus", "guidance", "init", "list_names", "step_of",
    "task_of", "tools_called", "tools_of",
]  # fmt: skip

Memory = dict[str, dict[str, Any]]  # kind → the memory of its detector


class Detector(Protocol):
    """Remembers rollouts, and raises signals on some of them; one that raises none is a statistic."""

    def init(self) -> dict[str, Any]:
        """The memory before the first step."""

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        """The new values of changed keys, and the signals of this step's groups, whose kind is the detector's name."""


class SignalKind(Detector, Protocol):
    """One kind of signal."""

    @property
    def name(self) -> str:
        """The kind of its signals, and the origin of tasks made from them."""

    @property
    def colour(self) -> str:
        """Its colour in charts, as #rrggbb."""

    @property
    def guidance(self) -> Guidance:
        """What an explorer is asked to do with such a signal."""

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        """The probability that the signal is right, given the visits of its task, oldest first, at least one."""


SIGNALS: dict[str, Callable[..., SignalKind]] = {"forgetting": Forgetting, "boundary": Boundary, "rare": Rare}
# Origins of tasks, which no signal may have as its name.
_RESERVED_NAMES = ("seed", "trajectory", *PLAN_GUIDANCE)


def check(kind: Any, reserved_names: Iterable[str] = ()) -> SignalKind:
    """Returns the object if it is a kind of signal. Raises ValueError, which names what is missing or wrong.

    `reserved_names` lists names that it must not have, in addition to the origins of tasks.
    """
    banned_names = sorted({*_RESERVED_NAMES, *reserved_names})
    members = ("name", "colour", "guidance", "confidence", "init", "update")
    if missing := [member_name for member_name in members if not hasattr(kind, member_name)]:
        raise ValueError(
            f"a {type(kind).__name__} is not a signal: it lacks {', '.join(missing)}; a signal has {', '.join(members)}"
        )
    if not re.fullmatch(r"[a-z]\w*", str(kind.name)) or kind.name in banned_names:
        raise ValueError(f"its name is {kind.name!r}; expected a lower-case word other than {', '.join(banned_names)}")
    if not re.fullmatch(r"#[0-9a-fA-F]{6}", str(kind.colour)):
        raise ValueError(f"its colour is {kind.colour!r}; expected one like #d6504b")
    if not isinstance(kind.guidance, Guidance):
        raise ValueError(f"its guidance is a {type(kind.guidance).__name__}; expected cojax.signals.Guidance")
    return kind


def guidance(kinds: Mapping[str, SignalKind]) -> dict[str, Guidance]:
    """Kind of context → its guidance: the kinds of signals, "trajectory" for no signal, and the kinds with a plan."""
    return {**{name: kind.guidance for name, kind in kinds.items()}, "trajectory": TRAJECTORY, **PLAN_GUIDANCE}


def list_names(kinds: Iterable[str]) -> list[str]:
    """The names of all kinds: first the built-in ones, used or not, then the others."""
    return [*sorted(SIGNALS), *(kind for kind in kinds if kind not in SIGNALS)]


def init(detectors: Mapping[str, Detector]) -> Memory:
    """The memory of all detectors before the first step. Raises ValueError for a value that JSON changes."""
    memory = {kind: detector.init() for kind, detector in detectors.items()}
    _check_json(memory)
    return memory


def detect(
    detectors: Mapping[str, Detector], memory: Mapping[str, Mapping[str, Any]], groups: Sequence[Group]
) -> tuple[Memory, list[Signal]]:
    """Runs every detector on a step's groups; one trajectory may get several signals.

    Returns the changes to the memory, for `apply` and for the log, and the signals by kind, then task, then sample.
    Raises ValueError for a signal of another kind than its detector's, and for a memory with a value that JSON changes.
    """
    changes: Memory = {}
    signals: list[Signal] = []
    for kind, detector in detectors.items():
        changes[kind], kind_signals = detector.update(memory[kind], groups)
        if other_kind := next((signal.kind for signal in kind_signals if signal.kind != kind), None):
            raise ValueError(
                f"the detector of {kind!r} raised a signal of kind {other_kind!r}; give the signal the detector's name"
            )
        signals += kind_signals
    _check_json(changes)
    return changes, signals


def _check_json(memory: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ValueError for a value that JSON changes: a resumed run reads the memory from JSON."""
    for kind, values in memory.items():
        for memory_key, value in values.items():
            try:
                is_json = json.loads(json.dumps({memory_key: value}, allow_nan=False)) == {memory_key: value}
            except (TypeError, ValueError):
                is_json = False
            if not is_json:
                raise ValueError(
                    f"signal {kind!r} remembers {memory_key!r}: {str(value)[:80]}, which JSON changes; expected "
                    "text as keys, and lists, dicts, text, finite numbers, booleans and None as values"
                )


def apply(memory: Memory, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Merges the changes into the memory, in place, in O(changes)."""
    for kind, changed_values in changes.items():
        memory.setdefault(kind, {}).update(changed_values)

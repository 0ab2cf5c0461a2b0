"""Whether two runs have the same settings, and whether they have the same results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from cojax import registry
from cojax.registry.annotations import RegistryError
from cojax.rollout.collect import Limits
from cojax.run.entries import CHOICES, signal_name
from cojax.settings.base import PAPER
from cojax.settings.ranges import is_open
from cojax.signals import SIGNALS
from . import schedule
from .runs import dotted_leaves, plain_configuration

_DEADLINE = "limits.environment_deadline"
_SIGNALS = "signal_settings"
# Keys that are equal to the last bit in two runs with the same settings, machine type and versions, but for _UNITS.
RESULT = (
    "zero_shot", "final", "held_out", "trials", "budget", "curves", "dev", "signals", "evolutions", "refused", "tasks",
    "quality",
)  # fmt: skip
# Coordinates and similarities of tasks are products of numpy, whose bits depend on the processor. They are stored
# rounded to these units, and may fall on the other side of a rounding's edge.
_UNITS = {"tasks": 1e-4, "quality": 1e-6}
# Equal to the last bit too, but an older record lacks them, or some of their names. None of them holds a time.
NEWER_PARTS = ("learning", "origins", "predicted", "failures")


def mismatch(record: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The settings of a stored record, or of a run's config.json, that differ from this configuration, as text.

    It is empty for the same settings, whatever the workdir. A setting that the code has gained since then counts as its
    default, with which runs are as before; a setting that the code no longer has is ignored. A setting of an entry that
    only `config` holds differs: its default then is not known. One that only the record holds differs from any value
    but today's default. A run's config.json has an absolute model.path, a record one from the checkout on; both count
    as the same.
    """
    known = _comparable({**dict(dotted_leaves(plain_configuration({}))), **dict(dotted_leaves(record["config"]))})
    now = _comparable(dict(dotted_leaves(config)))
    different = [name for name in now if name != "workdir" and (name not in known or known[name] != now[name])]
    different += [name for name in known if name not in now and is_open(name) and not _is_default(name, known, now)]
    was, here = ({name: repr(one[name]) if name in one else "not set" for name in different} for one in (known, now))
    return ", ".join(f"{name} was {was[name]}, now {here[name]}" for name in sorted(different))


def _is_default(name: str, known: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a setting of an entry has today's default, of the entry that is named now."""
    section, _, key = name.rpartition(".")
    paper: Mapping[str, Any] = {}
    try:
        if section.startswith(f"{_SIGNALS}."):
            signal = section.removeprefix(f"{_SIGNALS}.")
            whole = {signal_name(one.strip()): one.strip() for one in now["signals"].split(",")}
            declared = registry.settings(registry.find("signal", whole.get(signal, signal), SIGNALS))
        else:
            leaf, choice = next((leaf, one) for leaf, one in CHOICES.items() if one.section == section)
            declared, paper = registry.settings(choice.find(now[leaf])), PAPER.get(leaf, {}).get(now[leaf], {})
    except (RegistryError, StopIteration):
        return False
    if key not in declared:
        return False
    default = paper.get(key, declared[key].default)
    return known[name] == (list(default) if isinstance(default, tuple) else default)


def _comparable(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with model.path from the checkout on if it is in there, and the desk's own deadline by its
    value: a setting of None stands for it, and older records spell it out."""
    path, deadline = leaves.get("model.path") or "", leaves.get(_DEADLINE)
    return {
        **leaves,
        "model.path": os.path.relpath(schedule.ROOT / path, schedule.ROOT) if path else "",
        _DEADLINE: Limits.environment_deadline if deadline is None else deadline,
    }


def differing_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys of RESULT in which two records differ, and those of NEWER_PARTS where both records know them.

    None where the results are the same to the last bit. Similarities and coordinates of tasks may differ by the unit
    that they are rounded to.
    """
    # As they are read again: tuples as lists.
    first, second = ({name: record.get(name) for name in (*RESULT, *NEWER_PARTS)} for record in (one, other))
    first, second = json.loads(json.dumps(first)), json.loads(json.dumps(second))
    different = [name for name in RESULT if not _same(first[name], second[name], _UNITS.get(name, 0.0))]
    return different + [name for name in NEWER_PARTS if first[name] and second[name]
                        and not _alike(first[name], second[name])]  # fmt: skip


def _same(one: Any, other: Any, unit: float) -> bool:
    """Whether two values are equal, but for numbers with a fraction, which may differ by `unit`."""
    if unit and isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1.5 * unit
    if unit and isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name], unit) for name in one)
    if unit and isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(*pair, unit) for pair in zip(one, other, strict=True))
    return bool(one == other)


def _alike(one: Any, other: Any) -> bool:
    """Whether two measures are equal in all that both hold."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_alike(one[name], other[name]) for name in one.keys() & other.keys())
    return one == other

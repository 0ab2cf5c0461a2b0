"""What decides the bits of a run: whether two have the same settings, variables and machines, and the same results."""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax import registry
from cojax.registry.annotations import RegistryError
from cojax.rollout.collect import Limits
from cojax.run.entries import CHOICES, signal_name
from cojax.settings.base import PAPER
from cojax.settings.ranges import is_open, leaves
from cojax.signals import SIGNALS
from cojax.storage.files import read_json
from .launch import VARIABLES
from .tables import ROOT, StudyRun, plain_configuration

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
    known = _comparable({**dict(leaves(plain_configuration({}))), **dict(leaves(record["config"]))})
    now = _comparable(dict(leaves(config)))
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
        "model.path": os.path.relpath(ROOT / path, ROOT) if path else "",
        _DEADLINE: Limits.environment_deadline if deadline is None else deadline,
    }


def differing_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys of RESULT in which two records differ, and those of NEWER_PARTS where both records know them.

    None where the results are the same to the last bit. Similarities and coordinates of tasks may differ by the unit
    that they are rounded to.
    """
    # As they are read again: tuples as lists.
    names = (*RESULT, *NEWER_PARTS)
    first, second = (json.loads(json.dumps({name: record.get(name) for name in names})) for record in (one, other))
    different = [name for name in RESULT if not _same(first[name], second[name], _UNITS.get(name, 0.0))]
    known = [name for name in NEWER_PARTS if first[name] and second[name]]
    return different + [name for name in known if not _same(first[name], second[name], shared=True)]


def _same(one: Any, other: Any, unit: float = 0.0, *, shared: bool = False) -> bool:
    """Whether two values are equal, but for numbers with a fraction, which may differ by `unit`.

    With `shared` they may hold further keys.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() & other.keys()
        return (shared or len(names) == len(one) == len(other)) and all(
            _same(one[name], other[name], unit, shared=shared) for name in names
        )
    if unit and isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < 1.5 * unit
    if unit and isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(*pair, unit) for pair in zip(one, other, strict=True))
    return bool(one == other)


_RECORDED = ("XLA_FLAGS", "NPROC", "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL")  # variables that config.json holds
# Facts that decide which bits a run computes, in the order of the lines.
_SECTIONS = ("hardware", "versions", "commit")


def differing_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each fact that differs between a record's facts and these, and one for those it does not say."""
    was, here = (dict(leaves({name: facts[name] for name in _SECTIONS if name in facts})) for facts in (before, now))
    lines = [
        f"{name}: {_difference(was[name], here.get(name, 'not known'))}"
        for name in was
        if name not in here or was[name] != here[name]
    ]
    silent = [f"{name} (now {_shown(here[name])})" for name in here if name not in was]
    if silent:
        lines.append(f"the record does not say: {', '.join(silent)}")
    return lines


def with_stored_variables(jobs: Sequence[StudyRun], records: Iterable[Mapping[str, Any]]) -> list[StudyRun]:
    """The runs, with the variables of a stored run that begins like them where there is one.

    Other variables give other bits, and the arms of a seed could not begin at the same policy. Raises ValueError where
    two stored runs that such a run begins like have different variables.
    """
    found: dict[tuple[Any, ...], tuple[StudyRun, ...]] = {}
    for record in records:
        run = StudyRun(record["arm"], record["seed"], record["settings"], variables_of(record))
        found[run.warm_start] = (*found.get(run.warm_start, ()), run)
    chosen = []
    for job in jobs:
        first, *others = found.get(job.warm_start, (job,))
        if other := next((one for one in others if one.variables != first.variables), None):
            raise ValueError(
                f"{job.name} would begin like the stored {first.name} and {other.name}, which were made with different "
                f"variables ({first.variables} and {other.variables}); delete one of these records, or choose another "
                "--out"
            )
        chosen.append(dataclasses.replace(job, variables=first.variables))
    return chosen


def begun_otherwise(job: StudyRun, workdir: Path) -> str:
    """Why the run in `workdir` cannot go on as this one, which has other variables; empty where it can, or is new."""
    try:
        before = read_json(workdir / "config.json")["hardware"]["environment"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not isinstance(before, dict):
        return ""
    different = next((name for name in _RECORDED if before.get(name) != job.variables.get(name)), None)
    if different is None:
        return ""
    was, now = (
        f"with {different}={found[different]!r}" if different in found else f"without {different}"
        for found in (before, job.variables)
    )
    return f"{workdir} was begun {was}, and would go on {now}: other bits. Delete it or choose another --runs"


def variables_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Those of VARIABLES that a record was made with, under its key `threads`. One that it lacks was not set."""
    return {name: str(record["threads"][name]) for name in VARIABLES if name in record["threads"]}


def _difference(was: Any, here: Any) -> str:
    if isinstance(was, list) and isinstance(here, list):
        only = {"then": [one for one in was if one not in here], "now": [one for one in here if one not in was]}
        return "; ".join(f"only {when} {_shown(found)}" for when, found in only.items() if found)
    return f"{_shown(was)} then, {_shown(here)} now"


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)

"""What decides the bits of a run: the variables that it has, and what differs between the facts of two records."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.storage.files import read_json
from .launch import VARIABLES
from .runs import StudyRun, dotted_leaves

_RECORDED = ("XLA_FLAGS", "NPROC", "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL")  # variables that config.json holds
# Facts that decide which bits a run computes, in the order of the lines.
_SECTIONS = ("hardware", "versions", "commit")


def differing_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each fact that differs between a record's facts and these, and one for those it does not say."""
    was, here = map(_deciding_facts, (before, now))
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


def _deciding_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name → value, for the sections that decide bits."""
    return dict(dotted_leaves({section: facts[section] for section in _SECTIONS if section in facts}))


def _difference(was: Any, here: Any) -> str:
    if isinstance(was, list) and isinstance(here, list):
        only = {"then": [one for one in was if one not in here], "now": [one for one in here if one not in was]}
        return "; ".join(f"only {when} {_shown(found)}" for when, found in only.items() if found)
    return f"{_shown(was)} then, {_shown(here)} now"


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)

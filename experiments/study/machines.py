"""What differs between the machine, versions and code of two records, in one line each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.study.launch import THREADS
from experiments.study.runs import StudyRun

# Facts that decide which bits a run computes, in the order of the lines.
_SECTIONS = ("hardware", "versions", "commit")


def differing_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One line for each fact that differs between a record's facts and these, and one for those it does not say."""
    was, here = ({name: value for name, value in _facts(facts)} for facts in (before, now))
    lines = [
        f"{name}: {_difference(was[name], here.get(name, 'not known'))}"
        for name in was
        if name not in here or was[name] != here[name]
    ]
    silent = [f"{name} (now {_shown(here[name])})" for name in here if name not in was]
    if silent:
        lines.append(f"the record does not say: {', '.join(silent)}")
    return lines


def with_stored_threads(jobs: Sequence[StudyRun], records: Iterable[Mapping[str, Any]]) -> list[StudyRun]:
    """The runs, with the variables of a stored run of their seed where there is one.

    Other variables give other bits, and the arms of a seed could not begin at the same policy.
    """
    by_seed = {record["seed"]: threads_of(record) for record in records}
    return [dataclasses.replace(job, threads=by_seed.get(job.seed, THREADS)) for job in jobs]


def threads_of(record: Mapping[str, Any]) -> dict[str, str]:
    """The variables of THREADS that a record was made with. One that it does not have was not set."""
    return {name: str(record["threads"][name]) for name in THREADS if name in record["threads"]}


def _facts(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section in _SECTIONS:
        if section in facts:
            yield from _leaves(section, facts[section])


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(f"{name}.{key}", one)
    else:
        yield name, value


def _difference(was: Any, here: Any) -> str:
    if isinstance(was, list) and isinstance(here, list):
        only = {"then": [one for one in was if one not in here], "now": [one for one in here if one not in was]}
        return "; ".join(f"only {when} {_shown(found)}" for when, found in only.items() if found)
    return f"{_shown(was)} then, {_shown(here)} now"


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)

"""Compares runs in what decides their bits, settings, variables and machines, and in their results."""

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax import registry
from cojax.registry.annotations import RegistryError
from cojax.rollout.collect import Limits
from cojax.run.entries import CHOICES, shorten_signal
from cojax.settings.base import PAPER
from cojax.settings.ranges import is_open, leaves
from cojax.signals import SIGNALS
from cojax.storage.files import read_json
from .launch import VARIABLES
from .tables import ROOT, StudyRun, make_plain_configuration

_DEADLINE_SETTING = "limits.environment_deadline"
_SIGNALS_SECTION = "signal_settings"
# Keys that are equal to the last bit in two runs with equal settings, machine types and versions, except for _UNITS.
RESULT_KEYS = (
    "zero_shot", "final", "held_out", "trials", "budget", "curves", "dev", "signals", "evolutions", "refused", "tasks",
    "quality",
)  # fmt: skip
# Coordinates and similarities of tasks are products of numpy, whose bits depend on the processor. They are stored
# rounded to these units, and two runs may round the same value differently.
_UNITS = {"tasks": 1e-4, "quality": 1e-6}
# These are equal to the last bit too, but an older record lacks them or some of their names. None of them holds a time.
NEWER_KEYS = ("learning", "origins", "predicted", "failures")


def explain_mismatch(record: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The settings of a stored record, or of a run's config.json, that differ from this configuration, as text.

    The text is empty for equal settings, whatever the workdir. A setting that the code has gained since then counts as
    its default, which leaves runs as they were; a setting that the code no longer has is ignored. A setting of an entry
    that only `config` holds differs, because its default then is not known. One that only the record holds differs from
    any value but today's default. model.path is absolute in a run's config.json and relative to the checkout in a
    record; these count as equal.
    """
    old = _make_comparable({**_defaults(), **dict(leaves(record["config"]))})
    new = _make_comparable(dict(leaves(config)))
    names = [name for name in new if name != "workdir" and (name not in old or old[name] != new[name])]
    names += [name for name in old if name not in new and is_open(name) and not _is_default(name, old, new)]
    was, here = ({name: repr(values[name]) if name in values else "not set" for name in names} for values in (old, new))
    return ", ".join(f"{name} was {was[name]}, now {here[name]}" for name in sorted(names))


@functools.cache
def _defaults() -> dict[str, Any]:
    return dict(leaves(make_plain_configuration({})))


def _is_default(setting: str, old_values: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a setting of an entry has the default that the entry chosen now declares today."""
    section, _, last_key = setting.rpartition(".")
    paper_settings: Mapping[str, Any] = {}
    try:
        if section.startswith(f"{_SIGNALS_SECTION}."):
            signal_alias = section.removeprefix(f"{_SIGNALS_SECTION}.")
            full_names = {shorten_signal(entry.strip()): entry.strip() for entry in new["signals"].split(",")}
            schema = registry.settings(registry.find("signal", full_names.get(signal_alias, signal_alias), SIGNALS))
        else:
            leaf, choice = next((leaf, choice) for leaf, choice in CHOICES.items() if choice.section == section)
            schema, paper_settings = registry.settings(choice.find(new[leaf])), PAPER.get(leaf, {}).get(new[leaf], {})
    except (RegistryError, StopIteration):
        return False
    if last_key not in schema:
        return False
    default = paper_settings.get(last_key, schema[last_key].default)
    return old_values[setting] == (list(default) if isinstance(default, tuple) else default)


def _make_comparable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with model.path relative to the checkout, and the desk's own deadline as a number.

    A setting of None stands for that deadline, and older records spell it out.
    """
    model_path, deadline_s = settings.get("model.path") or "", settings.get(_DEADLINE_SETTING)
    return {
        **settings,
        "model.path": os.path.relpath(ROOT / model_path, ROOT) if model_path else "",
        _DEADLINE_SETTING: Limits.environment_deadline if deadline_s is None else deadline_s,
    }


def find_differing_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which two records differ, of RESULT_KEYS and of those in NEWER_KEYS that both records have.

    There are none if the results are equal to the last bit. Similarities and coordinates of tasks may differ by the
    unit that they are rounded to.
    """
    # As they are read from a file: tuples become lists.
    all_keys = (*RESULT_KEYS, *NEWER_KEYS)
    values_a, values_b = (
        json.loads(json.dumps({key: any_record.get(key) for key in all_keys})) for any_record in (one, other)
    )
    differing_keys = [key for key in RESULT_KEYS if not _are_equal(values_a[key], values_b[key], _UNITS.get(key, 0.0))]
    shared_keys = [key for key in NEWER_KEYS if values_a[key] and values_b[key]]
    return differing_keys + [key for key in shared_keys if not _are_equal(values_a[key], values_b[key], subset=True)]


def _are_equal(value: Any, other: Any, unit: float = 0.0, *, subset: bool = False) -> bool:
    """Whether two values are equal, except that numbers with a fraction may differ by `unit`.

    With `subset`, each may hold further keys.
    """
    if isinstance(value, dict) and isinstance(other, dict):
        shared_keys = value.keys() & other.keys()
        return (subset or len(shared_keys) == len(value) == len(other)) and all(
            _are_equal(value[key], other[key], unit, subset=subset) for key in shared_keys
        )
    if unit and isinstance(value, float) and isinstance(other, float):
        return abs(value - other) < 1.5 * unit
    if unit and isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(_are_equal(*pair, unit) for pair in zip(value, other, strict=True))
    return bool(value == other)


_BIT_VARIABLES = ("XLA_FLAGS", "NPROC", "TENSORFLOW_USE_CUSTOM_CONTRACTION_KERNEL")  # variables that config.json holds
# Facts that decide which bits a run computes, in the order of the lines.
_SECTIONS = ("hardware", "versions", "commit")


def differing_facts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """One line for each fact in which a record differs from these facts, and one for the facts that it lacks."""
    before, after = (dict(leaves({name: facts[name] for name in _SECTIONS if name in facts})) for facts in (old, new))
    lines = [
        f"{fact}: {_write_difference(before[fact], after.get(fact, 'not known'))}"
        for fact in before
        if fact not in after or before[fact] != after[fact]
    ]
    missing_facts = [f"{fact} (now {_format(after[fact])})" for fact in after if fact not in before]
    if missing_facts:
        lines.append(f"the record does not say: {', '.join(missing_facts)}")
    return lines


def adopt_stored_variables(jobs: Sequence[StudyRun], records: Iterable[Mapping[str, Any]]) -> list[StudyRun]:
    """Gives each run the variables of a stored run with the same warm start, if there is one.

    Other variables give other bits, and the arms of a seed could not begin at the same policy. Raises ValueError if two
    stored runs with the warm start of a run have different variables.
    """
    runs_by_warm_start: dict[tuple[Any, ...], tuple[StudyRun, ...]] = {}
    for record in records:
        stored_run = StudyRun(record["arm"], record["seed"], record["settings"], read_variables(record))
        runs_by_warm_start[stored_run.warm_start] = (*runs_by_warm_start.get(stored_run.warm_start, ()), stored_run)
    new_jobs = []
    for job in jobs:
        first_run, *other_runs = runs_by_warm_start.get(job.warm_start, (job,))
        if other := next((candidate for candidate in other_runs if candidate.variables != first_run.variables), None):
            raise ValueError(
                f"{job.name} would share the warm start of the stored {first_run.name} and {other.name}, whose "
                f"variables differ ({first_run.variables} and {other.variables}); delete one of these records, or "
                "choose another --out"
            )
        new_jobs.append(dataclasses.replace(job, variables=first_run.variables))
    return new_jobs


def explain_other_variables(job: StudyRun, workdir: Path) -> str:
    """Says why the run in `workdir` cannot go on as this one, whose variables differ; empty if it can or is new."""
    try:
        old_variables = read_json(workdir / "config.json")["hardware"]["environment"]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    if not isinstance(old_variables, dict):
        return ""
    variable = next((name for name in _BIT_VARIABLES if old_variables.get(name) != job.variables.get(name)), None)
    if variable is None:
        return ""
    old_text, rest = (
        f"with {variable}={variables[variable]!r}" if variable in variables else f"without {variable}"
        for variables in (old_variables, job.variables)
    )
    return (
        f"{workdir} was started {old_text}, and would go on {rest}, with other bits. Delete it or choose another --runs"
    )


def read_variables(record: Mapping[str, Any]) -> dict[str, str]:
    """The VARIABLES that a record was made with, from its key `threads`. One that it lacks was not set."""
    return {variable: str(record["threads"][variable]) for variable in VARIABLES if variable in record["threads"]}


def _write_difference(old: Any, new: Any) -> str:
    if isinstance(old, list) and isinstance(new, list):
        only = {"then": [item for item in old if item not in new], "now": [item for item in new if item not in old]}
        return "; ".join(f"only {time_word} {_format(items)}" for time_word, items in only.items() if items)
    return f"{_format(old)} then, {_format(new)} now"


def _format(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)

"""What a stored record looks like: checks one that is read, so that tables need not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.registry.annotations import shown
from cojax.signals import SIGNALS
from experiments.study.origins import COUNTS, MEASURES
from experiments.study.record import CURVES, EVOLUTION, Record
from experiments.study.tasks import COLUMNS

# Key of a record → its type.
_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("settings", "config", "facts", "threads", "held_out", "budget", "seconds", "curves"), dict),
    **dict.fromkeys(("signals", "refused", "tasks", "quality"), dict),
    **dict.fromkeys(("dev", "evolutions"), list),
    **dict.fromkeys(("arm", "split"), str),
    # None where there was nothing to evaluate on.
    **dict.fromkeys(("zero_shot", "final"), (int, float, type(None))),
    "evolution_seconds": (int, float),
    **dict.fromkeys(("seed", "steps"), int),
}
_BUDGETS = ("episodes", "turns", "tokens_sampled", "tokens_trained", "explorer_actions", "drafts", "tasks_added")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_object_of(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(fits, value.values()))


def _has(value: Any, names: Sequence[str], fits: Callable[[Any], bool], or_null: bool = False) -> bool:
    """Whether `value` is an object that has these names, and what stands there fits; `or_null` allows their absence."""
    return isinstance(value, dict) and all(
        fits(value.get(name)) or (or_null and value.get(name) is None) for name in names
    )


# A kind of value: its test, and what an error says of it.
_Kind = tuple[Callable[[Any], bool], str]
_SHARE: _Kind = (lambda value: value is None or (_is_number(value) and 0 <= value <= 1), "a share, or null")
_COUNT: _Kind = (_is_count, "a whole number at least 0")
_SECONDS: _Kind = (lambda value: _is_number(value) and value >= 0, "a number at least 0")
_ABOVE_0: _Kind = (lambda value: _is_number(value) and value > 0, "a number above 0")
_NUMBER: _Kind = (_is_number, "a number")
_TEXT: _Kind = (lambda value: isinstance(value, str), "a text")
_BITS: _Kind = (lambda value: isinstance(value, str) and set(value) <= {"0", "1"}, "a text of 0 and 1")
_NUMBERS: _Kind = (_are_numbers, "a list of numbers")
_LIST: _Kind = (lambda value: isinstance(value, list), "a list")
_OBJECT: _Kind = (lambda value: isinstance(value, dict), "an object")
_PAIRS: _Kind = (
    lambda value: all(_are_numbers(one) and len(one) == 2 for one in value),
    "a list of steps, each with its success",
)
_ROWS: _Kind = (
    lambda value: all(isinstance(one, dict) and one.keys() >= {"step", "origin", *EVOLUTION} for one in value),
    f"a list of objects with step, origin, {', '.join(EVOLUTION)}",
)
# Dotted key that tables use → what stands there.
_PARTS: Mapping[str, _Kind] = {
    **dict.fromkeys(("zero_shot", "final"), _SHARE),
    "held_out.digest": _TEXT,
    "held_out.tasks": _COUNT,
    **dict.fromkeys(("held_out.zero_shot", "held_out.final"), _BITS),
    **{f"budget.{name}": _COUNT for name in _BUDGETS},
    "seconds.total": _ABOVE_0,
    **dict.fromkeys(("seconds.warm_start", "evolution_seconds"), _SECONDS),
    "facts.commit": _TEXT,
    "facts.versions": _OBJECT,
    "facts.hardware.processor": _TEXT,
    **{f"curves.{name}": _NUMBERS for name in ("step", *CURVES)},
    **{f"signals.{kind}": _NUMBERS for kind in SIGNALS},
    **{f"tasks.{column}": _LIST for column in COLUMNS},
    **dict.fromkeys(("quality.sr_at_k", "quality.turns"), _NUMBER),
    "dev": _PAIRS,
    "evolutions": _ROWS,
}
# As _PARTS, of keys that not every record has: an older one, or one of a run without preferences or with one trial.
_WHERE_GIVEN: Mapping[str, _Kind] = {
    "learning": (lambda value: _is_object_of(value, _is_number), "an object of numbers"),
    "origins": (
        lambda value: _is_object_of(
            value, lambda one: _has(one, COUNTS, _is_count) and _has(one, MEASURES, _is_number, or_null=True)
        ),
        f"for each origin an object with {', '.join((*COUNTS, *MEASURES))}",
    ),
    "predicted": (
        lambda value: _is_object_of(
            value, lambda one: _has(one, ("rho",), _is_number, or_null=True) and _has(one, ("tasks",), _is_count)
        ),
        "for each predictor an object with rho and tasks",
    ),
    "trials": (
        lambda value: isinstance(value, list) and all(_has(one, ("episodes",), _is_count) for one in value),
        "a list of objects with episodes",
    ),
    "failures": (
        lambda value: (
            isinstance(value, dict)
            and _is_object_of(value.get("examples"), _is_count)
            and _is_object_of(value.get("agents"), lambda one: _is_object_of(one, _is_number))
        ),
        "an object with examples and agents",
    ),
}
# Dotted keys of equal length, and the one that counts them; without it they are as long as the first.
_LENGTHS: Sequence[tuple[tuple[str, ...], str]] = (
    (("held_out.zero_shot", "held_out.final"), "held_out.tasks"),
    ((*(f"curves.{name}" for name in ("step", *CURVES)), *(f"signals.{kind}" for kind in SIGNALS)), ""),
    (tuple(f"tasks.{column}" for column in COLUMNS), ""),
)


def check_record(found: Mapping[str, Any], arm: str) -> Record:
    """Returns `found` if it is a record of that arm. Raises ValueError if it is not."""
    if missing := [key for key in _KEYS if key not in found or not isinstance(found[key], _KEYS[key])]:
        raise ValueError(f"a record has {missing[0]!r}, which is missing or of another kind here")
    for key, (fits, expected) in _PARTS.items():
        try:
            value = _at(found, key)
        except (KeyError, TypeError):
            raise ValueError(f"a record has {key!r}, which is missing here") from None
        if not fits(value):
            raise ValueError(f"{key} is {shown(value)}; expected {expected}")
    for key, (fits, expected) in _WHERE_GIVEN.items():
        if key in found and not fits(found[key]):
            raise ValueError(f"{key} is {shown(found[key])}; expected {expected}")
    for keys, counted in _LENGTHS:
        length = _at(found, counted) if counted else len(_at(found, keys[0]))
        if wrong := [key for key in keys if len(_at(found, key)) != length]:
            raise ValueError(f"{wrong[0]} has {len(_at(found, wrong[0]))} values; {counted or keys[0]} says {length}")
    if found["arm"] != arm:
        raise ValueError(f"it is of the run {found['arm']}-{found['seed']}")
    return dict(found)


def _at(found: Mapping[str, Any], key: str) -> Any:
    """What stands at a dotted key. Raises KeyError or TypeError where nothing does."""
    return functools.reduce(lambda part, name: part[name], key.split("."), found)

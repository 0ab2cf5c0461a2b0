"""Stored records: OUT/runs/ARM.jsonl.gz, one record a line, in the order of seeds.

The bytes follow from the records and the compressor: gzip stores no time and no name.
"""

import contextlib
import fcntl
import functools
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.durable import own_file
from cojax.registry.annotations import shown
from cojax.signals import SIGNALS
from cojax.storage.episodes import expanded
from cojax.storage.files import encode_record, explaining, parse_record, replace_file
from .comparison import mismatch
from .record import COLUMNS, CURVES, EVOLUTION, ORIGIN_COUNTS, ORIGIN_MEASURES, Record
from .runs import StudyRun

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
# Beyond these a number is damage, and means of such numbers would overflow.
_GREATEST = 1e100
# How far a success may be from the share of held-out tasks that it is told with: some are left out, whose episode was
# lost before or after training.
_LEFT_OUT = 0.05


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -_GREATEST <= value <= _GREATEST


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value >= 0


def _is_amount(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _object_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _with(**parts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value is an object that has these keys, and what stands there fits."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and fits(value[name]) for name, fits in parts.items())
    )


_has_counts = _with(**dict.fromkeys(ORIGIN_COUNTS, _is_count))


def _is_worth(value: Any) -> bool:
    """Older records have no measures."""
    return (
        _has_counts(value)
        and value["live"] <= value["groups"]
        and all(_or_null(_is_amount)(value.get(name)) for name in ORIGIN_MEASURES)
    )


_is_prediction = _with(rho=_or_null(lambda value: _is_number(value) and -1 <= value <= 1), tasks=_is_count)
_is_evolution = _with(step=_is_count, origin=_is_text, **dict.fromkeys(EVOLUTION, _is_count))

# A kind of value: its test, and what an error says of it.
_Kind = tuple[Callable[[Any], bool], str]
_SHARE: _Kind = (_or_null(lambda value: _is_number(value) and 0 <= value <= 1), "a share, or null")
_COUNT: _Kind = (_is_count, "a whole number at least 0")
_COUNTS: _Kind = (_list_of(_is_count), "a list of whole numbers at least 0")
_AMOUNT: _Kind = (_is_amount, "a number at least 0")
_ABOVE_0: _Kind = (lambda value: _is_number(value) and value > 0, "a number above 0")
_NUMBER: _Kind = (_is_number, "a number")
_NUMBERS: _Kind = (_list_of(_is_number), "a list of numbers")
_TEXT: _Kind = (_is_text, "a text")
_TEXTS: _Kind = (_list_of(_is_text), "a list of texts")
_BITS: _Kind = (lambda value: _is_text(value) and set(value) <= {"0", "1"}, "a text of 0 and 1")
_PAIRS: _Kind = (
    _list_of(lambda one: _list_of(_is_number)(one) and len(one) == 2),
    "a list of steps, each with its success",
)
# Dotted key that tables use → what stands there.
_PARTS: Mapping[str, _Kind] = {
    **dict.fromkeys(("zero_shot", "final"), _SHARE),
    "held_out.digest": _TEXT,
    "held_out.tasks": _COUNT,
    **dict.fromkeys(("held_out.zero_shot", "held_out.final"), _BITS),
    **{f"budget.{name}": _COUNT for name in _BUDGETS},
    **dict.fromkeys(("budget", "refused"), (_object_of(_is_count), "an object of whole numbers at least 0")),
    "seconds": (_object_of(_is_amount), "an object of numbers at least 0"),
    "seconds.total": _ABOVE_0,
    **dict.fromkeys(("seconds.warm_start", "evolution_seconds"), _AMOUNT),
    "facts.commit": _TEXT,
    **dict.fromkeys(("facts.versions", "threads"), (_object_of(_is_text), "an object of texts")),
    "facts.hardware.processor": _TEXT,
    **{f"curves.{name}": _NUMBERS for name in ("step", *CURVES)},
    **{f"signals.{kind}": _COUNTS for kind in SIGNALS},
    **{f"tasks.{column}": _NUMBERS for column in COLUMNS},
    **dict.fromkeys(("tasks.origin", "tasks.tool"), _TEXTS),
    **dict.fromkeys(("quality.sr_at_k", "quality.turns"), _NUMBER),
    "dev": _PAIRS,
    "evolutions": (_list_of(_is_evolution), f"a list of objects with step, origin, {', '.join(EVOLUTION)}"),
}
# As _PARTS, of keys that not every record has: an older one, or one of a run without preferences or with one trial.
_WHERE_GIVEN: Mapping[str, _Kind] = {
    "learning": (_object_of(_is_number), "an object of numbers"),
    "origins": (
        _object_of(_is_worth),
        f"for each origin an object with {', '.join((*ORIGIN_COUNTS, *ORIGIN_MEASURES))}, and no more live than groups",
    ),
    "predicted": (_object_of(_is_prediction), "for each predictor an object with rho, from -1 to 1 or null, and tasks"),
    "trials": (_list_of(_with(episodes=_is_count, success=_is_number)), "a list of objects with episodes and success"),
    "failures": (
        _with(examples=_object_of(_is_count), agents=_object_of(_object_of(_is_number))),
        "an object with examples and agents",
    ),
    "quality.ed_rel": (_or_null(_is_number), "a number, or null"),
    "quality.max_similarity": (_with(mean=_is_number), "an object with mean"),
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
        if (value := _if_given(found, key)) is not _MISSING and not fits(value):
            raise ValueError(f"{key} is {shown(value)}; expected {expected}")
    for keys, counted in _LENGTHS:
        length = _at(found, counted) if counted else len(_at(found, keys[0]))
        if wrong := [key for key in keys if len(_at(found, key)) != length]:
            raise ValueError(f"{wrong[0]} has {len(_at(found, wrong[0]))} values; {counted or keys[0]} says {length}")
    for key in ("zero_shot", "final"):
        bits = found["held_out"][key]
        if bits and found[key] is not None and abs(found[key] - bits.count("1") / len(bits)) > _LEFT_OUT:
            raise ValueError(f"{key} is {found[key]}, but held_out.{key} says {bits.count('1')} of {len(bits)} tasks")
    if found["arm"] != arm:
        raise ValueError(f"it is of the run {found['arm']}-{found['seed']}")
    return dict(found)


def _at(found: Mapping[str, Any], key: str) -> Any:
    """What stands at a dotted key. Raises KeyError or TypeError where nothing does."""
    return functools.reduce(lambda part, name: part[name], key.split("."), found)


_MISSING = object()


def _if_given(found: Mapping[str, Any], key: str) -> Any:
    """What stands at a dotted key; _MISSING where nothing does."""
    try:
        return _at(found, key)
    except (KeyError, TypeError):
        return _MISSING


_ENDING = ".jsonl.gz"
_LOCK = ".lock"


def path_of(out: Path, arm: str) -> Path:
    """The file with the records of an arm."""
    return out / "runs" / f"{arm}{_ENDING}"


def read_arm(out: Path, arm: str) -> dict[int, Record]:
    """Seed → record of an arm; empty where none is stored. Raises ValueError, with the path, for a damaged file."""
    path = path_of(out, arm)
    if not path.exists():
        return {}
    records: dict[int, Record] = {}
    where = str(path)
    try:
        for number, line in enumerate(expanded(path).splitlines(), 1):
            where = f"{path}, line {number}"
            record = check_record(parse_record(line), arm)
            if record["seed"] in records:
                raise ValueError(f"seed {record['seed']} has two records")
            records[record["seed"]] = record
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(
            f"{where} cannot be read ({error}); restore the file, or delete it and run the study again"
        ) from error
    return records


def read_all(out: Path) -> dict[tuple[str, int], Record]:
    """(arm, seed) → record of all that is stored. Raises ValueError, with the path, for a damaged file."""
    return {(arm, seed): record for arm in _arms(out) for seed, record in read_arm(out, arm).items()}


def _arms(out: Path) -> list[str]:
    return sorted(path.name.removesuffix(_ENDING) for path in (out / "runs").glob(f"*{_ENDING}"))


def read_run(out: Path, name: str) -> Record:
    """The record of the run ARM-SEED. Raises ValueError for a missing one, naming the seeds or arms that there are, and
    for a damaged file."""
    arm, _, seed = name.rpartition("-")
    found = read_arm(out, arm) if arm and seed.isascii() and seed.isdigit() else {}
    if not found or int(seed) not in found:
        seeds, arms = ", ".join(map(str, sorted(found))), ", ".join(_arms(out)) or "none"
        known = f"{arm} has the seeds {seeds}" if found else f"expected ARM-SEED, of the arms {arms}"
        raise ValueError(f"no record {name!r} in {out / 'runs'}; {known}")
    return found[int(seed)]


def read_runs(out: Path, jobs: Iterable[StudyRun]) -> dict[tuple[str, int], Record]:
    """(arm, seed) → record of those of these runs that have one.

    Raises ValueError for a record of other settings and for a damaged file.
    """
    jobs = list(jobs)
    arms = {arm: read_arm(out, arm) for arm in dict.fromkeys(job.arm for job in jobs)}
    records: dict[tuple[str, int], Record] = {}
    for job in jobs:
        if (record := arms[job.arm].get(job.seed)) is None:
            continue
        if different := mismatch(record, job.config):
            raise ValueError(
                f"{path_of(out, job.arm)} holds the run {job.name} with other settings: {different}. Choose another "
                "--out and --runs for these settings, or delete the file and the run directories of its arm"
            )
        records[job.arm, job.seed] = record
    return records


def store(out: Path, record: Record) -> None:
    """Adds a record to those of its arm, in place of one of the same seed.

    Readers see the old file or the new one; of several writers each waits for the one before. Raises StorageError if
    writing fails, and ValueError for a damaged file and for a record that is not strict JSON.
    """
    path = path_of(out, record["arm"])
    with _locked(path.parent):
        records = {**read_arm(out, record["arm"]), record["seed"]: record}
        replace_file(path, _compressed(b"".join(encode_record(records[seed], path) for seed in sorted(records))))


def _compressed(content: bytes) -> bytes:
    # gzip.compress writes a header that differs between versions of Python.
    made = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=0) as file:
        file.write(content)
    return made.getvalue()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Makes the folder, and waits until no other thread or process holds it."""
    with explaining(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / _LOCK, "a", opener=own_file)  # noqa: SIM115  closed below, which frees it
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

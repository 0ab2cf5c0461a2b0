"""Stored records: OUT/runs/ARM.jsonl.gz, one record on each line, in the order of seeds.

Those of a pretrained model are in OUT/pretrained.

The bytes depend only on the records and the compressor, because gzip stores no time and no name here.
"""

import functools
import gzip
import io
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, create_model

from cojax.registry.annotations import quote
from cojax.report.figures import CONVERSION_COUNTS
from cojax.signals import SIGNALS
from cojax.storage.episodes import decompress
from cojax.storage.files import encode_record, parse_record, replace_file
from .comparison import explain_mismatch
from .record import COLUMNS, CURVE_COLUMNS, ORIGIN_COUNTS, ORIGIN_MEASURES, Record
from .tables import ARMS, StudyRun

# A larger number means damage, and means of such numbers would overflow.
_MAX_NUMBER = 10**100
# How far a success may be from the share of solved tasks in `held_out`, which leaves out tasks whose episode was lost
# before or after training.
_MAX_DIFFERENCE = 0.05
_Number = Annotated[float, Field(ge=-_MAX_NUMBER, le=_MAX_NUMBER)]
_Amount = Annotated[float, Field(ge=0, le=_MAX_NUMBER)]
_Positive = Annotated[float, Field(gt=0, le=_MAX_NUMBER)]
_Share = Annotated[float, Field(ge=0, le=1)] | None  # None if there was nothing to evaluate on
_Correlation = Annotated[float, Field(ge=-1, le=1)] | None
_Count = Annotated[int, Field(ge=0, le=_MAX_NUMBER)]
_Bits = Annotated[str, Field(pattern="^[01]*$")]


def _make_model(common_kinds: Mapping[str, Any] | None = None, extra_type: Any = Any, **kinds: Any) -> Any:
    """A model with the keys of `common_kinds` and `kinds`; a key whose kind is a pair with a default may be missing.

    Values of other keys have the type `extra_type`.
    """
    fields: dict[str, Any] = {**(common_kinds or {}), **kinds}
    required_kinds: dict[str, Any] = {key: (kind, ...) for key, kind in fields.items() if not isinstance(kind, tuple)}
    required_kinds["__pydantic_extra__"] = (dict[str, extra_type], ...)  # type: ignore[valid-type]
    return create_model("Part", __config__=ConfigDict(strict=True, extra="allow"), **fields | required_kinds)


def _require_live_at_most_all(origin: Any) -> Any:
    if origin.live > origin.groups:
        raise ValueError(f"live is {origin.live}, more than the groups, {origin.groups}")
    return origin


_with_kind = dict.fromkeys
_BUDGET_KEYS = ("episodes", "turns", "tokens_sampled", "tokens_trained", "explorer_actions", "drafts", "tasks_added")
# Older records have no measures of origins.
_ORIGIN: Any = _make_model(_with_kind(ORIGIN_COUNTS, _Count) | _with_kind(ORIGIN_MEASURES, (_Amount | None, None)))
_EVOLUTION: Any = _make_model(_with_kind(CONVERSION_COUNTS, _Count), step=_Count, origin=str)
_PREDICTION: Any = _make_model(rho=_Correlation, tasks=_Count)
_TRIAL: Any = _make_model(episodes=_Count, success=_Number)
_SCHEMA = _make_model(
    {
        **_with_kind(("arm", "split"), str),
        **_with_kind(("seed", "steps"), int),
        **_with_kind(("settings", "config"), dict),
        **_with_kind(("zero_shot", "final"), _Share),
    },
    facts=_make_model(commit=str, versions=dict[str, str], hardware=_make_model(processor=str)),
    threads=dict[str, str],
    held_out=_make_model(digest=str, tasks=_Count, zero_shot=_Bits, final=_Bits),
    budget=_make_model(_with_kind(_BUDGET_KEYS, _Count), _Count),
    seconds=_make_model({"warm_start": _Amount, "total": _Positive}, _Amount),
    evolution_seconds=_Amount,
    curves=_make_model(_with_kind(("step", *CURVE_COLUMNS), list[_Number])),
    signals=_make_model(_with_kind(SIGNALS, list[_Count])),
    refused=dict[str, _Count],
    tasks=_make_model(_with_kind(COLUMNS, list[_Number]) | _with_kind(("origin", "tool"), list[str])),
    quality=_make_model(
        sr_at_k=_Number, turns=_Number, ed_rel=(_Number | None, None), max_similarity=(_make_model(mean=_Number), None)
    ),
    dev=list[Annotated[list[_Number], Field(min_length=2, max_length=2)]],
    evolutions=list[_EVOLUTION],
    # Not every record has these: an older one, or one of a run without preferences or with one trial.
    learning=(dict[str, _Number], {}),
    origins=(dict[str, Annotated[_ORIGIN, AfterValidator(_require_live_at_most_all)]], {}),
    predicted=(dict[str, _PREDICTION], {}),
    trials=(list[_TRIAL], []),
    initial_tools=(list[str], []),
    failures=(_make_model(examples=dict[str, _Count], agents=dict[str, dict[str, _Number]]), None),
)
# Keys whose values have equal lengths, and the key of that length; if it is empty, the first value sets the length.
_EQUAL_LENGTHS: Sequence[tuple[tuple[str, ...], str]] = (
    (("held_out.zero_shot", "held_out.final"), "held_out.tasks"),
    ((*(f"curves.{name}" for name in ("step", *CURVE_COLUMNS)), *(f"signals.{kind}" for kind in SIGNALS)), ""),
    (tuple(f"tasks.{column}" for column in COLUMNS), ""),
)


def check_record(record: Mapping[str, Any], arm: str) -> Record:
    """Returns `record` if it is a record of that arm. Raises ValueError if it is not."""
    try:
        _SCHEMA.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "missing":
            raise ValueError(f"a record has {key!r}, which is missing here") from None
        expectation = fault["msg"].replace("Input should be", "expected")
        if fault["type"] == "model_type":
            expectation = "expected an object"
        raise ValueError(f"{key} is {quote(fault['input'])}; {expectation}") from None
    for keys, length_key in _EQUAL_LENGTHS:
        length = _get(record, length_key) if length_key else len(_get(record, keys[0]))
        if wrong := [key for key in keys if len(_get(record, key)) != length]:
            raise ValueError(
                f"{wrong[0]} has {len(_get(record, wrong[0]))} values; {length_key or keys[0]} says {length}"
            )
    for key in ("zero_shot", "final"):
        bits = record["held_out"][key]
        if bits and record[key] is not None and abs(record[key] - bits.count("1") / len(bits)) > _MAX_DIFFERENCE:
            raise ValueError(f"{key} is {record[key]}, but held_out.{key} says {bits.count('1')} of {len(bits)} tasks")
    if record["arm"] != arm:
        raise ValueError(f"it belongs to the run {record['arm']}-{record['seed']}")
    return dict(record)


def _get(record: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key."""
    return functools.reduce(lambda value, key_part: value[key_part], key.split("."), record)


_FILE_ENDING = ".jsonl.gz"
FOLDERS = ("runs", "pretrained")
_STORE_LOCK = threading.Lock()


def make_path(results_folder: Path, arm: str) -> Path:
    """The file with the records of an arm."""
    paths = {folder: results_folder / folder / f"{arm}{_FILE_ENDING}" for folder in FOLDERS}
    own_folder = "pretrained" if "model.path" in ARMS.get(arm, {}) else "runs"
    return next((path for path in paths.values() if path.exists()), paths[own_folder])


def read_arm(results_folder: Path, arm: str) -> dict[int, Record]:
    """Seed → record of an arm; empty if none is stored. Raises ValueError, with the path, for a damaged file."""
    path = make_path(results_folder, arm)
    if not path.exists():
        return {}
    record_by_seed: dict[int, Record] = {}
    location = str(path)
    try:
        for line_number, line in enumerate(decompress(path).splitlines(), 1):
            location = f"{path}, line {line_number}"
            record = check_record(parse_record(line), arm)
            if record["seed"] in record_by_seed:
                raise ValueError(f"seed {record['seed']} has two records")
            record_by_seed[record["seed"]] = record
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(
            f"{location} cannot be read ({error}); restore the file, or delete it and run the study again"
        ) from error
    return record_by_seed


def read_all(out: Path) -> dict[tuple[str, int], Record]:
    """(arm, seed) → record, of all stored records. Raises ValueError, with the path, for a damaged file."""
    return {(arm, seed): record for arm in _list_arms(out) for seed, record in read_arm(out, arm).items()}


def _list_arms(results_folder: Path) -> list[str]:
    paths = (path for folder in FOLDERS for path in (results_folder / folder).glob(f"*{_FILE_ENDING}"))
    return sorted(path.name.removesuffix(_FILE_ENDING) for path in paths)


def read_run(results_folder: Path, run_name: str) -> Record:
    """The record of the run ARM-SEED.

    Raises ValueError for a missing record, with the seeds or arms that are stored, and for a damaged file.
    """
    arm, _, seed = run_name.rpartition("-")
    record_by_seed = read_arm(results_folder, arm) if arm and seed.isascii() and seed.isdigit() else {}
    if not record_by_seed or int(seed) not in record_by_seed:
        seeds_text, arms_text = (
            ", ".join(map(str, sorted(record_by_seed))),
            ", ".join(_list_arms(results_folder)) or "none",
        )
        hint = f"{arm} has the seeds {seeds_text}" if record_by_seed else f"expected ARM-SEED, of the arms {arms_text}"
        raise ValueError(f"no record {run_name!r} in {make_path(results_folder, arm).parent}; {hint}")
    return record_by_seed[int(seed)]


def read_runs(out: Path, jobs: Iterable[StudyRun]) -> dict[tuple[str, int], Record]:
    """(arm, seed) → record, for those of these runs that have one.

    Raises ValueError for a record of other settings and for a damaged file.
    """
    jobs = list(jobs)
    records_by_arm = {arm: read_arm(out, arm) for arm in dict.fromkeys(job.arm for job in jobs)}
    record_by_run: dict[tuple[str, int], Record] = {}
    for job in jobs:
        if (record := records_by_arm[job.arm].get(job.seed)) is None:
            continue
        if difference := explain_mismatch(record, job.config):
            raise ValueError(
                f"{make_path(out, job.arm)} holds the run {job.name} with other settings: {difference}. Choose another "
                "--out and --runs for these settings, or delete the file and the run directories of its arm"
            )
        record_by_run[job.arm, job.seed] = record
    return record_by_run


def store_record(results_folder: Path, record: Record) -> None:
    """Adds a record to those of its arm, in place of one with the same seed.

    Readers see the old file or the new one. Threads store one at a time, and only one process at a time holds OUT
    (`__main__`). Raises StorageError if writing fails, and ValueError for a damaged file and for a record that is not
    strict JSON.
    """
    path, content = make_path(results_folder, record["arm"]), io.BytesIO()
    with _STORE_LOCK:
        record_by_seed = {**read_arm(results_folder, record["arm"]), record["seed"]: record}
        # gzip.compress writes a header that differs between versions of Python.
        with gzip.GzipFile(filename="", mode="wb", fileobj=content, mtime=0) as gzip_file:
            gzip_file.write(b"".join(encode_record(record_by_seed[seed], path) for seed in sorted(record_by_seed)))
        replace_file(path, content.getvalue())

"""Reads a run directory for a report; every part of it is optional, as an interrupted run lacks some."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from cojax.storage.episodes import FINAL_EPISODES, ZERO_SHOT_EPISODES, Episodes, read_episodes
from cojax.storage.files import Log, StorageError, read_json
from cojax.types import Status

Json = dict[str, Any]
# The kinds of signal that every run may raise.
_OUR_KINDS = ("forgetting", "boundary", "rare")
_COLOUR_PATTERN = re.compile(r"#[0-9a-fA-F]{6}")
NOT_ADMITTED = "not admitted"


@dataclasses.dataclass(frozen=True)
class Run:
    """The contents of a run directory as plain JSON.

    `tasks` are by id, in the order of the pool; `expeditions` by step and number. `before` and `after` are episodes of
    some evaluation tasks, before training and after it; `zero_shot` and `final` are results on all of
    them. `origin` is from summary.json, or from model.json if the run has not ended. `fork` is fork.json of a run that
    `cojax fork` made.
    """

    folder: Path
    config: Json
    metrics: tuple[Json, ...]
    summary: Json
    origin: Json
    tasks: Mapping[str, Json]
    signals: tuple[Json, ...]
    drafts: tuple[Json, ...]
    expeditions: Mapping[tuple[int, int], Json]
    episodes: Episodes
    before: tuple[Json, ...] = ()
    after: tuple[Json, ...] = ()
    zero_shot: Json = dataclasses.field(default_factory=dict)
    final: Json = dataclasses.field(default_factory=dict)
    fork: Json = dataclasses.field(default_factory=dict)

    @property
    def synthesized_tasks(self) -> tuple[Json, ...]:
        """The tasks that evolution added. Initial tasks have no lineage, or one of step 0."""
        return tuple(task for task in self.tasks.values() if find_join_step(task))

    @property
    def kinds(self) -> dict[str, str]:
        """Kind of signal → the colour that the run stored for it, or "" if it stored none."""
        signal_entries = [entry for entry in self.config.get("code", {}).values() if {"kind", "colour"} <= entry.keys()]
        stored_colours = {str(entry["kind"]): str(entry["colour"]) for entry in signal_entries}
        signal_kinds = dict.fromkeys((*_OUR_KINDS, *(kind for row in self.metrics for kind in row.get("signals", {}))))
        colour_by_kind = {kind: stored_colours.get(kind, "") for kind in (*signal_kinds, *stored_colours)}
        return {kind: colour if _COLOUR_PATTERN.fullmatch(colour) else "" for kind, colour in colour_by_kind.items()}

    def numbered_drafts(self) -> Iterator[tuple[str, Json]]:
        """(name, draft) of every draft; the name is "STEP/NUMBER", its evolution and its number there from 0."""
        count_by_step: Counter[int] = Counter()
        for draft in self.drafts:
            yield f"{draft['step']}/{count_by_step[draft['step']]}", draft
            count_by_step[draft["step"]] += 1


def read_run(folder: str | Path) -> Run:
    """The contents of a run directory; its episodes are read later, step by step.

    Raises FileNotFoundError when `folder` is not a run directory, StorageError for a damaged file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"run directory {folder} not found; pass the workdir of a run, such as runs/desk")
    if not (folder / "config.json").exists() and not (folder / "metrics.jsonl").exists():
        raise FileNotFoundError(f"{folder} holds neither config.json nor metrics.jsonl; pass the workdir of a run")
    return Run(
        folder=folder,
        config=_read_json(folder / "config.json"),
        metrics=_read_log(folder / "metrics.jsonl", "step"),
        summary=(summary := _read_json(folder / "summary.json")),
        origin=summary.get("origin") or _read_json(folder / "model.json").get("origin", {}),
        tasks={record["id"]: record for record in _read_log(folder / "tasks.jsonl", "id", "query")},
        signals=_read_log(folder / "signals.jsonl", "step", "kind"),
        drafts=_read_log(folder / "drafts.jsonl", "step", "draft", "verdict"),
        expeditions={
            (record["step"], record["expedition"]): record
            for record in _read_log(folder / "expeditions.jsonl", "step", "expedition")
        },
        episodes=Episodes(folder / "episodes"),
        before=tuple(read_episodes(folder / ZERO_SHOT_EPISODES)),
        after=tuple(read_episodes(folder / FINAL_EPISODES)),
        zero_shot=_read_json(folder / "zero_shot.json"),
        final=_read_json(folder / "final.json"),
        fork=_read_json(folder / "fork.json"),
    )


def find_expedition(draft: Json) -> tuple[int, int] | None:
    """Step and number of the expedition that proposed a draft; None in a run that did not store it."""
    return (draft["step"], draft["expedition"]) if "expedition" in draft else None


def describe_origin(origin: Mapping[str, Any]) -> str:
    """Says how a policy began, how many demonstrations it was shown, and how it was trained since.

    `origin` is from summary.json. It lacks `shown` for an evaluated model folder, of which no more is known, and for a
    policy from scratch whose run is older than this record.
    """
    name, shown_count = Path(origin["folder"]).name, origin.get("shown")
    if name:
        phrases = [f"the model folder {name} as it is" if shown_count is None else f"pretrained from {name}"]
    else:
        phrases = ["from scratch", *(["shown an unknown number of demonstrations"] if shown_count is None else [])]
    if shown_count is not None:
        phrases.append(f"shown {shown_count:,} demonstrations" if shown_count else "shown no demonstrations")
    if epochs := origin.get("epochs"):
        phrases[-1] += " once each" if epochs == 1 else f" {epochs:g} times each on average"
        rank = origin["lora_rank"]
        phrases.append(f"learned by LoRA of rank {rank}" if rank else "learned by all weights")
    if steps := origin.get("steps"):
        co_evolved, evolve = f"then co-evolved for {steps:,} steps", origin["evolve"]
        phrases.append(co_evolved if evolve == "feedback" else f"then trained for {steps:,} steps (evolve={evolve})")
    return ", ".join(phrases)


def describe_fork(fork: Json) -> str:
    """Says from which run, at which step and without what a fork was made, the last fork first; "" for no fork."""
    phrases = [
        f"fork of {Path(entry['parent']).name} at step {entry['step']} without {entry['without'] or 'nothing'}"
        for entry in reversed(fork.get("forks", []))
    ]
    return ", itself a ".join(phrases) + (f", sampling seed {fork['seed']}" if fork.get("seed") is not None else "")


def count_verdicts(evolution: Mapping[str, Any]) -> dict[str, int]:
    """The number of drafts by verdict. With a probe, the valid tasks that it left out are NOT_ADMITTED.

    The record counts these among the discarded.
    """
    count_by_status = {status: evolution[status] for status in get_args(Status)}
    if "candidates" not in (probe := evolution.get("probe") or {}):
        return count_by_status
    refused_count = probe["candidates"] - sum(evolution["added"].values())
    return {**count_by_status, "discarded": count_by_status["discarded"] - refused_count, NOT_ADMITTED: refused_count}


def describe_probe(probe: Mapping[str, int]) -> str:
    """How much a probe tried, in words."""
    return f"{probe['candidates']:,} valid tasks tried in {probe['episodes']:,} episodes"


def read_scores(result: Json) -> dict[str, float]:
    """Task id → score, of zero_shot.json or final.json."""
    return {task_id: float(score) for task_id, score in (result.get("tasks") or {}).items() if score is not None}


def find_join_step(task: Json) -> int:
    """The step at which a task joined the pool."""
    return (task.get("lineage") or {}).get("step", 0)


def _read_log(path: Path, *required_keys: str) -> tuple[Json, ...]:
    """The records of a log. Raises StorageError for a record that lacks one of these keys."""
    records = tuple(Log(path).read())
    for line, record in enumerate(records, 1):
        if missing := [key for key in required_keys if key not in record]:
            raise StorageError(
                f"{path}, line {line}: no {missing[0]}; no run wrote this. Restore the file from a copy, or delete it."
            )
    return records


def begin_text(text: str, max_characters: int) -> str:
    """The text, or the beginning of one of more than `max_characters` characters."""
    return text if len(text) <= max_characters else f"{text[:max_characters]} …"


def cut_text(text: str, max_length: int) -> str:
    """The text, or the beginning of one of more than `max_length` characters and how many are left out."""
    return text if len(text) <= max_length else f"{text[:max_length]} … [{len(text) - max_length:,} characters more]"


def read_sound_json(path: Path, fix_hint: str) -> Json:
    """Reads the JSON object in a file. Raises StorageError, with the `fix_hint`, if it holds none."""
    try:
        return read_json(path)
    except ValueError as error:
        raise StorageError(f"{path} is not JSON ({error}). {fix_hint}") from error


def _read_json(path: Path) -> Json:
    return read_sound_json(path, "Restore it from a copy, or delete it.") if path.exists() else {}

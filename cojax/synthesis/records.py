"""Makes the records of an evolution: the lines of expeditions.jsonl and drafts.jsonl, and each new task's lineage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cojax.explorer import Exploration
from cojax.synthesis.expeditions import Expedition
from cojax.types import Lineage, Task, TaskDraft, Verdict, to_json


def lineage(expedition: Expedition, draft: TaskDraft, verdict: Verdict, explorer: str, step: int) -> Lineage:
    """The lineage of the task that the draft became. An unguided expedition gives it no parent and no episode."""
    return Lineage(
        parent=expedition.task.id if expedition.context else "",
        signal=expedition.signal,
        episode=expedition.context.episode if expedition.context else "",
        explorer=explorer,
        runs=draft.runs,
        verdict=verdict.status,
        evidence=verdict.evidence,
        step=step,
    )


def draft_record(
    expedition: Expedition,
    draft: TaskDraft,
    verdict: Verdict,
    task: Task | None,
    step: int,
    number: int,
    believed: float | None,
) -> dict[str, Any]:
    """One line of drafts.jsonl.

    `number` is the expedition's number within the evolution, and `task` the task that the draft became, None if it was
    refused. `predicted` has the success that was predicted of the draft before any training on it, in [0, 1]:
    `believed` is that of beliefs, None if the evolution reads none. That of a probe is added by the admission.
    """
    return {
        "step": step,
        "expedition": number,
        "origin": expedition.origin,
        "parent": expedition.task.id if expedition.context else "",
        "episode": expedition.context.episode if expedition.context else "",
        "signal": expedition.signal,
        "draft": to_json(draft),
        "verdict": to_json(verdict),
        "task": task.id if task else "",
        "predicted": {"beliefs": believed, "probe": None},
    }


def expedition_record(
    expedition: Expedition, exploration: Exploration, errors: Sequence[Exception], step: int, number: int
) -> dict[str, Any]:
    """One line of expeditions.jsonl.

    It holds the context, the number of actions of each run and how many of them worked, why runs failed, and what ended
    the expedition early.
    """
    context = expedition.context
    runs: dict[int, list[bool]] = {}
    for triplet in exploration.triplets:
        runs.setdefault(triplet.run, []).append(triplet.observation.ok)
    written = {name: value for name, value in to_json(context).items() if name != "task"} if context else None
    return {
        "step": step,
        "expedition": number,
        "origin": expedition.origin,
        "task": expedition.task.id,
        "signal": expedition.signal,
        "context": written,
        "runs": [{"run": run, "actions": len(worked), "ok": sum(worked)} for run, worked in runs.items()],
        "failures": list(exploration.failures),
        "error": "; ".join(map(str, errors)),
    }

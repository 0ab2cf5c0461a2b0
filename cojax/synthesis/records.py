"""What an evolution leaves on disk: a line for each expedition and each draft, and the lineage of each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cojax.explorer import Exploration
from cojax.synthesis.expeditions import Expedition
from cojax.types import Lineage, Task, TaskDraft, Verdict, to_json


def lineage(expedition: Expedition, draft: TaskDraft, verdict: Verdict, explorer: str, step: int) -> Lineage:
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
    expedition: Expedition, draft: TaskDraft, verdict: Verdict, task: Task | None, step: int, number: int
) -> dict[str, Any]:
    """One line of drafts.jsonl; `expedition` is the number of its expedition within the evolution."""
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
    }


def expedition_record(
    expedition: Expedition, exploration: Exploration, errors: Sequence[Exception], step: int, number: int
) -> dict[str, Any]:
    """One line of expeditions.jsonl: the context, how many actions each run took and how many of them worked, what
    broke runs, and what ended the expedition early."""
    context = expedition.context
    runs: dict[int, list[bool]] = {}
    for triplet in exploration.triplets:
        runs.setdefault(triplet.run, []).append(triplet.observation.ok)
    told = {name: value for name, value in to_json(context).items() if name != "task"} if context else None
    return {
        "step": step,
        "expedition": number,
        "origin": expedition.origin,
        "task": expedition.task.id,
        "signal": expedition.signal,
        "context": told,
        "runs": [{"run": run, "actions": len(worked), "ok": sum(worked)} for run, worked in runs.items()],
        "failures": list(exploration.failures),
        "error": "; ".join(map(str, errors)),
    }

"""What an evaluation measures beside success: a benchmark's own measures, and the kinds by which tasks are listed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ml_collections import ConfigDict

from cojax import worlds
from cojax.scoring import Estimate, average_at_k, estimate, kinds_by
from cojax.types import Group, Task

Measure = Callable[[Sequence[Group]], dict[str, Any]]


def _of_appworld(groups: Sequence[Group]) -> dict[str, Any]:
    """TGC and SGC, both with intervals over scenarios, as the tasks of one scenario are similar."""
    found = worlds.part("appworld.goal_completion").goal_completion(groups)
    tgc = dataclasses.replace(estimate(found.tgc_by_scenario, found.runs), value=found.tgc, count=found.tasks)
    return {"TGC": _percent(tgc), "SGC": _percent(estimate(found.sgc_by_scenario, found.runs))}


def _of_bfcl(groups: Sequence[Group]) -> dict[str, Any]:
    """The benchmark's accuracy: the share of tasks with a valid episode that are solved, in per cent."""
    return {"accuracy": _percent(average_at_k(groups))}


def _percent(found: Estimate) -> dict[str, float]:
    return {"value": 100 * found.value, "low": 100 * found.low, "high": 100 * found.high, "count": found.count}


# Environment → the benchmark's measures of a split, in per cent; and the kinds of task by which success is listed.
MEASURES: dict[str, Measure] = {"appworld": _of_appworld, "bfcl": _of_bfcl}
KINDS: dict[str, tuple[str, Callable[[Task], Iterable[str]]]] = {
    "appworld": ("scenario", lambda t: (worlds.part("appworld.goal_completion").scenario(t),))
}


def kinds(config: ConfigDict) -> tuple[str, Callable[[Task], Iterable[str]]]:
    """What success is listed by, and the kinds of a task: the environment's own, or those of `evaluation.by`."""
    if known := KINDS.get(config.environment.name):
        return known
    key = config.evaluation.by
    return (key, kinds_by(key)) if key else ("", lambda task: ())

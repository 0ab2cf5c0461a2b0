"""Admission: which of the tasks that an evolution found enter the pool, where it may find more than the pool takes."""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from cojax.registry.annotations import Range
from cojax.synthesis.pipeline import Synthesis
from cojax.types import Group, Task

# The worth of a candidate that was solved in s of n episodes, by what a probe prefers. Whole numbers are divided once,
# so that equal worths are equal to the bit.
_WORTH: dict[str, Callable[[int, int], float]] = {
    "learnable": lambda s, n: s * (n - s) / (n * n) if n else 0.0,
    "hardest": lambda s, n: (n - s) / n if s else 0.0,
}


class Admission(Protocol):
    """Tries candidates with the present policy, without an update, and chooses among them."""

    @property
    def candidates(self) -> int:
        """How many candidates an evolution looks for, for each task that it may add."""

    @property
    def attempts(self) -> int:
        """Episodes of each candidate."""

    def choose(self, groups: Sequence[Group], budget: int, seed: tuple) -> Sequence[Task]:
        """At most `budget` of the tasks of these groups, in their order."""


@dataclasses.dataclass(frozen=True)
class Probe:
    """Keeps the candidates of the greatest worth. It follows from p, the share of `attempts` episodes that succeed.

    `prefer` says what is worth most. `learnable`: p(1 − p), tasks solved half of the time (sampling for learnability,
    2408.15099). `hardest`: 1 − p for p above 0, the least solved of those that were solved at all; a task that is never
    solved is worth nothing. Candidates that no episode was valid for count as p = 0. The share `unselected` of the
    tasks kept is drawn from all candidates alike instead, as half of a batch is in that paper. Chance decides between
    equals.
    """

    candidates: Annotated[int, Range(1, 1000)] = 10
    attempts: Annotated[int, Range(2, 10_000)] = 8
    unselected: Annotated[float, Range(0.0, 1.0)] = 0.5
    prefer: Literal["learnable", "hardest"] = "learnable"

    def choose(self, groups: Sequence[Group], budget: int, seed: tuple) -> Sequence[Task]:
        rng = random.Random(repr(("admission", seed)))
        order = rng.sample(range(len(groups)), len(groups))
        free = order[: min(round(self.unselected * budget), budget)]
        worth = [_WORTH[self.prefer](group.solved, len(group.valid)) for group in groups]
        # The sort is stable: equals stay in random order.
        best = sorted(order[len(free) :], key=lambda place: -worth[place])
        kept = {*free, *best[: budget - len(free)]}
        return [group.task for place, group in enumerate(groups) if place in kept]


def everything() -> None:
    """Every task that is found enters the pool; none is tried."""
    return None


ADMISSIONS: dict[str, Callable[..., Admission | None]] = {"all": everything, "probe": Probe}


def admit(synthesis: Synthesis, groups: Sequence[Group], kept: Sequence[Task]) -> Synthesis:
    """The synthesis with the tasks `kept` alone; `groups` are the episodes of all its tasks.

    Each draft's record and each task's lineage say how often its task was solved. A draft whose task is not kept counts
    as discarded. `probe` has the cost, in all and by origin, and the share of live groups.
    """
    tried = {group.task.id: group for group in groups}
    ids = {task.id for task in kept}
    dropped = len(synthesis.tasks) - len(ids)
    counts = {
        **synthesis.counts,
        "accepted": synthesis.counts["accepted"] - dropped,
        "discarded": synthesis.counts["discarded"] + dropped,
    }
    drafts = tuple(
        _draft_record(record, tried[record["task"]], record["task"] in ids) if record["task"] else record
        for record in synthesis.drafts
    )
    tasks = tuple(_with_evidence(task, tried[task.id]) for task in synthesis.tasks if task.id in ids)
    return dataclasses.replace(synthesis, tasks=tasks, drafts=drafts, counts=counts, probe=_cost(groups, ids))


def _success(group: Group) -> float:
    return group.solved / len(group.valid) if group.valid else 0.0


def _line(group: Group) -> str:
    return f"probed: {group.solved} of {len(group.valid)} episodes of the present policy solved it"


def _draft_record(record: Mapping[str, Any], group: Group, kept: bool) -> dict[str, Any]:
    verdict = record["verdict"]
    evidence = [*verdict["evidence"], _line(group), *([] if kept else ["not admitted: others are worth more"])]
    verdict = {**verdict, "evidence": evidence, "status": verdict["status"] if kept else "discarded"}
    if group.valid:
        verdict["difficulty"] = 1.0 - _success(group)
    predicted = {**record["predicted"], "probe": _success(group) if group.valid else None}
    return {**record, "verdict": verdict, "task": record["task"] if kept else "", "predicted": predicted}


def _with_evidence(task: Task, group: Group) -> Task:
    assert task.lineage is not None, "a synthesized task has a lineage"
    lineage = dataclasses.replace(task.lineage, evidence=(*task.lineage.evidence, _line(group)))
    return dataclasses.replace(task, lineage=lineage)


def _cost(groups: Sequence[Group], kept: set[str]) -> dict[str, Any]:
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    chosen = [group for group in groups if group.task.id in kept]
    origins = {
        origin: _played([group for group in groups if group.task.origin == origin])
        for origin in sorted({group.task.origin for group in groups})
    }
    return {
        **_played(groups),
        "tokens": sum(len(turn.action_tokens) for trajectory in trajectories for turn in trajectory.turns),
        "live": sum(group.live for group in groups) / max(1, len(groups)),
        "live_kept": sum(group.live for group in chosen) / max(1, len(chosen)),
        "origins": origins,
    }


def _played(groups: Sequence[Group]) -> dict[str, int]:
    """The number of candidates, of their episodes, and of the environment steps of these."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    return {
        "candidates": len(groups),
        "episodes": len(trajectories),
        "turns": sum(len(trajectory.turns) for trajectory in trajectories),
    }

"""Guidance for explorers and confidence in signals, which every kind of signal has in addition to its detector.

A signal from a single visit may be due to chance: even an almost mastered task may fail once in eight attempts. The
confidence follows from the Beta posterior over the task's success rate p after s successes and f failures,

    p ~ Beta(1 + s, 1 + f).
"""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from scipy.special import betainc


@dataclasses.dataclass(frozen=True)
class Guidance:
    """What an explorer is asked to do with a kind of context.

    `rehearse` is the share of expeditions that follow the task's solution; the others try actions around the focus.
    `change` is the probability that a rehearsed step is dropped or replaced. `whole` says whether every task found must
    use all tools of the context's plan: the scripted explorer then drafts no others, an explorer with a model ignores
    it. `objectives` are texts with the field {tools}. An explorer with a model also reads the `reason` why a record was
    chosen, before it reflects on it, and the `purpose` of going back. Raises ValueError for a share outside [0, 1] and
    for an objective with another field.
    """

    objectives: tuple[str, ...]
    reason: str
    purpose: str
    rehearse: float = 0.5
    change: float = 0.35
    whole: bool = False

    def __post_init__(self) -> None:
        for field_name, share in (("rehearse", self.rehearse), ("change", self.change)):
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"guidance: {field_name} is {share}; expected a share from 0 to 1")
        self.objectives_with("")

    def objectives_with(self, tools: str) -> tuple[str, ...]:
        """The objectives with `tools` filled in."""
        try:
            return tuple(objective.format(tools=tools) for objective in self.objectives)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"guidance: the only field of an objective is {{tools}}, found {error}") from error


_GUIDANCE_TEXTS = tomllib.loads(Path(__file__).with_name("guidance.toml").read_text())
# Kind of context → its guidance.
GUIDANCE: Mapping[str, Guidance] = {
    kind: Guidance(**{**texts, "objectives": tuple(texts["objectives"])}) for kind, texts in _GUIDANCE_TEXTS.items()
}
TRAJECTORY = GUIDANCE["trajectory"]
# The kind of a context with a plan, unless it has another kind of those in PLAN_GUIDANCE.
PLAN = "posterior"
PLAN_GUIDANCE = {kind: GUIDANCE[kind] for kind in ("frontier", PLAN)}


@dataclasses.dataclass(frozen=True)
class Visit:
    """One visit of a task: its step, and how many valid trajectories succeeded and failed; fractions are allowed."""

    step: int
    solved: float
    failed: float


def above(rate: float, visits: Sequence[Visit]) -> float:
    """P(p ≥ rate) given these visits, with p the task's success rate."""
    successes, failures = sum(visit.solved for visit in visits), sum(visit.failed for visit in visits)
    return float(1.0 - betainc(1.0 + successes, 1.0 + failures, rate))


def step_of(episode: str) -> int:
    """The step of an episode id STEP-TASK-SAMPLE; 0 for an id of another form."""
    step_text = episode.partition("-")[0]
    return int(step_text) if step_text.isdecimal() and len(step_text) < 10 else 0


def task_of(name: str) -> str:
    """The task of an episode id STEP-TASK-SAMPLE or of its session, which adds the number of the attempt.

    The whole name if it is of another form.
    """
    name_parts = name.split("-")
    return name_parts[1] if len(name_parts) in (3, 4) else name

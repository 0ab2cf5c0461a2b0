"""What the failure agent learns from: pairs of failures alone. Nothing here can hold an expert or a success."""

import dataclasses
import random
from collections.abc import Callable, Iterable, Sequence

from cojax.learner.batch import Pair, mark_sampled
from cojax.types import Group, Trajectory


@dataclasses.dataclass(frozen=True)
class Failure:
    """A valid trajectory with a reward below 1, whose every action was sampled from a policy.

    Raises ValueError for a success, for an episode that says nothing about the policy, and for actions that no policy
    sampled, such as an expert's.
    """

    trajectory: Trajectory

    def __post_init__(self) -> None:
        t = self.trajectory
        if t.reward >= 1.0:
            raise ValueError(f"episode {t.episode!r} is a success (reward {t.reward:g}); expected a failure")
        if not t.valid:
            raise ValueError(f"episode {t.episode!r} was lost ({t.outcome}); expected a failure of the policy")
        if not t.turns or any(turn.weights_version < 0 for turn in t.turns):
            raise ValueError(f"episode {t.episode!r} was not sampled from a policy; expected a failure of one")


def list_failures(groups: Iterable[Group]) -> list[Failure]:
    """The failures of these groups from which something can be learned, in order."""
    return [Failure(t) for group in groups for t in group.valid if t.turns and t.reward < 1.0 and mark_sampled(t).any()]


def make_pairs(
    failures: Sequence[Failure],
    margin: float,
    seed: tuple[int | str, ...],
    weight: float = 1.0,
    *,
    played_by_other: Callable[[Trajectory], bool] = lambda trajectory: False,
) -> list[Pair]:
    """A pair (better, worse) for each failure that another of its task beats by more than `margin` in partial reward.

    `seed`, the task and the worse episode decide which better one is drawn. `played_by_other` says which episodes the
    learning policy did not sample.
    """
    by_task: dict[str, list[Failure]] = {}
    for failure in failures:
        by_task.setdefault(failure.trajectory.task.id, []).append(failure)
    pairs = []
    for worse in failures:
        task = worse.trajectory.task.id
        candidates = [peer for peer in by_task[task] if peer.trajectory.partial > worse.trajectory.partial + margin]
        if candidates:
            better = random.Random(repr((*seed, task, worse.trajectory.episode))).choice(candidates)
            sides = [mark_unsampled(t) if played_by_other(t) else t for t in (better.trajectory, worse.trajectory)]
            pairs.append(Pair(sides[0], sides[1], weight))
    return pairs


def mark_unsampled(trajectory: Trajectory) -> Trajectory:
    """Marks the trajectory as one that the learning policy did not sample, so that its log-probs are not compared."""
    turns = (dataclasses.replace(turn, weights_version=-1, spans=()) for turn in trajectory.turns)
    return dataclasses.replace(trajectory, turns=tuple(turns))

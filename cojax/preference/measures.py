"""Measures of what the agents of a round played: successes, failures, hard negatives, and how the failures differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cojax.quality import HashedNgrams, neighbour_similarity
from cojax.types import Group, Trajectory, signature

# Nearest neighbours in SR@k, and the most failures that it compares.
_K, _MOST = 5, 2_000


def played(groups: Sequence[Group], hard: float) -> dict[str, Any]:
    """What one agent played in a round.

    episodes         number of valid episodes
    failures, hard   number of episodes of reward below 1, and of those with a partial reward of at least `hard`
    success          share of episodes that succeed
    partial, turns   mean partial reward, and mean number of turns
    distinct         share of a task's failures whose actions differ from one another's, mean over failures
    ends             the same for the checks that were passed
    sr_at_k          mean cosine of each failure's actions to the k = 5 nearest of other failures; lower is more diverse

    What is a mean over no episodes is left out.
    """
    valid = [trajectory for group in groups for trajectory in group.valid]
    failures = [trajectory for trajectory in valid if trajectory.reward < 1.0]
    found: dict[str, Any] = {
        "episodes": len(valid),
        "failures": len(failures),
        "hard": sum(trajectory.partial >= hard for trajectory in failures),
    }
    if valid:
        found["success"] = 1.0 - len(failures) / len(valid)
        found["partial"] = sum(trajectory.partial for trajectory in valid) / len(valid)
        found["turns"] = sum(len(trajectory.turns) for trajectory in valid) / len(valid)
    if failures:
        found["distinct"] = len({(t.task.id, _actions(t)) for t in failures}) / len(failures)
        found["ends"] = len({(t.task.id, t.checks) for t in failures}) / len(failures)
    if len(failures) > 1:
        texts = [_actions(trajectory) for trajectory in failures[:_MOST]]
        found["sr_at_k"] = round(neighbour_similarity(HashedNgrams()(texts), _K) or 0.0, 6)
    return found


def _actions(trajectory: Trajectory) -> str:
    return "\n".join(signature(turn.action) for turn in trajectory.turns)

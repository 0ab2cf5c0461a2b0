"""Advantages of one group: how much its trajectories are worth learning from, as a rule relative to their siblings.

Each function maps the K ≥ 2 valid trajectories of a group to one entry each: a number; or one for each turn; or, for a
turn, one for each of its action tokens. A masked entry (numpy.ma) is not learned from, and no weighting counts its
tokens; a trajectory that is masked throughout is still one of its group's K. Settings are keyword-only. A group whose
advantages are all exactly 0 is flat: it teaches nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from cojax.registry import Range
from cojax.types import Trajectory

Advantage = Callable[..., Any]


def rewards(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """float64[K]."""
    return np.array([trajectory.reward for trajectory in trajectories], np.float64)


def group_relative(trajectories: Sequence[Trajectory], *, epsilon: Annotated[float, Range(0.0)] = 1e-6) -> np.ndarray:
    """Â_k = (r_k − mean r) / (std r + ε), the standard deviation over K − 1 (GRPO, arXiv 2402.03300, §4.1.2)."""
    return _normalised(rewards(trajectories), epsilon)


def mean_centred(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Â_k = r_k − mean r: easy and hard tasks are not blown up by a small deviation (Dr. GRPO, arXiv 2503.20783)."""
    return _centred(rewards(trajectories))


def leave_one_out(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Â_k = r_k − mean of the other K − 1 rewards = K/(K−1) · (r_k − mean r) (RLOO, arXiv 2402.14740)."""
    return _centred(rewards(trajectories)) * (len(trajectories) / (len(trajectories) - 1))


def success(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Â_k = 1 where r_k ≥ 1, else 0: the policy imitates its successes (rejection sampling; ReST, arXiv 2308.08998).

    With `loss="grpo"`, one update a step and no KL term this is the gradient of their log-likelihood.
    """
    return (rewards(trajectories) >= 1.0).astype(np.float64)


def overlong_penalty(
    trajectories: Sequence[Trajectory],
    *,
    longest: Annotated[int, Range(1)],
    margin: Annotated[int, Range(1)],
    epsilon: Annotated[float, Range(0.0)] = 1e-6,
) -> np.ndarray:
    """`group_relative` of r_k plus a soft penalty on |τ_k|, its action tokens (DAPO, arXiv 2503.14476, Eq. 13).

    The penalty falls from 0 at `longest` − `margin` to −1 at `longest`, and stays there.
    """
    lengths = np.array([sum(len(turn.action_tokens) for turn in t.turns) for t in trajectories], np.float64)
    penalty = np.clip((longest - margin - lengths) / margin, -1.0, 0.0)
    return _normalised(rewards(trajectories) + penalty, epsilon)


def truncated_masked(
    trajectories: Sequence[Trajectory], *, epsilon: Annotated[float, Range(0.0)] = 1e-6
) -> np.ma.MaskedArray:
    """`group_relative` of the episodes that ended by themselves; truncated ones are neither learned from nor compared
    with, as their reward says where they were cut (DAPO's overlong filtering, arXiv 2503.14476, §3.4)."""
    cut = np.array([trajectory.outcome == "truncated" for trajectory in trajectories])
    values = np.ma.masked_array(np.zeros(len(trajectories)), mask=cut)
    if (~cut).sum() >= 2:
        values[~cut] = _normalised(rewards(trajectories)[~cut], epsilon)
    return values


def turn_level(
    trajectories: Sequence[Trajectory],
    *,
    coefficient: Annotated[float, Range(0.0)] = 0.2,
    epsilon: Annotated[float, Range(0.0)] = 1e-6,
) -> list[np.ndarray]:
    """Â_kj = Â_k + coefficient · (o_kj − mean o) / (std o + ε): the outcome's credit and that of the turn itself.

    Â_k is `group_relative`; o_kj is 1 where the environment took turn j of trajectory k, else 0, compared over all
    turns of the group (after MT-GRPO, arXiv 2505.11821, which has rewards of its own for turns).
    """
    outcome = _normalised(rewards(trajectories), epsilon)
    worked = [np.array([turn.observation.ok for turn in t.turns], np.float64) for t in trajectories]
    every = np.concatenate(worked)
    credit = coefficient * _normalised(every, epsilon) if every.size >= 2 else np.zeros_like(every)
    ends = np.cumsum([len(turns) for turns in worked])[:-1]
    return [value + turns for value, turns in zip(outcome, np.split(credit, ends), strict=True)]


def spread(values: Any, trajectories: Sequence[Trajectory]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What an advantage returned, for all tokens of each trajectory: float64[n], and bool[n], false where masked.

    A number stands for a whole trajectory or turn, prompt included; numbers of tokens leave the prompt at 0. Raises
    ValueError.
    """
    if len(values) != len(trajectories):
        raise ValueError(f"the advantage returned {len(values)} entries for {len(trajectories)} trajectories")
    return [_of_trajectory(value, trajectory) for value, trajectory in zip(values, trajectories, strict=True)]


def _of_trajectory(value: Any, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    turns = trajectory.turns
    entries = [value] * len(turns) if _single(value) else list(value)
    where = f"the advantage of episode {trajectory.episode!r}"
    if len(entries) != len(turns):
        raise ValueError(f"{where} has {len(entries)} entries for {len(turns)} turns; expected a number, or one a turn")
    credit, kept = [np.zeros(0)], [np.zeros(0, bool)]
    for entry, turn in zip(entries, turns, strict=True):
        prompt, action = len(turn.prompt_tokens), len(turn.action_tokens)
        numbers, masked = np.ma.getdata(entry), np.ma.getmaskarray(np.ma.asarray(entry))
        if not _single(entry) and len(numbers) != action:
            raise ValueError(
                f"{where} has {len(numbers)} entries for {action} tokens of a turn; expected a number, or one a token"
            )
        shown, shown_masked = (numbers, masked) if _single(entry) else (0.0, False)
        credit += [np.full(prompt, shown, np.float64), np.broadcast_to(np.asarray(numbers, np.float64), action)]
        kept += [np.full(prompt, np.logical_not(shown_masked)), np.broadcast_to(~masked, action)]
    values, keep = np.concatenate(credit), np.concatenate(kept)
    if not np.isfinite(values[keep]).all():
        raise ValueError(f"{where} is not finite: {values[keep]}; mask with numpy.ma what is not to be learned from")
    return np.where(keep, values, 0.0), keep


def _single(value: Any) -> bool:
    """Whether it is one number, of whichever library, or masked."""
    return not isinstance(value, (list, tuple)) and np.ndim(value) == 0


def _normalised(values: np.ndarray, epsilon: float) -> np.ndarray:
    """Of mean 0, over the deviation over n − 1 and ε."""
    return _centred(values) / (values.std(ddof=1) + epsilon)


def _centred(values: np.ndarray) -> np.ndarray:
    """What sums to 0; exactly 0 where all are alike, which the rounding of a mean does not grant."""
    return np.zeros_like(values) if (values == values[0]).all() else values - values.mean()


ADVANTAGES: Mapping[str, Advantage] = {
    "group_relative": group_relative,
    "mean_centred": mean_centred,
    "leave_one_out": leave_one_out,
    "success": success,
    "overlong_penalty": overlong_penalty,
    "truncated_masked": truncated_masked,
    "turn_level": turn_level,
}

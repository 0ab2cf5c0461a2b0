"""Advantages: how much to learn from each trajectory of a group, usually relative to the others.

An advantage maps the K ≥ 2 valid trajectories of a group to one entry each: a number, or one number for each turn, or
for each turn one number for each of its action tokens. A masked entry (numpy.ma) is not learned from, and no weighting
counts its tokens; a trajectory that is masked throughout still counts in K. Settings are keyword-only. A group whose
advantages are all exactly 0 is flat: it has no policy gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from cojax.registry import Range
from cojax.types import Trajectory

Advantage = Callable[..., Any]


def rewards(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """The rewards of K trajectories, float64[K]."""
    return np.array([trajectory.reward for trajectory in trajectories], np.float64)


def group_relative(trajectories: Sequence[Trajectory], *, epsilon: Annotated[float, Range(0.0)] = 1e-6) -> np.ndarray:
    """Â_k = (r_k − mean r) / (std r + ε), the standard deviation over K − 1 (GRPO, arXiv 2402.03300, §4.1.2)."""
    return _normalise(rewards(trajectories), epsilon)


def mean_centred(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Â_k = r_k − mean r: no small deviation amplifies easy and hard tasks (Dr. GRPO, arXiv 2503.20783)."""
    return _centre(rewards(trajectories))


def leave_one_out(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Â_k = r_k − mean of the other K − 1 rewards = K/(K−1) · (r_k − mean r) (RLOO, arXiv 2402.14740)."""
    return _centre(rewards(trajectories)) * (len(trajectories) / (len(trajectories) - 1))


def success(trajectories: Sequence[Trajectory]) -> np.ndarray:
    """Â_k = 1 where r_k ≥ 1, else 0: the policy imitates its successes (rejection sampling; ReST, arXiv 2308.08998).

    With `loss="grpo"`, one update a step and no KL term, the gradient is that of their log-likelihood.
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
    action_lengths = np.array([sum(len(turn.action_tokens) for turn in t.turns) for t in trajectories], np.float64)
    penalty = np.clip((longest - margin - action_lengths) / margin, -1.0, 0.0)
    return _normalise(rewards(trajectories) + penalty, epsilon)


def truncated_masked(
    trajectories: Sequence[Trajectory], *, epsilon: Annotated[float, Range(0.0)] = 1e-6
) -> np.ma.MaskedArray:
    """`group_relative` of the episodes that were not truncated; truncated ones are neither learned from nor compared.

    A truncated episode's reward depends on where it was cut off (DAPO's overlong filtering, arXiv 2503.14476, §3.4).
    """
    is_truncated = np.array([trajectory.outcome == "truncated" for trajectory in trajectories])
    values: np.ma.MaskedArray = np.ma.masked_array(np.zeros(len(trajectories)), mask=is_truncated)
    if (~is_truncated).sum() >= 2:
        values[~is_truncated] = _normalise(rewards(trajectories)[~is_truncated], epsilon)
    return values


def turn_level(
    trajectories: Sequence[Trajectory],
    *,
    coefficient: Annotated[float, Range(0.0)] = 0.2,
    epsilon: Annotated[float, Range(0.0)] = 1e-6,
) -> list[np.ndarray]:
    """Â_kj = Â_k + coefficient · (o_kj − mean o) / (std o + ε): credit for the outcome plus credit for the turn.

    Â_k is `group_relative`. o_kj is 1 where the environment accepted the action of turn j of trajectory k, else 0; its
    mean and deviation are over all turns of the group (after MT-GRPO, arXiv 2505.11821, which rewards turns itself).
    """
    outcome_advantages = _normalise(rewards(trajectories), epsilon)
    ok_flags = [np.array([turn.observation.ok for turn in t.turns], np.float64) for t in trajectories]
    all_flags = np.concatenate(ok_flags)
    credit = coefficient * _normalise(all_flags, epsilon) if all_flags.size >= 2 else np.zeros_like(all_flags)
    boundaries = np.cumsum([len(flags) for flags in ok_flags])[:-1]
    return [value + credits for value, credits in zip(outcome_advantages, np.split(credit, boundaries), strict=True)]


def spread_entries(entries: Any, trajectories: Sequence[Trajectory]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Spreads an advantage's entries over all n tokens of each trajectory: float64[n], bool[n] (false: masked).

    One number for a trajectory or a turn holds for all of its tokens, including the prompt. With one number for each
    action token the prompt has 0. Raises ValueError for another number of entries, and for one that is not finite.
    """
    if len(entries) != len(trajectories):
        raise ValueError(f"the advantage returned {len(entries)} entries for {len(trajectories)} trajectories")
    return [_spread_entry(entry, trajectory) for entry, trajectory in zip(entries, trajectories, strict=True)]


def _spread_entry(trajectory_entry: Any, trajectory: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    turns = trajectory.turns
    entries = [trajectory_entry] * len(turns) if _is_scalar(trajectory_entry) else list(trajectory_entry)
    label = f"the advantage of episode {trajectory.episode!r}"
    if len(entries) != len(turns):
        raise ValueError(f"{label} has {len(entries)} entries for {len(turns)} turns; expected a number, or one a turn")
    credits, mask_parts = [np.zeros(0)], [np.zeros(0, bool)]
    for entry, turn in zip(entries, turns, strict=True):
        prompt_size, action_size = len(turn.prompt_tokens), len(turn.action_tokens)
        data, entry_mask = np.ma.getdata(entry), np.ma.getmaskarray(np.ma.asarray(entry))
        if not _is_scalar(entry) and len(data) != action_size:
            raise ValueError(
                f"{label} has {len(data)} entries for {action_size} tokens of a turn; expected a number, or one a token"
            )
        value, prompt_mask = (data, entry_mask) if _is_scalar(entry) else (0.0, False)
        credits += [np.full(prompt_size, value, np.float64), np.broadcast_to(np.asarray(data, np.float64), action_size)]
        mask_parts += [np.full(prompt_size, np.logical_not(prompt_mask)), np.broadcast_to(~entry_mask, action_size)]
    values, learned_mask = np.concatenate(credits), np.concatenate(mask_parts)
    if not np.isfinite(values[learned_mask]).all():
        raise ValueError(f"{label} is not finite: {values[learned_mask]}; mask the entries to leave out with numpy.ma")
    return np.where(learned_mask, values, 0.0), learned_mask


def _is_scalar(value: Any) -> bool:
    """Whether the entry is a single number, masked or not, from any array library."""
    return not isinstance(value, (list, tuple)) and np.ndim(value) == 0


def _normalise(values: np.ndarray, epsilon: float) -> np.ndarray:
    """(x − mean x) / (std x + ε), with the standard deviation over n − 1."""
    return _centre(values) / (values.std(ddof=1) + epsilon)


def _centre(values: np.ndarray) -> np.ndarray:
    """x − mean x. If all values are equal it is exactly 0, which the rounded mean does not guarantee."""
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

"""Every shipped loss and weighting once more, as plain loops over unpacked trajectories in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tokens:
    """float64[n] of one trajectory's learned tokens. `fixed` are log-probs through which no gradient flows."""

    logprobs: np.ndarray
    fixed: np.ndarray
    old: np.ndarray
    sampler: np.ndarray
    reference: np.ndarray
    entropy: np.ndarray
    advantage: float


def weights(name: str, lengths: Sequence[Sequence[int]], **settings: int) -> list[list[float]]:
    """What a token weighs, for each group and trajectory."""
    trajectories = sum(len(group) for group in lengths)
    tokens = sum(sum(group) for group in lengths)
    return [
        [
            {
                "group_token_mean": lambda: 1 / len(lengths) / sum(group),  # noqa: B023
                "sequence_mean": lambda: 1 / len(lengths) / len(group) / length,  # noqa: B023
                "batch_token_mean": lambda: 1 / tokens,
                "constant_length": lambda: 1 / trajectories / settings["length"],
            }[name]()
            for length in group
        ]
        for group in lengths
    ]


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, 1 - low), 1 + high)


def _terms(loss: str, x: Tokens, base: np.ndarray, s: dict) -> list[float]:
    """The surrogate at each token; `base` is what the ratio is taken against."""
    low, high = s.get("clip_low"), s.get("clip_high")
    found = []
    for t in range(len(base)):
        ratio, advantage = math.exp(x.logprobs[t] - base[t]), x.advantage
        if loss in ("grpo", "dual_clip"):
            low, high = low or 0.2, high or 0.28
            gain = min(ratio * advantage, _clip(ratio, low, high) * advantage)
            if loss == "dual_clip" and advantage < 0:
                gain = max(gain, s.get("clip_bad", 3.0) * advantage)
        elif loss == "cispo":
            frozen = math.exp(x.fixed[t] - base[t])
            gain = _clip(frozen, low or 1.0, high or 0.28) * advantage * x.logprobs[t]
        else:
            low, high = low or 3e-4, high or 4e-4
            mean = sum(x.logprobs[i] - base[i] for i in range(len(base))) / len(base)
            if s.get("form") == "token":
                mean = sum(x.fixed[i] - base[i] for i in range(len(base))) / len(base) + x.logprobs[t] - x.fixed[t]
            gain = min(math.exp(mean) * advantage, _clip(math.exp(mean), low, high) * advantage)
        found.append(-gain)
    return found


def of_trajectory(loss: str, x: Tokens, **s) -> list[float]:
    """The loss at each token."""
    if loss == "sft":
        return [-value for value in x.logprobs]
    base = x.sampler if s.get("ratio") == "sampler" else x.old
    found = _terms(loss, x, base, s)
    behind = [a - b for a, b in zip(x.old, x.sampler, strict=True)]
    mean = math.exp(sum(behind) / len(behind)) if behind else 1.0
    for t in range(len(found)):
        if s.get("ratio") != "sampler":
            found[t] *= min(math.exp(behind[t]), s.get("importance_cap", 2.0))
        if not s.get("token_low", 0) <= math.exp(behind[t]) <= s.get("token_high", math.inf):
            found[t] = 0.0
        if not s.get("sequence_low", 0) <= mean <= s.get("sequence_high", math.inf):
            found[t] = 0.0
        towards = (x.sampler if s.get("kl_towards") == "sampler" else x.reference)[t] - x.logprobs[t]
        kl = {"k1": -towards, "k2": towards**2 / 2, "k3": math.exp(towards) - towards - 1}[s.get("kl", "k3")]
        found[t] += s.get("kl_coefficient", 0.0) * kl - s.get("entropy_coefficient", 0.0) * x.entropy[t]
    return found


def of_groups(loss: str, weighting: str, groups: Sequence[Sequence[Tokens]], length: int, **settings) -> float:
    """Σ weight · loss over all tokens."""
    each = weights(weighting, [[len(x.logprobs) for x in group] for group in groups], length=length)
    return sum(
        weight * value
        for group, of_group in zip(groups, each, strict=True)
        for x, weight in zip(group, of_group, strict=True)
        for value in of_trajectory(loss, x, **settings)
    )


def of_pairs(
    pairs: Sequence[tuple[Tokens, Tokens]],
    beta: float = 0.1,
    dpo_coefficient: float = 1.0,
    sft_coefficient: float = 0.0,
) -> float:
    """The mean over (better, worse)."""
    total = 0.0
    for better, worse in pairs:
        margin = sum(better.logprobs - better.reference) - sum(worse.logprobs - worse.reference)
        total -= dpo_coefficient * math.log(1 / (1 + math.exp(-beta * margin))) + sft_coefficient * sum(better.logprobs)
    return total / len(pairs)


def central_differences(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """∂ value / ∂ each entry."""
    found = np.zeros_like(at)
    for index in range(len(at)):
        moved = [at.copy(), at.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        found[index] = (value(moved[0]) - value(moved[1])) / (2 * step)
    return found

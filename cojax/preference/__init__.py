"""Preference learning in rounds: its methods, and what follows from its settings (`RoundsSettings`).

Defaults are those of the paper, Co-Evolving Agents (arXiv 2511.22254). Where it publishes none, they come from
its reviews (OpenReview, usYfUfTG7I) or from ETO (arXiv 2403.02502 and its code), on which it builds.
"""

import dataclasses
from collections.abc import Mapping

from cojax.settings.tree import RoundsSettings

# Kinds of pairs of the target: an expert over its own failure, an expert over the second agent's failure, and a failure
# over another one.
PAIR_KINDS = ("own", "other", "failures")


def weights(settings: RoundsSettings) -> dict[str, float]:
    """Kind of pair → its weight, without λ_DPO."""
    return {"own": settings.own, "other": settings.other, "failures": settings.failures}


def read_coefficients(settings: RoundsSettings) -> tuple[float, float]:
    """λ_DPO and λ_SFT."""
    dpo, sft = settings.dpo, settings.sft
    return 0.5 if dpo is None else dpo, 0.5 if sft is None else sft


def count_second_episodes(settings: RoundsSettings, group_size: int) -> int:
    """How many of a group's episodes the second agent plays: at least one, and not all."""
    return 0 if settings.agent == "none" else min(group_size - 1, max(1, round(settings.share * group_size)))


@dataclasses.dataclass(frozen=True)
class Method:
    """A method that learns in rounds.

    `loss` is "dpo" for pairs or "sft" for imitation. `plays` says whether the policy plays episodes. `fixes`
    holds the settings that the method itself decides. Settings in `ignores` have no effect.
    """

    loss: str
    plays: bool = True
    fixes: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    ignores: frozenset[str] = frozenset()


_PAIRS = frozenset({"beta", "dpo", "sft", "own", "other", "failures", "margin", "extra_turns", "reference", "share"})
METHODS: Mapping[str, Method] = {
    "coevolving": Method("dpo"),
    "eto": Method(
        "dpo",
        fixes={"dpo": 1.0, "sft": 0.0, "other": 0.0, "failures": 0.0, "agent": "none"},
        ignores=frozenset({"margin", "share"}),
    ),
    "rft": Method("sft", fixes={"agent": "none", "experts": "both"}, ignores=_PAIRS),
    "sft": Method("sft", plays=False, fixes={"agent": "none", "experts": "solutions"}, ignores=_PAIRS | {"hard"}),
}

"""Preference learning in rounds: its settings and its methods.

Defaults are those of the paper, Co-Evolving Agents (arXiv 2511.22254). Where it publishes none, they are from its
reviews (OpenReview, usYfUfTG7I) or from ETO (arXiv 2403.02502 and its code), on which it builds.
"""

import dataclasses
from collections.abc import Mapping

from cojax.settings.tree import RoundsSettings

# Kinds of pairs of the target: an expert over its own failure, an expert over the second agent's failure, and a failure
# over another one.
KINDS = ("own", "other", "failures")
# What the second agent learns from: pairs of failures alone, or the same pairs as the target. "none": there is none.
AGENTS = ("failure", "positive", "none")
# What counts as an expert: solutions of tasks, the run's own successes, or these where a task has no solution.
EXPERTS = ("solutions", "successes", "both")


@dataclasses.dataclass(frozen=True)
class Preference:
    """Settings of a round; docs/coevolving.md names the source of each default.

    Loss: `dpo` is λ_DPO, `beta` is DPO's β, and `reference` is the policy at the beginning of the round ("round") or
    the initial policy ("initial"). `sft` is λ_SFT, the weight of imitating the expert of a pair. `own`, `other` and
    `failures` are the weights of the kinds of pairs; 0 leaves a kind out. A failure is preferred over another one whose
    partial reward is lower by more than `margin`. A failure in a pair with an expert is
    cut to the expert's number of turns and `extra_turns` more.

    Agents: `agent` is one of AGENTS. The second agent plays the share `share` of each group's episodes.

    Learning: `experts` is one of EXPERTS. A round learns from its examples in `epochs` passes, with `batch_size`
    examples in an update, at `learning_rate`. A failure counts as a hard negative if its partial reward is at least
    `hard`.
    """

    beta: float = RoundsSettings.beta
    dpo: float = 0.5
    sft: float = 0.5
    own: float = RoundsSettings.own
    other: float = RoundsSettings.other
    failures: float = RoundsSettings.failures
    margin: float = RoundsSettings.margin
    extra_turns: int = RoundsSettings.extra_turns
    reference: str = RoundsSettings.reference
    agent: str = RoundsSettings.agent
    share: float = RoundsSettings.share
    experts: str = RoundsSettings.experts
    epochs: int = RoundsSettings.epochs
    batch_size: int = RoundsSettings.batch_size
    learning_rate: float = RoundsSettings.learning_rate
    hard: float = RoundsSettings.hard

    @property
    def kinds(self) -> dict[str, float]:
        """Kind of pair → its weight."""
        return {"own": self.own, "other": self.other, "failures": self.failures}

    def others(self, group_size: int) -> int:
        """How many of a group's episodes the second agent plays: at least one, and not all."""
        return 0 if self.agent == "none" else min(group_size - 1, max(1, round(self.share * group_size)))


@dataclasses.dataclass(frozen=True)
class Method:
    """A method that learns in rounds.

    `loss` is "dpo" for pairs or "sft" for imitation. `plays`: the policy plays episodes. `fixed` are the settings that
    the method itself decides; the `unread` ones have no effect.
    """

    loss: str
    plays: bool = True
    fixed: Mapping[str, float | str] = dataclasses.field(default_factory=dict)
    unread: frozenset[str] = frozenset()


_PAIRS = frozenset({"beta", "dpo", "sft", "own", "other", "failures", "margin", "extra_turns", "reference", "share"})
METHODS: Mapping[str, Method] = {
    "coevolving": Method("dpo"),
    "eto": Method(
        "dpo",
        fixed={"dpo": 1.0, "sft": 0.0, "other": 0.0, "failures": 0.0, "agent": "none"},
        unread=frozenset({"margin", "share"}),
    ),
    "rft": Method("sft", fixed={"agent": "none", "experts": "both"}, unread=_PAIRS),
    "sft": Method("sft", plays=False, fixed={"agent": "none", "experts": "solutions"}, unread=_PAIRS | {"hard"}),
}

"""The section of a configuration about learning from preferences: co-evolving agents, ETO, RFT, SFT, hard negatives.

The source of each default stands at the end of its meaning. Paper: arXiv 2511.22254; reviews: its reviews; ETO: arXiv
2403.02502 and its code; ours: published nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from cojax.preference import AGENTS, EXPERTS, METHODS, Preference
from cojax.settings.leaf import (
    Above0,
    AtLeast0,
    Count,
    Leaf,
    Number,
    PositiveShare,
    Section,
    Share,
    defaults,
    one_of,
)

# Methods by what --config.method names: the GRPO loop, those that learn in rounds, and one that trains nothing.
METHOD_NAMES = ("coevolve", *METHODS, "best_of_n")


def preference() -> Section:
    """How every method but coevolve learns: in rounds, each of which is a step, from pairs or from experts."""
    own, dpo, sft = defaults(Preference), "λ_DPO, the weight of DPO", "λ_SFT, the weight of imitating a pair's expert"
    return {
        "beta": Leaf(own["beta"], Above0, "β of DPO (ETO, round 1)"),
        "dpo": Leaf(None, Above0 | None, f"{dpo}; None: {own['dpo']:g} (reviews), for eto 1 (ETO)"),
        "sft": Leaf(None, AtLeast0 | None, f"{sft}; None: {own['sft']:g} (reviews), for eto 0 (ETO)"),
        "own": Leaf(own["own"], AtLeast0, "weight of pairs of an expert and the agent's own failure (ours)"),
        "other": Leaf(own["other"], AtLeast0, "weight of pairs of an expert and the other agent's failure (ours)"),
        "failures": Leaf(own["failures"], AtLeast0, "weight of pairs of two failures (ours)"),
        "margin": Leaf(own["margin"], Share,
            "a failure is preferred over another one whose partial reward is lower by more than this (ours)"),
        "extra_turns": Leaf(own["extra_turns"], Number,
            "turns of a failure that count beyond the number that its expert has (ETO)"),
        "reference": Leaf(own["reference"], Literal["round", "initial"],
            "DPO's reference: the policy at the beginning of the round, or the initial one (ETO)"),
        "agent": Leaf(own["agent"], one_of(AGENTS),
            "the second agent: failure learns from failures alone, positive learns as the target does, none (paper)"),
        "share": Leaf(own["share"], PositiveShare, "share of each group's episodes that the second agent plays (ours)"),
        "experts": Leaf(own["experts"], one_of(EXPERTS),
            "experts: solutions of tasks, successes of the round, or both: these where a task has no solution (paper)"),
        "epochs": Leaf(own["epochs"], Count, "how often a round learns each of its examples (ETO)"),
        "batch_size": Leaf(own["batch_size"], Count, "pairs or trajectories of an update (ETO)"),
        "learning_rate": Leaf(own["learning_rate"], AtLeast0, "of rounds, in place of optimizer.learning_rate (ETO)"),
        "hard": Leaf(own["hard"], Share, "partial reward from which on a failure is a hard negative (paper)"),
        "hard_negatives": Leaf(0.0, AtLeast0,
            "with method=coevolve: weight of DPO of a success over a hard negative of its group; 0 is off (ours)"),
        "tasks": Leaf("static", Literal["static", "growing"],
            "static: D_0 alone (paper); growing: it evolves by `evolve`, around the target's episodes (ours)"),
    }  # fmt: skip


SECTIONS: tuple[tuple[str, Callable[[], Section]], ...] = (("preference", preference),)

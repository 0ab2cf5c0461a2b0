"""The grounds of the study of signals, where choice matters: their arms and tables (docs/signals-study.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .runs import Settings
from .table import DEFAULT_SEEDS, Arm, Table

SEEDS = tuple(range(201, 213))  # no run before the settings below are fixed

# An evolution adds 8 tasks, far fewer than there are skills. The demonstrator masters most skills, and hardly ever does
# the least popular ones right. Where there are hundreds of skills to keep, the desk's learning rate loses too many.
_GROUND: Settings = {
    "environment.skew": 0.4,
    "environment.steep": 2.0,
    "warm_start.steps": 800,
    "warm_start.target": 1.0,
    "warm_start.noise_low": 0.02,
    "warm_start.noise_high": 0.9,
    "steps": 80,
    "batch_size": 16,
    "initial_tasks": 50,
    "optimizer.learning_rate": 2e-4,
    "optimizer.decay_steps": 80,
    "explorer.stretch": (-1, 0, 1),
    "synthesis.contexts": 8,
    "synthesis.budget": 8,
    "evaluation.tasks": 1000,
}
# 207 tools and 251 skills; nine of ten tasks need one of these.
_WIDE: Settings = {**_GROUND, "environment.suites": 4, "environment.more": 0.1}
# Half as many, in longer tasks.
_DEEP: Settings = {**_GROUND, "environment.suites": 2, "environment.more": 0.8, "explorer.longest": 6}
# Eight evolutions with 80 candidates each, tried 8 times, are as many episodes as 80 steps with 8 tasks.
_PROBED: Settings = {"synthesis.admit": "probe", "batch_size": 8}
# Tried 4 times, they are as many as 80 steps with 4 tasks.
_HARDEST: Settings = {
    "synthesis.admit": "probe",
    "admission_settings.attempts": 4,
    "admission_settings.unselected": 0.0,
    "admission_settings.prefer": "hardest",
    "batch_size": 12,
}
_METHODS: Mapping[str, tuple[str, Settings]] = {
    "static": ("static D_0", {"evolve": "none"}),
    "random": ("random exploration", {"evolve": "random"}),
    "uniform": ("uniform", {"evolve": "uniform"}),
    # With the explorer's actions counted, as many environment actions as `best`.
    "uniform-more": ("uniform, a quarter more episodes", {"evolve": "uniform", "batch_size": 20}),
    "control": ("control: guided, without signals", {"evolve": "trajectory"}),
    "feedback": ("feedback (CoEvolve)", {"evolve": "feedback"}),
    "credited": ("credited: feedback by what it led to", {"evolve": "credited"}),
    "posteriors": ("posteriors", {"evolve": "posteriors"}),
    "frontier": ("frontier", {"evolve": "frontier", "synthesis.prefix_replay": True}),
    "probe": ("probe", {"evolve": "uniform", **_PROBED}),
    "hardest": ("hardest", {"evolve": "uniform", **_HARDEST}),
    "best": ("best: posteriors and hardest", {"evolve": "posteriors", **_HARDEST}),
}
# Each method on each ground.
ARMS: Mapping[str, Arm] = {
    f"{ground}-{name}": Arm(title, {**settings, **own})
    for ground, settings in (("wide", _WIDE), ("deep", _DEEP))
    for name, (title, own) in _METHODS.items()
}


def _table(
    title: str,
    ground: str,
    names: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    count: int = DEFAULT_SEEDS,
    reference: str = "",
) -> Table:
    """A table on a ground. Budgets are compared with its first arm, if not with `reference`."""
    return Table(
        title,
        tuple(f"{ground}-{name}" for name in names),
        tuple((f"{ground}-{one}", f"{ground}-{other}") for one, other in pairs),
        seeds=SEEDS,
        count=count,
        reference=f"{ground}-{reference or names[0]}",
    )


TABLES: Mapping[str, Table] = {
    "primary": _table(
        "The primary comparison: the best combination against uniform growth, in as many episodes",
        "wide",
        ("uniform", "best"),
        (("best", "uniform"),),
        count=12,
    ),
    "wide": _table(
        "Where choice matters: a grown desk of hundreds of tools, in as many episodes",
        "wide",
        ("uniform", "feedback", "credited", "posteriors", "frontier", "probe", "hardest", "best"),
        (
            ("best", "uniform"),
            ("feedback", "uniform"),
            ("credited", "uniform"),
            ("credited", "feedback"),
            ("posteriors", "uniform"),
            ("frontier", "uniform"),
            ("probe", "uniform"),
            ("hardest", "uniform"),
            ("best", "hardest"),
            ("best", "posteriors"),
        ),
    ),
    # Added after `primary` was known.
    "wide-actions": _table(
        "The primary comparison in as many environment actions, the explorer's included and validation's not",
        "wide",
        ("uniform-more", "best"),
        (("best", "uniform-more"),),
    ),
    "wide-growth": _table(
        "The paper's comparison on the grown desk, in as many episodes",
        "wide",
        ("static", "random", "uniform", "control", "feedback"),
        (("uniform", "static"), ("uniform", "random"), ("feedback", "control"), ("feedback", "static")),
        reference="uniform",
    ),
    "deep": _table(
        "A grown desk of fewer tools and longer tasks, in as many episodes",
        "deep",
        ("uniform", "feedback", "best"),
        (("best", "uniform"), ("feedback", "uniform")),
    ),
}

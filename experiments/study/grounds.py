"""The grounds of the study of signals, where choice matters: their arms and tables (docs/signals-study.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.study.runs import Settings

SEEDS = tuple(range(201, 213))  # no run before the settings below are fixed

# The demonstrator masters the most popular skill of a suite, and never the least popular. An evolution adds 16 tasks,
# far fewer than there are skills.
_GROUND: Settings = {
    "environment.skew": 0.8,
    "warm_start.steps": 600,
    "warm_start.target": 1.0,
    "warm_start.noise_low": 0.0,
    "warm_start.noise_high": 1.0,
    "batch_size": 32,
    "synthesis.contexts": 16,
    "synthesis.budget": 16,
    "evaluation.tasks": 1000,
}
_WIDE: Settings = {**_GROUND, "environment.suites": 6}  # 315 tools, 386 skills
_DEEP: Settings = {**_GROUND, "environment.suites": 2, "environment.more": 0.8}  # a third of the tools, longer tasks
# Ten evolutions with 160 candidates each, tried 8 times, are as many episodes as 100 steps with 16 tasks.
_PROBED: Settings = {"synthesis.admit": "probe", "batch_size": 16}
_METHODS: Mapping[str, tuple[str, Settings]] = {
    "static": ("static D_0", {"evolve": "none"}),
    "random": ("random exploration", {"evolve": "random"}),
    "uniform": ("uniform exploration (the probe's control)", {"evolve": "uniform"}),
    "control": ("control: guided, without signals", {"evolve": "trajectory"}),
    "feedback": ("feedback (CoEvolve)", {"evolve": "feedback"}),
    "credited": ("feedback, repaired: weighted by what it led to", {"evolve": "credited"}),
    "posteriors": ("posteriors: Thompson sampling", {"evolve": "posteriors"}),
    "frontier": ("frontier: joins with prefix replay", {"evolve": "frontier", "synthesis.prefix_replay": True}),
    "probe": ("uniform + probe before admission", {"evolve": "uniform", **_PROBED}),
    "posteriors-probe": ("posteriors + probe", {"evolve": "posteriors", **_PROBED}),
}
# Arm → its title and settings: a method on a ground.
ARMS: Mapping[str, tuple[str, Settings]] = {
    f"{ground}-{name}": (title, {**settings, **own})
    for ground, settings in (("wide", _WIDE), ("deep", _DEEP))
    for name, (title, own) in _METHODS.items()
}


def _table(
    title: str, ground: str, names: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Title, arms and differences of a table on a ground."""
    differences = tuple((f"{ground}-{one}", f"{ground}-{other}") for one, other in pairs)
    return title, tuple(f"{ground}-{name}" for name in names), differences


TABLES = {
    "wide": _table(
        "Where choice matters: a grown desk of hundreds of tools, in as many episodes",
        "wide",
        ("uniform", "feedback", "credited", "posteriors", "frontier", "probe", "posteriors-probe"),
        (
            ("credited", "uniform"),
            ("credited", "feedback"),
            ("posteriors", "uniform"),
            ("frontier", "uniform"),
            ("probe", "uniform"),
            ("posteriors-probe", "uniform"),
            ("feedback", "uniform"),
            ("posteriors-probe", "posteriors"),
            ("posteriors-probe", "probe"),
        ),
    ),
    "wide-growth": _table(
        "The paper's comparison on the grown desk, in as many episodes",
        "wide",
        ("static", "random", "uniform", "control", "feedback"),
        (("uniform", "static"), ("uniform", "random"), ("feedback", "control"), ("feedback", "static")),
    ),
    "deep": _table(
        "Where choice matters: a grown desk of fewer tools and longer tasks, in as many episodes",
        "deep",
        ("uniform", "feedback", "posteriors-probe"),
        (("posteriors-probe", "uniform"), ("feedback", "uniform")),
    ),
}

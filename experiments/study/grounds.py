"""The grounds of the study of signals, where choice matters: their arms and tables (docs/signals-study.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.study.runs import Settings

SEEDS = tuple(range(201, 213))  # no run before the settings below are fixed

# An evolution adds 16 tasks, far fewer than there are skills. The demonstrator's mistakes are the desk's. Where there
# are hundreds of skills to keep, the desk's learning rate loses too many of them.
_GROUND: Settings = {
    "environment.skew": 0.4,
    "warm_start.steps": 600,
    "warm_start.target": 1.0,
    "batch_size": 32,
    "optimizer.learning_rate": 2e-4,
    "synthesis.contexts": 16,
    "synthesis.budget": 16,
    "evaluation.tasks": 1000,
}
_WIDE: Settings = {**_GROUND, "environment.suites": 6}  # 315 tools, 386 skills
_DEEP: Settings = {**_GROUND, "environment.suites": 2, "environment.more": 0.8}  # a third of the tools, longer tasks
# Ten evolutions with 160 candidates each, tried 8 times, are as many episodes as 100 steps with 16 tasks.
_PROBED: Settings = {"synthesis.admit": "probe", "batch_size": 16}
# With 80 candidates, tried 4 times, they are as many as 100 steps with 28 tasks.
_PROBED_A_LITTLE: Settings = {
    "synthesis.admit": "probe",
    "admission_settings.candidates": 5,
    "admission_settings.attempts": 4,
    "admission_settings.unselected": 0.0,
    "batch_size": 28,
}
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
    "small-probe": ("uniform + small probe", {"evolve": "uniform", **_PROBED_A_LITTLE}),
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
        ("uniform", "feedback", "credited", "posteriors", "frontier", "probe", "small-probe", "posteriors-probe"),
        (
            ("credited", "uniform"),
            ("credited", "feedback"),
            ("posteriors", "uniform"),
            ("frontier", "uniform"),
            ("probe", "uniform"),
            ("small-probe", "uniform"),
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

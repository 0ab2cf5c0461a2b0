"""The arms and seeds of each table. docs/study-details.md says which comparisons were fixed before their runs.

Settings were chosen only on development seeds and the development split: `--development` runs see nothing else.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product

from .arms import ARMS, COMMON, ON_DEVELOPMENT_TASKS
from .runs import Settings, StudyRun

EVALUATION_SEEDS = (101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112)
DEFAULT_SEEDS = 6
GROUND_SEEDS = tuple(range(201, 213))  # no run before the settings below are fixed
# The training environment steps of each run, those of both agents together.
_PREFERENCES: Settings = {"environment_steps": 35_000}
LOSS_SEEDS = (201, 202, 203, 204)  # shared with the grounds, whose desks and policies are others
PRETRAINED_SEEDS = (301, 302, 303, 304, 305, 306)  # of the table `pretrained` alone
PREFERENCE_SEEDS = (401, 402, 403, 404, 405, 406)  # of the tables `coevolving` and `second-agent` alone
DEVELOPMENT_SEEDS = (21, 22, 23, 24, 25, 26)
QUICK_SEEDS = 2


@dataclasses.dataclass(frozen=True)
class Table:
    """A question, its arms, and the paired differences (one, other), meaning one − other, that answer it.

    `settings` are shared by all its arms, beside COMMON; the default seeds are the first `count` of `seeds`. The page
    compares budgets with those of the arm `reference`, where it is one of its arms.
    """

    title: str
    arms: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    settings: Settings = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = EVALUATION_SEEDS
    count: int = DEFAULT_SEEDS
    reference: str = "feedback"


def _on_ground(
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
        seeds=GROUND_SEEDS,
        count=count,
        reference=f"{ground}-{reference or names[0]}",
    )


TABLES: Mapping[str, Table] = {
    "main": Table(
        "The paper's comparison, with the control it lacks",
        ("static", "random", "control", "feedback"),
        (("feedback", "static"), ("feedback", "random"), ("feedback", "control")),
    ),
    "ceiling": Table(
        "Unguided growth that is uniform over tools, which no explorer of the paper's has",
        ("random", "uniform", "feedback"),
        (("uniform", "random"), ("feedback", "uniform"), ("feedback", "random")),
    ),
    "guidance": Table(
        "What of the difference to the control is the signals, and what the guidance that goes with them",
        ("control", "matched", "feedback"),
        (("feedback", "matched"), ("matched", "control"), ("feedback", "control")),
    ),
    "selection": Table(
        "Signals selected so that all tasks have equal chances, and by the former rule, which preferred few signals",
        ("feedback", "feedback-before"),
        (("feedback", "feedback-before"),),
        count=12,
    ),
    "removals": Table(
        "Feedback with one part taken away",
        ("feedback", "without-forgetting", "without-boundary", "without-rare", "without-validation"),
        tuple(product(["feedback"], ["without-forgetting", "without-boundary", "without-rare", "without-validation"])),
    ),
    "places": Table(
        "Removals whose contexts no other signals take (feedback: 40 contexts an evolution, the others: 20)",
        ("feedback", "half", "half-without-boundary", "half-without-rare"),
        (
            *product(["feedback"], ["half-without-boundary", "half-without-rare", "half"]),
            *product(["half"], ["half-without-boundary", "half-without-rare"]),
        ),
    ),
    "careless": Table(
        "Validation where there is something to refuse: about every second draft has a mistake",
        ("feedback", "without-validation", "careless", "careless-without-validation"),
        (
            ("careless", "careless-without-validation"),
            *product(["feedback"], ["careless", "careless-without-validation"]),
        ),
    ),
    "initial-tasks": Table(
        "The number of initial tasks N (feedback: N = 100)",
        ("initial-50", "feedback", "initial-200"),
        (("feedback", "initial-50"), ("feedback", "initial-200")),
    ),
    "period": Table(
        "The period F of evolution (feedback: F = 10)",
        ("period-5", "feedback", "period-20"),
        (("feedback", "period-5"), ("feedback", "period-20")),
    ),
    "adaptive": Table(
        "Other ways to learn from one's own episodes",
        ("zero-shot-retry", "static", "retry", "curriculum", "rest", "feedback"),
        (
            *product(["retry", "curriculum", "rest"], ["static"]),
            *product(["feedback"], ["zero-shot-retry", "retry", "curriculum", "rest"]),
        ),
    ),
    "own": Table(
        "Our own arm, feedback that draws tasks by learnability: what the curriculum adds, and what signals",
        ("control", "feedback", "learnability", "control-learnability"),
        (
            *product(["learnability"], ["control", "feedback", "control-learnability"]),
            ("control-learnability", "control"),
        ),
    ),
    "long": Table(
        "Long tasks: drafts as long as the longest evaluated tasks, and imitation of many solutions",
        ("feedback", "uniform-long", "rft-long"),
        (("rft-long", "feedback"), ("uniform-long", "feedback"), ("rft-long", "uniform-long")),
    ),
    "losses": Table(
        "Losses, a weighting and dynamic sampling on one task set, in as many episodes",
        ("grpo", "gspo", "cispo", "dr-grpo", "dynamic"),
        (("gspo", "grpo"), ("cispo", "grpo"), ("dr-grpo", "grpo"), ("dynamic", "grpo")),
        {"steps": 60},
        LOSS_SEEDS,
        4,
        reference="grpo",
    ),
    "pretrained": Table(
        "A pretrained language model (SmolLM2-135M-Instruct), shown 136 demonstrations, then co-evolved by imitation",
        ("pretrained-static", "pretrained-feedback"),
        (("pretrained-feedback", "pretrained-static"),),
        seeds=PRETRAINED_SEEDS,
        count=2,
        reference="pretrained-static",
    ),
    "coevolving": Table(
        "Learning from preferences against GRPO, in as many environment steps",
        ("sft", "rft", "eto", "coevolving", "one-agent", "feedback", "hard-negatives"),
        (*product(["coevolving"], ["sft", "rft", "eto", "one-agent", "feedback"]), ("hard-negatives", "feedback")),
        _PREFERENCES,
        PREFERENCE_SEEDS,
    ),
    "primary": _on_ground(
        "The primary comparison: the best combination against uniform growth, in as many episodes",
        "wide",
        ("uniform", "best"),
        (("best", "uniform"),),
        count=12,
    ),
    "wide": _on_ground(
        "Where choice matters: a grown desk of hundreds of tools, in as many episodes",
        "wide",
        ("uniform", "feedback", "credited", "posteriors", "frontier", "probe", "hardest", "best"),
        (
            *product(["best", "feedback", "credited"], ["uniform"]),
            ("credited", "feedback"),
            *product(["posteriors", "frontier", "probe", "hardest"], ["uniform"]),
            *product(["best"], ["hardest", "posteriors"]),
        ),
    ),
    # Added after `primary` was known.
    "wide-actions": _on_ground(
        "The primary comparison in as many environment actions, the explorer's included and validation's not",
        "wide",
        ("uniform-more", "best"),
        (("best", "uniform-more"),),
    ),
    "wide-growth": _on_ground(
        "The paper's comparison on the grown desk, in as many episodes",
        "wide",
        ("static", "random", "uniform", "control", "feedback"),
        (("uniform", "static"), ("uniform", "random"), ("feedback", "control"), ("feedback", "static")),
        reference="uniform",
    ),
    "deep": _on_ground(
        "A grown desk of fewer tools and longer tasks, in as many episodes",
        "deep",
        ("uniform", "feedback", "best"),
        (("best", "uniform"), ("feedback", "uniform")),
    ),
    "second-agent": Table(
        "What the failure agent adds, and a task set that grows",
        ("coevolving", "positive-agent", "coevolving-growing", "one-agent-growing", "rft-growing", "feedback"),
        (
            ("coevolving", "positive-agent"),
            *product(["coevolving-growing"], ["coevolving", "one-agent-growing", "rft-growing", "feedback"]),
        ),
        _PREFERENCES,
        PREFERENCE_SEEDS,
    ),
}


def jobs(
    arms: Sequence[str],
    seeds: Sequence[int],
    development: bool = False,
    further: Settings = {},  # noqa: B006
) -> list[StudyRun]:
    """The runs, by seed, then by arm: so finished runs are paired whenever the study is stopped.

    `further` settings override the common ones, but not those of an arm. Raises ValueError for an unknown arm, and for
    a further setting that every arm sets itself.
    """
    if unknown := [arm for arm in arms if arm not in ARMS]:
        raise ValueError(f"arm {unknown[0]!r} not found; available: {', '.join(ARMS)}")
    if fixed := [
        name for name in further if name in ("seed", "workdir") or all(name in ARMS[arm].settings for arm in arms)
    ]:
        raise ValueError(f"{fixed[0]} distinguishes the runs; choose runs with --arms and --seeds")
    split = ON_DEVELOPMENT_TASKS if development else {}
    return [
        StudyRun(arm, seed, {**COMMON, **further, **ARMS[arm].settings, **split, "seed": seed})
        for seed in seeds
        for arm in arms
    ]

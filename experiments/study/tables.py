"""The arms, seeds and settings of each table. Comparisons were fixed before any run on evaluation seeds.

Settings were chosen only on development seeds and the development split: `--development` runs see nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from experiments import desk, desk_smollm2
from experiments.study import grounds
from experiments.study.runs import Settings, StudyRun, changes

EVALUATION_SEEDS = (101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112)
LOSS_SEEDS = (201, 202, 203, 204)  # of the table `losses` alone
PRETRAINED_SEEDS = (301, 302, 303, 304, 305, 306)  # of the table `pretrained` alone
PREFERENCE_SEEDS = (401, 402, 403, 404, 405, 406)  # of the tables `coevolving` and `second-agent` alone
DEVELOPMENT_SEEDS = (21, 22, 23, 24, 25, 26)
DEFAULT_SEEDS, QUICK_SEEDS = 6, 2

# Settings that all arms share beside experiments/desk.py: a run on one core, so one lane.
COMMON: Settings = {
    "steps": 100,
    "batch_size": 16,
    "optimizer.decay_steps": 100,
    "engine.lanes": 1,
    "explorer.width": 1,
    # Other tasks than those of docs/demo.md: nobody has looked at these.
    "evaluation.seed": 2026,
    "evaluation.tasks": 500,
    "evaluation.dev_tasks": 200,
    "evaluation.every": 20,
    "checkpoint_every": 50,
    "checkpoints_kept": 1,
}
# A development run evaluates this split instead of the held-out one, whatever the flags say.
ON_DEVELOPMENT_TASKS: Settings = {"evaluation.split": "dev", "evaluation.dev_split": "dev"}
# About every second draft of an evolution has a mistake; D_0 is the scripted explorer's.
_CARELESS: Settings = {"explorer.name": "careless", "explorer.mistakes": 0.5, "initial_explorer": "scripted"}
# Losses on the same, large task set. Each batch makes four updates, each from a quarter of its groups: with one update
# the policy is its own old policy, and no clip binds. The learning rate is half the desk's, by the square-root rule.
# It is constant, whatever the number of updates.
_LEARNERS: Settings = {
    "evolve": "none",
    "initial_tasks": 400,
    "learner.updates_per_batch": 4,
    "learner.each_update": "part",
    "optimizer.learning_rate": 2.5e-4,
    "optimizer.decay_steps": 0,
}
# experiments/desk_smollm2.py, on one core and on the evaluation tasks of the other tables.
_PRETRAINED: Settings = {
    **changes(desk_smollm2.get_config(), desk.get_config()),
    "optimizer.decay_steps": 0,
    "engine.lanes": 1,
    "engine.slots": 16,
    "limits.concurrency": 16,
    "evaluation.tasks": 300,
    "evaluation.dev_tasks": 24,
    "evaluation.every": 0,
    "checkpoint_every": 6,
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """What one arm changes of the common settings, and what it is called in tables."""

    title: str
    settings: Settings


ARMS: Mapping[str, Arm] = {
    "static": Arm("static D_0", {"evolve": "none"}),
    "random": Arm("random exploration", {"evolve": "random"}),
    "control": Arm("control: guided, without signals", {"evolve": "trajectory"}),
    "matched": Arm("matched control: signals displaced", {"evolve": "displaced"}),
    "feedback": Arm("feedback (CoEvolve)", {"evolve": "feedback"}),
    "uniform": Arm("uniform exploration (ceiling)", {"evolve": "uniform"}),
    "without-forgetting": Arm("without forgetting", {"evolve": "feedback", "signals": "boundary,rare"}),
    "without-boundary": Arm("without boundary", {"evolve": "feedback", "signals": "forgetting,rare"}),
    "without-rare": Arm("without rare", {"evolve": "feedback", "signals": "forgetting,boundary"}),
    "without-validation": Arm("without validation", {"evolve": "feedback", "validate": False}),
    # Boundary and rare signals take about half of an evolution's 40 contexts each. With 20 contexts and without one
    # kind, the other has as many as before: nothing replaces the removed contexts.
    "half": Arm("half the contexts", {"evolve": "feedback", "synthesis.contexts": 20, "synthesis.budget": 20}),
    "half-without-boundary": Arm(
        "half the contexts, without boundary",
        {"evolve": "feedback", "synthesis.contexts": 20, "synthesis.budget": 20, "signals": "forgetting,rare"},
    ),
    "half-without-rare": Arm(
        "half the contexts, without rare",
        {"evolve": "feedback", "synthesis.contexts": 20, "synthesis.budget": 20, "signals": "forgetting,boundary"},
    ),
    # An explorer that makes mistakes: validation refuses hardly any draft of the scripted one.
    "careless": Arm("careless explorer", {"evolve": "feedback", **_CARELESS}),
    "careless-without-validation": Arm(
        "careless explorer, without validation", {"evolve": "feedback", "validate": False, **_CARELESS}
    ),
    "initial-50": Arm("N = 50", {"evolve": "feedback", "initial_tasks": 50}),
    "initial-200": Arm("N = 200", {"evolve": "feedback", "initial_tasks": 200}),
    # Equally many contexts and tasks a step, whatever the period.
    "period-5": Arm(
        "F = 5", {"evolve": "feedback", "evolve_every": 5, "synthesis.contexts": 20, "synthesis.budget": 20}
    ),
    "period-20": Arm(
        "F = 20", {"evolve": "feedback", "evolve_every": 20, "synthesis.contexts": 80, "synthesis.budget": 80}
    ),
    "rest": Arm("ReST: imitates its successes on D_0", {"evolve": "none", "learner.advantage": "success"}),
    # No training, or training on D_0 only, and two more trials of failed tasks in the evaluation.
    "zero-shot-retry": Arm("zero-shot, three trials", {"evolve": "none", "steps": 0, "evaluation.trials": 3}),
    "retry": Arm("static D_0, three trials", {"evolve": "none", "evaluation.trials": 3}),
    # The whole batch is drawn by p(1 − p): in a set that does not grow all tasks count as new.
    "curriculum": Arm(
        "learnability curriculum on D_0", {"evolve": "none", "curriculum": "learnability", "fresh_fraction": 0.0}
    ),
    "learnability": Arm("feedback + learnability curriculum", {"evolve": "feedback", "curriculum": "learnability"}),
    "control-learnability": Arm(
        "control + learnability curriculum", {"evolve": "trajectory", "curriculum": "learnability"}
    ),
    # Clips are the defaults of cojax/learner/losses.py, which are those of the papers.
    "grpo": Arm("GRPO", {**_LEARNERS, "learner.loss": "grpo"}),
    "gspo": Arm("GSPO", {**_LEARNERS, "learner.loss": "gspo", "learner.weighting": "sequence_mean"}),
    "cispo": Arm("CISPO", {**_LEARNERS, "learner.loss": "cispo"}),
    "dr-grpo": Arm(
        "GRPO, Dr. GRPO's weighting",
        {**_LEARNERS, "learner.weighting": "constant_length", "learner.weighting_settings.length": 256},
    ),
    # A pretrained language model that was shown 272 demonstrations.
    "pretrained-static": Arm("static D_0", {**_PRETRAINED, "evolve": "none"}),
    "pretrained-uniform": Arm("uniform exploration", {**_PRETRAINED, "evolve": "uniform"}),
    "pretrained-feedback": Arm("feedback (CoEvolve)", {**_PRETRAINED, "evolve": "feedback"}),
    # Each step plays until 8 groups are live. So the episodes of the other arms, 60 · 16 · 8, make fewer steps.
    "dynamic": Arm("GRPO, dynamic sampling", {**_LEARNERS, "batch_size": 8, "dynamic_sampling": 64, "episodes": 7680}),
    # As many episodes as `feedback`, those of both agents together; SFT plays none.
    "sft": Arm("SFT on the solutions of D_0", {"method": "sft"}),
    "rft": Arm("RFT", {"method": "rft"}),
    "eto": Arm("ETO", {"method": "eto"}),
    "coevolving": Arm("co-evolving agents", {"method": "coevolving"}),
    "one-agent": Arm("co-evolving, all episodes the target's", {"method": "coevolving", "preference.agent": "none"}),
    "positive-agent": Arm("co-evolving, two targets", {"method": "coevolving", "preference.agent": "positive"}),
    "coevolving-growing": Arm(
        "co-evolving agents and task set", {"method": "coevolving", "preference.tasks": "growing", "evolve": "feedback"}
    ),
    **{name: Arm(title, settings) for name, (title, settings) in grounds.ARMS.items()},
    "hard-negatives": Arm("feedback + hard negatives", {"evolve": "feedback", "preference.hard_negatives": 0.1}),
}


@dataclasses.dataclass(frozen=True)
class Table:
    """A question, its arms, and the paired differences (one, other), meaning one − other, that answer it.

    `settings` are shared by all its arms, beside COMMON; the default seeds are the first `count` of `seeds`.
    """

    title: str
    arms: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    settings: Settings = dataclasses.field(default_factory=dict)
    seeds: tuple[int, ...] = EVALUATION_SEEDS
    count: int = DEFAULT_SEEDS


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
    "removals": Table(
        "Feedback with one part taken away",
        ("feedback", "without-forgetting", "without-boundary", "without-rare", "without-validation"),
        (
            ("feedback", "without-forgetting"),
            ("feedback", "without-boundary"),
            ("feedback", "without-rare"),
            ("feedback", "without-validation"),
        ),
    ),
    "places": Table(
        "Removals whose contexts no other signals take (feedback: 40 contexts an evolution, the others: 20)",
        ("feedback", "half", "half-without-boundary", "half-without-rare"),
        (
            ("feedback", "half-without-boundary"),
            ("feedback", "half-without-rare"),
            ("feedback", "half"),
            ("half", "half-without-boundary"),
            ("half", "half-without-rare"),
        ),
    ),
    "careless": Table(
        "Validation where there is something to refuse: about every second draft has a mistake",
        ("feedback", "without-validation", "careless", "careless-without-validation"),
        (
            ("careless", "careless-without-validation"),
            ("feedback", "careless"),
            ("feedback", "careless-without-validation"),
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
            ("retry", "static"),
            ("curriculum", "static"),
            ("rest", "static"),
            ("feedback", "zero-shot-retry"),
            ("feedback", "retry"),
            ("feedback", "curriculum"),
            ("feedback", "rest"),
        ),
    ),
    "own": Table(
        "Our own arm, feedback that draws tasks by learnability: what the curriculum adds, and what signals",
        ("control", "feedback", "learnability", "control-learnability"),
        (
            ("learnability", "control"),
            ("learnability", "feedback"),
            ("learnability", "control-learnability"),
            ("control-learnability", "control"),
        ),
    ),
    "losses": Table(
        "Losses, a weighting and dynamic sampling on one task set, in as many episodes",
        ("grpo", "gspo", "cispo", "dr-grpo", "dynamic"),
        (("gspo", "grpo"), ("cispo", "grpo"), ("dr-grpo", "grpo"), ("dynamic", "grpo")),
        {"steps": 60},
        LOSS_SEEDS,
        4,
    ),
    "pretrained": Table(
        "A pretrained language model (SmolLM2-135M-Instruct), shown 272 demonstrations, then co-evolved",
        ("pretrained-static", "pretrained-feedback"),
        (("pretrained-feedback", "pretrained-static"),),
        seeds=PRETRAINED_SEEDS,
        count=2,
    ),
    "coevolving": Table(
        "Learning from preferences against GRPO, in as many episodes",
        ("sft", "rft", "eto", "coevolving", "one-agent", "feedback", "hard-negatives"),
        (
            ("coevolving", "sft"),
            ("coevolving", "rft"),
            ("coevolving", "eto"),
            ("coevolving", "one-agent"),
            ("coevolving", "feedback"),
            ("hard-negatives", "feedback"),
        ),
        seeds=PREFERENCE_SEEDS,
    ),
    **{name: Table(*table, seeds=grounds.SEEDS) for name, table in grounds.TABLES.items()},
    "second-agent": Table(
        "What the failure agent adds, and a task set that grows",
        ("coevolving", "positive-agent", "coevolving-growing", "feedback"),
        (("coevolving", "positive-agent"), ("coevolving-growing", "coevolving"), ("coevolving-growing", "feedback")),
        seeds=PREFERENCE_SEEDS,
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

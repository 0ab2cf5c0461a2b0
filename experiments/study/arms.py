"""The arms: what each changes of the settings that all share, and what it is called in tables."""

import dataclasses
from collections.abc import Mapping

from cojax import imports
from .. import desk, desk_smollm2
from .runs import Settings, changes


@dataclasses.dataclass(frozen=True)
class Arm:
    """What one arm changes of the common settings, and what it is called in tables."""

    title: str
    settings: Settings


# Settings that all arms share beside experiments/desk.py: a run on one core, so one lane.
COMMON: Settings = {
    "steps": 100,
    "batch_size": 16,
    "optimizer.decay_steps": 100,
    "engine.lanes": 1,
    "explorer.width": 1,
    # Another draw of tasks than that of docs/demo.md.
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
_HALF: Settings = {"evolve": "feedback", "synthesis.contexts": 20, "synthesis.budget": 20}
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
    "batch_size": desk_smollm2.get_config().batch_size,  # the desk's own, and not the other tables'
    "optimizer.decay_steps": 0,
    "engine.lanes": 1,
    "engine.slots": 16,
    "limits.concurrency": 16,
    "evaluation.tasks": 300,
    "evaluation.dev_tasks": 24,
    "evaluation.every": 0,
    "checkpoint_every": 4,
}
# Drafts of up to six actions, and fewer environment steps than feedback plays in 100 steps (seeds 101 to 106: 43,638
# on average).
_LONG: Settings = {"explorer.longest": 6, "environment_steps": 43_000}

# The grounds of the study of signals, where choice matters (docs/signals-study.md).
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


ARMS: Mapping[str, Arm] = {
    "static": Arm("static D_0", {"evolve": "none"}),
    "random": Arm("random exploration", {"evolve": "random"}),
    "control": Arm("control: guided, without signals", {"evolve": "trajectory"}),
    "matched": Arm("matched control: signals displaced", {"evolve": "displaced"}),
    "feedback": Arm("feedback (CoEvolve)", {"evolve": "feedback"}),
    "feedback-before": Arm(
        "feedback, former rule of selection",
        {"evolve": "feedback", "synthesis.select": imports.within("experiments.study.former:first_place")},
    ),
    "uniform": Arm("uniform exploration: all tools alike", {"evolve": "uniform"}),
    "without-forgetting": Arm("without forgetting", {"evolve": "feedback", "signals": "boundary,rare"}),
    "without-boundary": Arm("without boundary", {"evolve": "feedback", "signals": "forgetting,rare"}),
    "without-rare": Arm("without rare", {"evolve": "feedback", "signals": "forgetting,boundary"}),
    "without-validation": Arm("without validation", {"evolve": "feedback", "validate": False}),
    # Boundary and rare signals take about half of an evolution's 40 contexts each. With 20 contexts and without one
    # kind, the other has as many as before: nothing replaces the removed contexts.
    "half": Arm("half the contexts", _HALF),
    "half-without-boundary": Arm("half the contexts, without boundary", {**_HALF, "signals": "forgetting,rare"}),
    "half-without-rare": Arm("half the contexts, without rare", {**_HALF, "signals": "forgetting,boundary"}),
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
    # A pretrained language model that was shown 136 demonstrations and imitates its tasks' solutions and its successes.
    "pretrained-static": Arm("RFT on D_0", {**_PRETRAINED, "preference.tasks": "static"}),
    "pretrained-uniform": Arm("RFT, uniform exploration", {**_PRETRAINED, "evolve": "uniform"}),
    "pretrained-feedback": Arm("RFT, feedback (CoEvolve)", {**_PRETRAINED, "evolve": "feedback"}),
    # Each step plays until 8 groups are live. So the episodes of the other arms, 60 · 16 · 8, make fewer steps.
    "dynamic": Arm("GRPO, dynamic sampling", {**_LEARNERS, "batch_size": 8, "dynamic_sampling": 64, "episodes": 7680}),
    # Their tables give every arm as many environment steps, those of both agents together; SFT plays none.
    "sft": Arm("SFT on the solutions of D_0", {"method": "sft"}),
    "rft": Arm("RFT", {"method": "rft"}),
    "eto": Arm("ETO", {"method": "eto"}),
    "coevolving": Arm("co-evolving agents", {"method": "coevolving"}),
    "one-agent": Arm("co-evolving, all episodes the target's", {"method": "coevolving", "preference.agent": "none"}),
    "positive-agent": Arm("co-evolving, two targets", {"method": "coevolving", "preference.agent": "positive"}),
    "coevolving-growing": Arm(
        "co-evolving agents and task set", {"method": "coevolving", "preference.tasks": "growing", "evolve": "feedback"}
    ),
    "one-agent-growing": Arm(
        "one agent, and a task set that grows",
        {"method": "coevolving", "preference.agent": "none", "preference.tasks": "growing", "evolve": "feedback"},
    ),
    "rft-growing": Arm(
        "RFT on a task set that grows", {"method": "rft", "preference.tasks": "growing", "evolve": "feedback"}
    ),
    # For long tasks, in at most as many environment steps as feedback plays. Two episodes a task are the fewest that
    # make a group: so a step imitates the solutions of four times as many tasks.
    "uniform-long": Arm("uniform exploration, drafts of up to six actions", {"evolve": "uniform", **_LONG}),
    "rft-long": Arm(
        "RFT on a task set that grows, drafts of up to six actions",
        {
            "method": "rft",
            "preference.tasks": "growing",
            "preference.learning_rate": 3e-4,
            "evolve": "uniform",
            "synthesis.contexts": 120,
            "synthesis.budget": 120,
            "batch_size": 64,
            "group_size": 2,
            **_LONG,
        },
    ),
    # Each method on each ground.
    **{
        f"{ground}-{name}": Arm(title, {**settings, **own})
        for ground, settings in (("wide", _WIDE), ("deep", _DEEP))
        for name, (title, own) in _METHODS.items()
    },
    "hard-negatives": Arm("feedback + hard negatives", {"evolve": "feedback", "preference.hard_negatives": 0.1}),
}

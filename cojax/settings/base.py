"""The paper's settings (CoEvolve, Table 9), from which every experiment starts.

This file is not run by itself: an experiment names an environment and a policy, and overrides other settings. A leaf
has the name of the keyword that it sets. Its line has its default, range and meaning; reference.py prints them all. A
default that is the keyword's own is read from the function. Wherever a setting names a loss, an advantage, a signal, a
curriculum, a way to evolve, a selection of signals, an explorer, an engine or an environment, `package.module:name`
names one of your own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.loop import Loop
from cojax.policy.adapters import Lora
from cojax.registry.annotations import Range
from cojax.rollout.collect import Limits
from cojax.settings import preference_section, sections
from cojax.settings.leaf import (
    Above0,
    AtLeast0,
    AtLeast2,
    Count,
    DType,
    Leaf,
    Matrix,
    Number,
    PositiveShare,
    Seconds,
    Section,
    Share,
    defaults,
    one_of,
)  # fmt: skip
from cojax.storage.run_directory import RunDirectory

# Setting → entry → the paper's settings of that entry; other entries start from their own defaults.
PAPER: Mapping[str, Mapping[str, Mapping[str, Any]]] = {"learner.loss": {"grpo": {"kl_coefficient": 1e-3}}}


def loop() -> Section:
    """One training run: its steps, its task set and how it evolves."""
    own = defaults(Loop)
    return {
        "method": Leaf(
            "coevolve", one_of(preference_section.METHOD_NAMES),
            "how the policy learns: coevolve by GRPO; coevolving, eto, rft and sft in rounds (section preference); "
            "best_of_n not at all",
        ),
        "steps": Leaf(120, Number, "training steps; a larger number extends a finished run"),
        "batch_size": Leaf(32, Count, "tasks a step"),
        "group_size": Leaf(8, AtLeast2, "episodes of each task, K; an advantage is relative to the group"),
        "initial_tasks": Leaf(100, Count, "tasks in D_0, N"),
        "evolve": Leaf("feedback", str, "what guides the explorer"),
        "evolve_every": Leaf(10, Count, "steps between evolutions, F"),
        "signals": Leaf("forgetting,boundary,rare", str, "the signals in use, separated by commas"),
        "validate": Leaf(True, bool, "whether drafts are validated; False is the ablation"),
        "seed": Leaf(0, Annotated[int, Range(-(2**63), 2**63 - 1)], "decides all random choices"),
        "staleness": Leaf(
            own["staleness"], Literal[0, 1],
            "1: the next step's episodes are played while this step's update runs, with weights one update behind",
        ),
        "quorum": Leaf(
            own["quorum"], PositiveShare, "share of each group that an update waits for; other episodes are abandoned"
        ),
        "dynamic_sampling": Leaf(
            own["dynamic_sampling"], Number,
            "the most groups that a step samples to get batch_size live ones (whose rewards differ); it learns only "
            "from live groups (DAPO); 0 is off",
        ),
        **_budgets(own),
        "fresh_fraction": Leaf(0.0, Share, "share of a batch that is drawn from the newest tasks"),
        "curriculum": Leaf("uniform", str, "how the other tasks of a batch are drawn"),
    }  # fmt: skip


def _budgets(own: Mapping[str, Any]) -> Section:
    """What ends a run's learning before its steps do."""
    return {
        "episodes": Leaf(
            own["episodes"], Number,
            "the most training episodes of a run, in whole groups, probes left out; once they are used up, steps learn "
            "nothing but evolve; 0 is no limit",
        ),
        "environment_steps": Leaf(
            own["environment_steps"], Number,
            "the most environment steps (actions) of all training episodes, both agents' together, probes left out; "
            "the step that reaches it is played to its end; later ones learn nothing but evolve; 0 is no limit",
        ),
    }  # fmt: skip


def run() -> Section:
    """Where a run is stored, which of its files are kept, when it warns, and how it begins."""
    own = defaults(RunDirectory)
    return {
        "workdir": Leaf("runs/base", str, "the run directory"),
        "checkpoint_every": Leaf(10, Count, "steps between checkpoints"),
        "checkpoints_kept": Leaf(own["checkpoints_kept"], Count, "newest checkpoints kept"),
        "episodes_kept": Leaf(own["episodes_kept"], Number, "newest steps whose episodes are kept; 0 keeps all"),
        "mismatch_alarm": Leaf(
            0.1, AtLeast0, "warn above this mean |log-prob trainer − sampler| of a step; 0 is never"
        ),
        "accept_changed_code": Leaf(
            False, bool, "resume a run although a file of your own that it uses, its loss for example, has changed"
        ),
        "initial_explorer": Leaf("", str, 'the explorer that finds D_0, e.g. scripted; "" is explorer.name'),
        "perturbation": Leaf(
            0,
            Number,
            "above 0: flips the last bit of half of the initial parameters, drawn by this number, to measure what "
            "rounding alone changes; 0 flips none",
        ),
    }


def policy() -> Section:
    """The size of policy: a preset sets several settings together, but a flag overrides it."""
    return {"policy": Leaf("", str, 'a preset of cojax/settings/presets.py, or ""')}


def learner() -> Section:
    """Loss, advantage and weighting, and how a batch goes through the model."""
    own = defaults(Learner)
    return {
        "loss": Leaf(own["loss"], str, "the loss"),
        "advantage": Leaf(own["advantage"], str, "the advantage"),
        "weighting": Leaf(own["weighting"], str, "the weight of each token; group_token_mean is Eq. 1"),
        "row_length": Leaf(4096, AtLeast2, "tokens per packed row; the longest episode must fit into a row"),
        "micro_rows": Leaf(own["micro_rows"], Count, "rows per micro-batch"),
        "updates_per_batch": Leaf(
            own["updates_per_batch"], Count,
            "optimiser updates per step; at 1 the ratio to the old policy is 1, and no clip binds (docs/learner.md)",
        ),
        "each_update": Leaf(
            own["each_update"], Literal["whole", "part"],
            "with several updates per step: each uses the whole batch, or its own part of the groups",
        ),
        "skip_steps": Leaf(
            own["skip_steps"], tuple[Count, ...],
            "numbers of steps that make no update, to get past a step whose loss is not finite",
        ),
        "remat": Leaf(
            own["remat"], Literal["none", "dots", "layers", "auto"],
            "what the backward pass recomputes of each layer: nothing, all but its matrix products, everything, or the "
            "least with which an update fits into memory, determined at each start",
        ),
        "routes": Leaf(
            own["routes"], Literal["own", "compared", "replayed"],
            "for a model with experts, whose choice of experts an update uses: own: the learner's; compared: the "
            "learner's, with the metric routes_differing for differences to the sampler's; replayed: the sampler's "
            "(docs/learner.md)",
        ),
    }  # fmt: skip


def lora() -> Section:
    """Adapters that are trained while the model's matrices stay frozen in model.dtype."""
    own = defaults(Lora)
    return {
        "rank": Leaf(0, Number, "0 is off"),
        "alpha": Leaf(own["alpha"], Above0, "adapters are scaled by alpha / rank"),
        "targets": Leaf(own["targets"], tuple[Matrix, ...], "the matrices that get adapters; () is all"),
    }


def optimizer() -> Section:
    """AdamW, after clipping the gradient's norm."""
    own = defaults(adamw)
    return {
        "learning_rate": Leaf(1e-6, AtLeast0, "the highest rate"),
        "warmup_steps": Leaf(own["warmup_steps"], Number, "updates over which the rate rises linearly"),
        "decay_steps": Leaf(
            own["decay_steps"], Number, "updates over which the rate falls linearly; 0: constant, as in the paper"
        ),
        "decay_to": Leaf(own["decay_to"], Share, "share of the rate that is left after decay_steps"),
        "weight_decay": Leaf(own["weight_decay"], AtLeast0, "of matrices and embeddings, not of norms and biases"),
        "clip_norm": Leaf(own["clip_norm"], Above0, "largest global norm of the gradient"),
        "moments_dtype": Leaf(own["moments_dtype"], DType, 'storage dtype of both moments; "" is the parameters\''),
    }


def sampling() -> Section:
    """How the policy samples in training; never with top-k, top-p or a penalty."""
    return {
        "temperature": Leaf(0.9, Above0, "temperature of the distribution, in sampling and in the loss"),
        "max_tokens": Leaf(4096, Count, "most tokens of one action"),
    }


def limits() -> Section:
    """Limits of one episode, and how many episodes may be lost."""
    own = defaults(Limits)
    return {
        "max_turns": Leaf(own["max_turns"], Count, "most turns of an episode"),
        "environment_deadline": Leaf(
            None,
            Seconds | None,
            f"for one call of the environment; None: as it says itself, or else {own['environment_deadline']:g}",
        ),
        "engine_deadline": Leaf(own["engine_deadline"], Seconds, "for one completion"),
        "retries": Leaf(own["retries"], Number, "how often an episode lost to the infrastructure is played again"),
        "error_rate": Leaf(own["error_rate"], Share, "share of lost episodes above which a step fails"),
        "concurrency": Leaf(own["concurrency"], Count, "episodes played in parallel"),
    }


def synthesis() -> Section:
    """How much an evolution explores."""
    return {
        "contexts": Leaf(
            40, Annotated[int, Range(1, 10_000)], "expeditions per evolution, times candidates with a probe"
        ),
        "budget": Leaf(40, Count, "most tasks that an evolution adds, after admission"),
        "per_context": Leaf(2, Count, "most tasks from one expedition"),
        "admit": Leaf("all", str, "which of the tasks found enter the pool: all, or those that a probe chooses"),
        "prefix_replay": Leaf(
            False,
            bool,
            "episodes of joined tasks (evolve=frontier) begin with the first actions of the solution, which are not "
            "learned; their number keeps success near one half",
        ),
        "select": Leaf("confident", str, "which signals to follow if there are more than contexts"),
    }


# The dotted name of each section, and the function that lists its leaves.
SECTIONS: tuple[tuple[str, Callable[[], Section]], ...] = (
    ("", loop),
    ("", run),
    ("", policy),
    ("learner", learner),
    ("learner.lora", lora),
    ("optimizer", optimizer),
    ("sampling", sampling),
    ("limits", limits),
    ("synthesis", synthesis),
    *sections.SECTIONS,
    *preference_section.SECTIONS,
)
# Every setting by its dotted name.
LEAVES: dict[str, Leaf] = {
    f"{prefix}.{name}".lstrip("."): leaf for prefix, section in SECTIONS for name, leaf in section().items()
}
# Open section → the entry whose keywords it sets. The entry's signature declares their names and ranges.
OPEN: Mapping[str, str] = {
    "environment": "environment.name, e.g. --config.environment.isolated=True",
    "learner.loss_settings": "learner.loss",
    "learner.advantage_settings": "learner.advantage",
    "learner.weighting_settings": "learner.weighting",
    "curriculum_settings": "curriculum",
    "evolve_settings": "evolve",
    "admission_settings": "synthesis.admit",
    "signal_settings": "each signal, under its name, e.g. --config.signal_settings.forgetting.window=5; the name of "
    "package.module:name is `name`",
}
# Old name of a setting → its current name. The old one is still read, with a warning.
RENAMED: dict[str, str] = {}


def _type(leaf: Leaf) -> type:
    """The type of a setting that may also be None."""
    value, _ = get_args(leaf.range)
    return get_args(value)[0]


def get_config() -> ConfigDict:
    """The paper's configuration, without environment and policy."""
    config = ConfigDict()
    for name in OPEN:
        put(config, name, ConfigDict())
    for name, leaf in LEAVES.items():
        put(config, name, placeholder(_type(leaf)) if leaf.default is None else leaf.default)
    for old, new in RENAMED.items():
        default = LEAVES[new].default
        put(config, old, placeholder(int if default is None else type(default)))
    return config


def at(config: ConfigDict, name: str) -> Any:
    """The setting or section of that dotted name."""
    return functools.reduce(lambda section, part: section[part], name.split("."), config)


def put(config: ConfigDict, name: str, value: Any) -> None:
    """Sets a leaf by its dotted name, and adds missing sections."""
    *above, last = name.split(".")
    for part in above:
        if part not in config:
            config[part] = ConfigDict()
        config = config[part]
    config[last] = value

"""Checks a whole configuration once, before anything is built from it."""

import math
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from cojax import pool, worlds
from cojax.learner import weightings
from cojax.openai_api import check_address
from cojax.quality import EMBEDDINGS
from cojax.run import engines, entries, explorers, methods, policies, processes
from cojax.run.processes import LAST_PORT, check_mesh
from cojax.settings.base import count_attempts
from cojax.settings.ranges import check_ranges
from cojax.settings.tree import LEAVES

# Explorers that ask a model.
_MODEL_EXPLORERS = {"llm", "policy"}
# Entries that take only numbers are tried on these: scores of visits, and trajectories' counts of learned tokens.
_TRIAL_SCORES = ((), (0.0,), (1.0, 0.5))
_TRIAL_LENGTHS = [np.array([3, 1]), np.array([2, 0, 4])]
# Settings that hold addresses of servers.
_ADDRESS_SETTINGS = ("llm.base_url", "quality.base_url", "sglang.urls", "sglang.router", "environment.cluster")


def check_run(config: ConfigDict) -> None:
    """Raises ValueError for a configuration that cannot run. Looks up the devices, but builds nothing."""
    if not config.environment.name:
        raise ValueError(
            f"environment.name is empty; name one of {', '.join(worlds.available())}, or a module of your own: "
            "--config.environment.name=package.module"
        )
    check_settings(config)
    engines.check_servers(config)
    policies.check_folder(config)
    _check_pretrained(config)
    if "llm" in (config.explorer.name, explorers.name_initial(config)):
        check_address(config.llm.base_url, config.llm.model, "llm.base_url", "llm.model")
    check_mesh(config)


def check_settings(config: ConfigDict) -> None:
    """Raises ValueError for settings out of their ranges, and for settings that exclude each other."""
    check_ranges(config)
    processes.check_processes(config)
    _check_entries(config)
    EMBEDDINGS[config.quality.embedding](config.quality.base_url, config.quality.model, None)
    _check_servers(config)
    for setting in _ADDRESS_SETTINGS:  # even if unused: the configuration is stored, shown and sent
        if any("@" in address or "?" in address for address in str(entries.at(config, setting)).split(",")):
            raise ValueError(f"{setting} holds credentials or a query; leave them out: keys come from the environment")
    entries.check_cluster(config)
    if not config.workdir:
        raise ValueError("workdir is empty; name a folder for the run")
    _check_groups(config)
    _check_row_capacity(config)
    _check_warm_start(config)
    methods.check_method(config)
    if config.evaluation.reflect and config.evaluation.trials == 1:
        raise ValueError(
            "evaluation.reflect is True, but evaluation.trials is 1: nothing is tried again; set "
            "--config.evaluation.trials=3, say, or unset it"
        )
    _check_validation(config)
    _check_evolution(config)
    _check_explorers(config)
    if not config.model.path and not config.model.shape.num_hidden_layers:
        raise ValueError(
            "no policy: set --config.model.path to a folder in HF format, or choose a small one from scratch with "
            "--config.policy=tiny, or give every size of model.shape"
        )


def _check_entries(config: ConfigDict) -> None:
    """Raises ValueError for an unknown entry, for invalid settings of one, and for an entry that fails when tried."""
    for _ in entries.list_entries(config):
        pass
    entries.objective_of(config)
    entries.build_signals(config)
    trial_by_setting: dict[str, Callable[[Callable[..., Any]], object]] = {
        "curriculum": lambda curriculum: [pool.weigh_task(curriculum, scores) for scores in _TRIAL_SCORES],
        "learner.weighting": lambda weighting: weightings.check_weights(weighting(_TRIAL_LENGTHS), _TRIAL_LENGTHS),
    }
    for setting, try_entry in trial_by_setting.items():
        entry = entries.entry(config, setting)
        try:
            try_entry(entry.bind())
        except Exception as error:  # a function may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"{entry.kind} {entry.name!r} was tried and failed: {reason}") from error


def _check_groups(config: ConfigDict) -> None:
    """Raises ValueError for groups too small to learn from, and for counts that contradict other settings."""
    if math.ceil(config.quorum * config.group_size - 1e-9) < 2:
        raise ValueError(
            f"quorum is {config.quorum} of a group of {config.group_size}; expected a share, at most 1, of at least 2 "
            "episodes: an advantage is relative to the others of a group"
        )
    if 0 < (max_groups := config.dynamic_sampling) < config.batch_size:
        raise ValueError(
            f"dynamic_sampling is {max_groups}; expected 0 (off), or at least batch_size={config.batch_size} groups "
            "that a step may sample"
        )
    if max_groups and config.quorum < 1.0:
        raise ValueError(
            f"dynamic_sampling is {max_groups}, but with quorum={config.quorum} whether a group is live depends on "
            "who is slow; set --config.quorum=1.0 or --config.dynamic_sampling=0"
        )
    if max_groups and entries.objective_of(config).loss.takes_flat:
        raise ValueError(
            f"dynamic_sampling is {max_groups}, but learner.loss={config.learner.loss} as it is set also learns from "
            "groups whose rewards do not differ, which dynamic sampling leaves out; set kl_coefficient and the like to "
            "0, or --config.dynamic_sampling=0"
        )
    if config.environment_steps and config.staleness:
        raise ValueError(
            f"environment_steps is {config.environment_steps} with staleness={config.staleness}; expected 0 (any "
            "number), or steps that do not run ahead: set --config.staleness=0"
        )
    if config.episodes and (config.staleness or config.episodes < config.group_size):
        raise ValueError(
            f"episodes is {config.episodes} with group_size={config.group_size} and staleness={config.staleness}; "
            "expected 0 (any number), or at least a group, of steps that do not run ahead: set --config.staleness=0"
        )


def _check_warm_start(config: ConfigDict) -> None:
    """Raises ValueError for an empty range of noise, epochs with `lengthen`, and fewer demonstrations than a batch."""
    section = config.warm_start
    if section.noise_low > section.noise_high:
        raise ValueError(
            f"warm_start.noise_low is {section.noise_low}, above noise_high, {section.noise_high}; expected shares of "
            "wrong actions from the lowest to the highest"
        )
    if section.epochs and section.lengthen:
        raise ValueError(
            f"warm_start.epochs is True, but warm_start.lengthen is {section.lengthen}: an epoch takes all "
            "demonstrations from the first batch on; set --config.warm_start.lengthen=0"
        )
    if section.steps and section.demonstrations < section.batch_size:
        raise ValueError(
            f"warm_start.demonstrations is {section.demonstrations}; expected at least a batch of {section.batch_size}"
        )


def _check_pretrained(config: ConfigDict) -> None:
    """Raises ValueError for settings of a warm start that this policy's warm start does not read."""
    warm_start, model_path = config.warm_start, config.model.path
    if warm_start.lora.rank and not (model_path and warm_start.steps):
        obstacle = "warm_start.steps is 0" if model_path else "model.path names no model folder for them to adapt"
        raise ValueError(
            f"warm_start.lora.rank is {warm_start.lora.rank}, but {obstacle}; set --config.warm_start.lora.rank=0, or "
            f"{'--config.warm_start.steps=34, say' if model_path else '--config.model.path'}"
        )
    rate_settings = ("learning_rate", "pretrained_learning_rate")
    used_rate = rate_settings[bool(model_path)]
    idle_rate = next(rate_setting for rate_setting in rate_settings if rate_setting != used_rate)
    if warm_start.steps and warm_start[idle_rate] != (default_rate := LEAVES[f"warm_start.{idle_rate}"].default):
        lesson_text = "a model folder is taught" if model_path else "a policy from scratch is taught"
        raise ValueError(
            f"warm_start.{idle_rate} is {warm_start[idle_rate]:g}, but {lesson_text} by warm_start.{used_rate}; set "
            f"--config.warm_start.{used_rate}, and --config.warm_start.{idle_rate}={default_rate:g}"
        )


def _check_row_capacity(config: ConfigDict) -> None:
    """Raises ValueError if a row cannot hold the longest episode, or a micro-batch a group that the loss compares."""
    loss, section = entries.objective_of(config).loss, config.learner
    if section.row_length < config.engine.max_length:
        raise ValueError(
            f"learner.row_length is {section.row_length}, engine.max_length {config.engine.max_length}; a row must "
            "hold the longest episode, so make row_length at least max_length"
        )
    subject, peer_count = f"loss {loss.name!r}", 2 if loss.is_paired else config.group_size if loss.needs_groups else 1
    if peer_count == 1 and methods.make_hard_negatives(config):
        subject, peer_count = "preference.hard_negatives", 2
    if section.micro_rows * (section.row_length // config.engine.max_length) < peer_count:
        raise ValueError(
            f"{subject} compares {peer_count} episodes, which must share a micro-batch, and "
            f"learner.micro_rows is {section.micro_rows}; set --config.learner.micro_rows={peer_count}, or make "
            "learner.row_length a multiple of engine.max_length"
        )


def _check_servers(config: ConfigDict) -> None:
    """Raises ValueError for servers that cannot be launched, or cannot do what the loop needs."""
    sglang = config.sglang
    if config.staleness and sglang.release_memory:
        raise ValueError(
            "sglang.release_memory frees the servers' memory while the learner works, but with staleness="
            f"{config.staleness} the servers sample at that time; set --config.sglang.release_memory=False or "
            "--config.staleness=0"
        )
    if config.staleness > 1 and sglang.sync == "orbax" and not sglang.mixed:
        raise ValueError(
            "sglang.sync=orbax has all processes write weights right after their update, but with staleness="
            f"{config.staleness} servers load them up to {config.staleness - 1} updates later; set "
            "--config.sglang.sync=folder, or --config.staleness=1"
        )
    if sglang.port > (max_port := LAST_PORT - sglang.servers + 1):
        raise ValueError(
            f"sglang.port is {sglang.port}; {sglang.servers} servers take as many ports from there on, so it may be "
            f"at most {max_port}"
        )
    try:
        shlex.split(sglang.flags)
    except ValueError as error:
        raise ValueError(f"sglang.flags is {sglang.flags!r}, which is not a command line: {error}") from error


def _check_validation(config: ConfigDict) -> None:
    """Raises ValueError for validation settings that apply to none of the run's drafts, or name no attackers."""
    explorers.build_audit(config)
    section = config.validation
    override_texts = [f"validation.judge is {section.judge!r}"] * (section.judge != "off")
    override_texts += [f"validation.attempts is {section.attempts}"] * bool(section.attempts)
    override_texts += [f"validation.attempter is {section.attempter!r}"] * (section.attempter != "explorer")
    if override_texts and not any(map(_is_worded_by_model, (config.explorer.name, explorers.name_initial(config)))):
        raise ValueError(
            f"{override_texts[0]}, but only queries that a model words are judged or attempted, and the explorer "
            f"{config.explorer.name!r} uses none; set --config.explorer or --config.initial_explorer to one of "
            f"{', '.join(sorted(_MODEL_EXPLORERS))}, or unset it"
        )
    if section.attempter != "explorer" and not count_attempts(config):
        raise ValueError(
            f"validation.attempter is {section.attempter!r}, but validation.attempts is {section.attempts}: none is "
            "made; raise it, or set --config.validation.attempter=explorer"
        )


def _is_worded_by_model(explorer_name: str) -> bool:
    """Whether a model may word the explorer's tasks; an explorer from outside may ask one."""
    return explorer_name in _MODEL_EXPLORERS or ":" in explorer_name


def _check_explorers(config: ConfigDict) -> None:
    """Raises ValueError for explorers that cannot find anything, or that need the policy before it has learned."""
    section, initial_name = config.explorer, explorers.name_initial(config)
    if section.separator and not section.separator.strip():
        raise ValueError(
            f"explorer.separator is {section.separator!r}, which any query may hold; expected text that stands between "
            'the turns of a dialogue alone, or "" where a query has one turn'
        )
    if not section.stretch:
        raise ValueError("explorer.stretch is (); expected by how many actions a draft may outgrow its parent")
    # A call that ends the episode comes after the steps of an exploration.
    if section.shortest > (max_actions := section.steps + bool(section.ending)):
        raise ValueError(
            f"explorer.shortest is {section.shortest}, but drafts have at most {max_actions} actions, as "
            f"explorer.steps is {section.steps}; raise explorer.steps or lower explorer.shortest"
        )
    if config.warm_start.split != "initial":
        return
    if initial_name == "policy":
        raise ValueError(
            "warm_start.split is 'initial', but the policy that it is to teach would have to find those tasks itself; "
            "set --config.initial_explorer=scripted"
        )
    if _is_worded_by_model(initial_name) and config.validation.attempter == "policy":
        raise ValueError(
            "warm_start.split is 'initial', but the policy that it is to teach would have to attempt those tasks "
            "before (validation.attempter is 'policy'); set --config.initial_explorer=scripted or "
            "--config.validation.attempter=explorer"
        )


# Evolutions that start only from signals.
_SIGNAL_EVOLUTIONS = ("feedback", "displaced")


def _check_evolution(config: ConfigDict) -> None:
    """Raises ValueError for settings that no evolution of this run could use.

    These are prefixes that none replays or that would be learned, admission where no evolution finds tasks, and an
    evolution by signals where `signals` is empty.
    """
    joining_evolution = config.evolve if ":" in config.evolve else "frontier"
    for setting, setting_value, required, cause in (
        ("method", config.method, "coevolve", "only coevolve replays prefixes"),
        ("evolve", config.evolve, joining_evolution, "only frontier finds joined tasks"),
        ("learner.routes", config.learner.routes, "own", "the sampler reports no routes of replayed actions"),
    ):
        if config.synthesis.prefix_replay and setting_value != required:
            reason = f"synthesis.prefix_replay is True, but {setting} is {setting_value!r}: {cause}"
            raise ValueError(f"{reason}; set --config.{setting}={required}, or --config.synthesis.prefix_replay=False")
    admission_name, evolves = config.synthesis.admit, methods.evolves(config)
    if admission_name != "all" and not (evolves and config.evolve != "none"):
        cause, fix = "evolve is 'none'", "--config.evolve=uniform, say"
        if not evolves:
            cause, fix = f"with method={config.method} the task set does not grow", "--config.preference.tasks=growing"
        raise ValueError(
            f"synthesis.admit is {admission_name!r}, but {cause}: there are no candidates; set {fix}, or "
            "--config.synthesis.admit=all"
        )
    if evolves and config.evolve in _SIGNAL_EVOLUTIONS and not config.signals:
        raise ValueError(
            f"evolve is {config.evolve!r}, but signals is empty: there is nothing to follow; set --config.signals="
            "forgetting,boundary,rare, or --config.evolve=none"
        )

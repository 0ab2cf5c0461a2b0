"""Derives what `config.method` decides: the settings of rounds, their loss, and which settings it excludes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cojax.learner.objective import HardNegatives
from cojax.preference import METHODS, Method, read_coefficients, weights
from cojax.settings.base import at
from cojax.settings.tree import LEAVES, SETTING_NAMES, RoundsSettings

# Settings of the section `preference` that rounds read.
_ROUND_SETTINGS = tuple(field.name for field in dataclasses.fields(RoundsSettings))
_BEST_OF_TRIAL_COUNT = 10  # trials of best_of_n where evaluation.trials is not set (ETO)
_EPISODES_PER_PAIR = 2  # episodes that a preference compares
# Settings that an experiment chooses for its policy, whatever the method.
_POLICY_SETTINGS = frozenset({"epochs", "batch_size", "learning_rate"})


def apply_method(config: ConfigDict) -> ConfigDict:
    """Returns the configuration of a run with the settings that its method decides.

    best_of_n takes no step, and tries each task several times in its final evaluation. A method that learns from pairs
    gets micro-batches that hold a pair.
    """
    method_and_settings = rounds_of(config)
    if config.method != "best_of_n" and (method_and_settings is None or method_and_settings[0].loss != "dpo"):
        return config
    config = config.copy_and_resolve_references()
    if method_and_settings is not None:
        section = config.learner
        micro_batch_episodes = section.micro_rows * (section.row_length // max(1, config.engine.max_length))
        if 0 < micro_batch_episodes < _EPISODES_PER_PAIR:
            section.micro_rows *= -(-_EPISODES_PER_PAIR // micro_batch_episodes)
        return config
    config.steps = 0
    if config.evaluation.trials == LEAVES["evaluation.trials"].default:
        config.evaluation.trials = _BEST_OF_TRIAL_COUNT
    return config


def rounds_of(config: ConfigDict) -> tuple[Method, RoundsSettings] | None:
    """The method and the settings of a run that learns in rounds; None for any other run."""
    if config.method not in METHODS:
        return None
    method, section = METHODS[config.method], config.preference
    overrides = {setting: section[setting] for setting in _ROUND_SETTINGS if not _is_default(setting, section[setting])}
    return method, RoundsSettings(**{**method.fixes, **overrides})


def has_second_agent(config: ConfigDict) -> bool:
    """Whether a second agent plays and learns beside the policy."""
    method_and_settings = rounds_of(config)
    return method_and_settings is not None and method_and_settings[1].agent != "none"


def agents(config: ConfigDict) -> int:
    """Number of policies that a run trains."""
    return 1 + has_second_agent(config)


def evolves(config: ConfigDict) -> bool:
    """Whether the task set grows beyond D_0, if `evolve` says so."""
    return rounds_of(config) is None or config.preference.tasks == "growing"


def find_round_loss(method: Method, settings: RoundsSettings) -> tuple[str, Mapping[str, Any]]:
    """The loss of rounds and its settings. λ_DPO is not one of them: it is the weight of the target's pairs."""
    if method.loss == "sft":
        return "sft", {}
    dpo_weight, sft_weight = read_coefficients(settings)
    return "dpo", {"beta": settings.beta, "sft_coefficient": sft_weight / dpo_weight}


def make_hard_negatives(config: ConfigDict) -> HardNegatives | None:
    """The loss of hard negatives, which is added to that of the groups; None if its weight is 0."""
    preference = config.preference
    if not preference.hard_negatives:
        return None
    return HardNegatives(preference.hard_negatives, beta=preference.beta, min_partial=preference.hard)


def list_group_sizes(config: ConfigDict) -> list[int]:
    """Numbers of trajectories of a step's groups, or of an update's examples, which decide the rows of a batch."""
    method_and_settings = rounds_of(config)
    return [1] * method_and_settings[1].batch_size if method_and_settings else [config.group_size] * config.batch_size


def check_method(config: ConfigDict) -> None:
    """Raises ValueError for settings that the method does not read or cannot work with."""
    method_and_settings = rounds_of(config)
    overrides = {setting for setting in config.preference if not _is_default(setting, config.preference[setting])}
    if config.method == "coevolve" and "hard_negatives" in overrides:
        overrides -= {"hard_negatives", "beta", "hard"}
    if method_and_settings is None:
        if unread_settings := sorted(overrides - _POLICY_SETTINGS):
            methods_text = "coevolve" if unread_settings[0] == "hard_negatives" else f"one of {', '.join(METHODS)}"
            raise ValueError(
                f"preference.{unread_settings[0]} is {config.preference[unread_settings[0]]!r}, but method is "
                f"{config.method!r}, which does not learn in rounds; set --config.method to {methods_text}, or unset it"
            )
        return
    method, settings = method_and_settings
    ignored_settings = {*method.fixes, *method.ignores, "hard_negatives"}
    unread_settings = sorted(setting for setting in overrides - {"dpo", "sft"} if setting in ignored_settings)
    unread_settings += [setting for setting in ("dpo", "sft") if setting in overrides and setting in method.ignores]
    if unread_settings:
        raise ValueError(
            f"preference.{unread_settings[0]} is {config.preference[unread_settings[0]]!r}, but method "
            f"{config.method!r} does not read it; unset it, or set --config.method=coevolving"
        )
    for setting in SETTING_NAMES["of_grpo"]:
        if (value := at(config, setting)) != (default := LEAVES[setting].default):
            raise ValueError(
                f"{setting} is {value!r}, but method {config.method!r} learns in rounds, which do not read it; set "
                f"--config.{setting}={default}, or --config.method=coevolve"
            )
    has_one_agent = settings.agent == "none" and not method.fixes.get("agent")
    if has_one_agent and (idle_settings := sorted(overrides & {"share", "other"})):
        raise ValueError(
            f"preference.{idle_settings[0]} is {config.preference[idle_settings[0]]!r}, but it concerns the second "
            "agent, and preference.agent is 'none'; unset it, or set --config.preference.agent=failure"
        )
    kinds = {kind: weight for kind, weight in weights(settings).items() if kind != "other" or settings.agent != "none"}
    if method.loss == "dpo" and not any(kinds.values()):
        raise ValueError(
            f"preference.{' and '.join(kinds)} are 0, so there is nothing to learn from; set one of them above 0"
        )
    if config.preference.tasks == "growing" and not method.plays:
        raise ValueError(
            f"preference.tasks is 'growing', but method {config.method!r} plays no episodes around which tasks could "
            "be found; set --config.preference.tasks=static"
        )


def _is_default(setting: str, value: Any) -> bool:
    return value == LEAVES[f"preference.{setting}"].default

"""Reading a configuration: entries of registries, sections as keywords, and what only makes sense together."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from cojax.curriculum import CURRICULA
from cojax.quality import EMBEDDINGS
from cojax.rollout.chat import SHOWN
from cojax.signals import SIGNALS
from cojax.synthesis import EVOLUTIONS, SELECTIONS
from cojax.types import SignalKind
from cojax.validation.query import MOST_CHARACTERS

# How a judge's word counts: not asked for, noted, or enough to refuse a draft.
JUDGES = {"off": None, "note": False, "veto": True}
# Who attempts a draft on its query alone, and how often where validation.attempts does not say.
_ATTEMPTERS = ("explorer", "policy")
_ATTEMPTS = 2
# The least value of settings that count something. An advantage relative to a group needs a group of two.
_BOUNDS = {
    "batch_size": 1, "group_size": 2, "evolve_every": 1, "initial_tasks": 1, "checkpoint_every": 1,
    "checkpoints_kept": 1, "steps": 0, "episodes_kept": 0, "synthesis.contexts": 1, "synthesis.budget": 1,
    "synthesis.per_context": 1, "explorer.runs": 1, "explorer.steps": 1, "explorer.shortest": 1, "explorer.width": 1,
    "explorer.window": 2_000, "validation.attempts": 0, "validation.evaluation_words": 0,
    "validation.longest_query": 1,
    "evaluation.tasks": 1, "evaluation.trials": 1,
    "evaluation.dev_tasks": 1, "evaluation.every": 0, "limits.concurrency": 1, "limits.max_turns": 1,
    "limits.retries": 0, "sampling.max_tokens": 1, "engine.slots": 1, "learner.micro_rows": 1,
    "learner.updates_per_batch": 1, "warm_start.steps": 0, "warm_start.batch_size": 1, "warm_start.check_every": 1,
    "warm_start.check_tasks": 1, "warm_start.demonstrations": 1, "model.vocabulary": 1, "sglang.servers": 1,
    "sglang.attempts": 1, "sglang.restarts": 0, "sglang.port": 0, "quality.k": 1,
}  # fmt: skip


# Seconds.
_TIMES = (
    "sglang.probe_every", "sglang.startup_deadline", "sglang.sync_deadline", "limits.engine_deadline",
    "limits.environment_deadline",
)  # fmt: skip
_LAST_PORT = 65_535

# Shares.
_SHARES = ("forgetting.threshold", "boundary.threshold", "explorer.cut", "explorer.mistakes", "fresh_fraction")
# Explorers that have a mind.
_MINDS = {"llm", "policy"}

# What may be said for short on the command line: a leaf by its section, or by itself.
SHORT = {"engine": "engine.name", "explorer": "explorer.name", "data": "environment.data"}


def spelled_out(argument: str) -> str:
    """A flag as absl takes it: --config.engine=NAME, say, is short for --config.engine.name=NAME."""
    return re.sub(rf"^(--?config)\.({'|'.join(SHORT)})(?==|$)", lambda flag: f"{flag[1]}.{SHORT[flag[2]]}", argument)


def choose(table: Mapping[Any, Any], name: str, kind: str) -> Any:
    """The entry of a registry. Raises ValueError, which lists the others."""
    if name not in table:
        raise ValueError(f"{kind} {name!r} not found; available: {', '.join(table)}")
    return table[name]


def settings(config: ConfigDict, *without: str) -> dict[str, Any]:
    """A section of the configuration as keywords."""
    return {name: value for name, value in config.to_dict().items() if name not in without}


def kinds(config: ConfigDict) -> list[SignalKind]:
    """The signals switched on, from "forgetting,boundary,rare"."""
    named = [kind.strip() for kind in config.signals.split(",") if kind.strip()]
    for kind in named:
        choose(SIGNALS, kind, "signal")
    return [kind for kind in SIGNALS if kind in named]


def check_bounds(config: ConfigDict) -> None:
    """Settings that count or time something. Raises ValueError for one below its least value."""
    for name, least in _BOUNDS.items():
        section, _, leaf = name.rpartition(".")
        value = config[section][leaf] if section else config[leaf]
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; expected at least {least}")
    for name in _TIMES:
        section, _, leaf = name.partition(".")
        if not config[section][leaf] > 0:  # not a number is neither
            raise ValueError(f"{name} is {config[section][leaf]}; expected a number of seconds above 0")
    _check_servers(config.sglang)


# Settings that are addresses of servers.
_ADDRESSES = ("llm.base_url", "quality.base_url", "sglang.urls", "sglang.router")


def _check_servers(section: ConfigDict) -> None:
    """What servers are launched with. Raises ValueError."""
    if section.port > (last := _LAST_PORT - section.servers + 1):
        raise ValueError(
            f"sglang.port is {section.port}; {section.servers} servers take as many ports from it on, so it may be at "
            f"most {last}"
        )
    try:
        shlex.split(section.flags)
    except ValueError as error:
        raise ValueError(f"sglang.flags is {section.flags!r}, which is no command line: {error}") from error


def _check_validation(config: ConfigDict) -> None:
    """That whatever a draft is to go through can happen. Raises ValueError."""
    section = config.validation
    for name in ("evaluation_similarity", "pool_similarity"):
        if not 0.0 <= section[name] <= 1.0:
            raise ValueError(f"validation.{name} is {section[name]}; expected a cosine from 0 (compares nothing) to 1")
    if section.longest_query > MOST_CHARACTERS:
        raise ValueError(
            f"validation.longest_query is {section.longest_query}; expected at most {MOST_CHARACTERS} characters, as "
            "each query is compared with all others"
        )
    choose(JUDGES, section.judge, "validation.judge")
    choose(dict.fromkeys(_ATTEMPTERS), section.attempter, "validation.attempter")
    asked = [f"validation.judge is {section.judge!r}"] * (section.judge != "off")
    asked += [f"validation.attempts is {section.attempts}"] * bool(section.attempts)
    asked += [f"validation.attempter is {section.attempter!r}"] * (section.attempter != "explorer")
    if asked and not _MINDS & {config.explorer.name, config.initial_explorer or config.explorer.name}:
        raise ValueError(
            f"{asked[0]}, but that is for queries that a mind words, and both D_0 and what follows are of the explorer "
            f"{config.explorer.name!r}; set --config.explorer or --config.initial_explorer to one of "
            f"{', '.join(sorted(_MINDS))}, or take it back"
        )
    if section.attempter != "explorer" and not attempts(config):
        raise ValueError(
            f"validation.attempter is {section.attempter!r}, but validation.attempts is {section.attempts}: none is "
            "made; raise it, or set --config.validation.attempter=explorer"
        )


def _check_explorers(config: ConfigDict) -> None:
    """That explorers can find anything. Raises ValueError."""
    section, first = config.explorer, config.initial_explorer or config.explorer.name
    if section.separator and not section.separator.strip():
        raise ValueError(
            f"explorer.separator is {section.separator!r}, which any query may hold; expected text that stands between "
            'the turns of a dialogue alone, or "" where a query has one turn'
        )
    # What ends an episode by a call comes after the steps of an exploration.
    if section.shortest > (longest := section.steps + bool(section.ending)):
        raise ValueError(
            f"explorer.shortest is {section.shortest}, but drafts have at most {longest} actions, as explorer.steps is "
            f"{section.steps}; raise explorer.steps or lower explorer.shortest"
        )
    if config.warm_start.split != "initial":
        return
    if first == "policy":
        raise ValueError(
            "warm_start.split is 'initial', but the policy that it is to teach would have to find those tasks itself; "
            "set --config.initial_explorer=scripted"
        )
    if first in _MINDS and config.validation.attempter == "policy":
        raise ValueError(
            "warm_start.split is 'initial', but the policy that it is to teach would have to attempt those tasks "
            "before (validation.attempter is 'policy'); set --config.initial_explorer=scripted or "
            "--config.validation.attempter=explorer"
        )


def attempts(config: ConfigDict) -> int:
    """At each draft of a mind, on its query alone."""
    return _ATTEMPTS if config.validation.attempts is None else config.validation.attempts


def check(config: ConfigDict) -> None:
    """Settings that only make sense together or within bounds. Raises ValueError."""
    choose(EVOLUTIONS, config.evolve, "evolve")
    choose(CURRICULA, config.curriculum, "curriculum")
    choose(SELECTIONS, config.synthesis.select, "synthesis.select")
    choose(SHOWN, config.model.tools, "model.tools")
    choose(EMBEDDINGS, config.quality.embedding, "quality.embedding")(
        config.quality.base_url, config.quality.model, None
    )
    kinds(config)
    check_bounds(config)
    for name in _ADDRESSES:
        section, _, leaf = name.partition(".")
        if any("@" in address or "?" in address for address in str(config[section][leaf]).split(",")):
            # Whether it is used or not: the configuration is written down, shown and sent on.
            raise ValueError(f"{name} holds credentials or a query; leave them out: keys come from the environment")
    if not config.workdir:
        raise ValueError("workdir is empty; name a folder for the run")
    if config.sampling.temperature <= 0:
        raise ValueError(f"sampling.temperature is {config.sampling.temperature}; training samples need one above 0")
    for name in _SHARES:
        section, _, leaf = name.rpartition(".")
        share = config[section][leaf] if section else config[leaf]
        if not 0.0 <= share <= 1.0:  # not a number is neither
            raise ValueError(f"{name} is {share}; expected a share from 0 to 1")
    if config.staleness not in (0, 1):
        raise ValueError(
            f"staleness is {config.staleness}; expected 0, or 1: episodes are played one step ahead of updates"
        )
    if config.staleness and config.sglang.release_memory:
        raise ValueError(
            "sglang.release_memory gives memory back while the learner works, when with staleness=1 servers sample; "
            "set one of the two back"
        )
    if not 0.0 < config.quorum <= 1.0 or math.ceil(config.quorum * config.group_size - 1e-9) < 2:
        raise ValueError(
            f"quorum is {config.quorum} of a group of {config.group_size}; expected a share, at most 1, of at least 2 "
            "episodes: an advantage is relative to the others of a group"
        )
    if config.learner.row_length < config.engine.max_length:
        raise ValueError(
            f"learner.row_length is {config.learner.row_length}, engine.max_length {config.engine.max_length}; "
            "a row must hold the longest episode, so make row_length at least max_length"
        )
    if config.warm_start.steps and config.warm_start.demonstrations < config.warm_start.batch_size:
        raise ValueError(
            f"warm_start.demonstrations is {config.warm_start.demonstrations}; expected at least a batch of "
            f"{config.warm_start.batch_size}"
        )
    if config.evaluation.reflect and config.evaluation.trials == 1:
        raise ValueError(
            "evaluation.reflect is True, but evaluation.trials is 1: nothing is tried again; set "
            "--config.evaluation.trials=3, say, or take it back"
        )
    _check_validation(config)
    _check_explorers(config)
    if not config.model.path and not config.model.shape.num_hidden_layers:
        raise ValueError(
            "no policy: set --config.model.path to a folder in HF format, or choose a small one from scratch with "
            "--config.policy=tiny, or give every size of model.shape"
        )

"""Builds explorers, and the validation of their drafts, from a configuration."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax import worlds
from cojax.environment import Actor, Charted, EngineError, Environment, Episode, traits_of
from cojax.environment.watch import watched_play
from cojax.explorer import Explorer
from cojax.explorer.llm.chat_model import Budget, ChatModel, Journal
from cojax.explorer.llm.explorer import LLMExplorer, judge
from cojax.explorer.scripted.explorer import ScriptedExplorer, no_neighbours
from cojax.rollout.chat import PolicyActors
from cojax.run.parts import Parts, choose_threshold, choose_width, make_sampling
from cojax.settings.base import JUDGE_MODES, choose, count_attempts, settings
from cojax.settings.tree import LLMSettings, ModelExplorerSettings, ScriptedSettings, read_leaves
from cojax.signals import guidance
from cojax.types import Message, Task, Turn
from cojax.validation import Attempters, Attempts, Audit, Exclusions, Validation

# Parallel expeditions of a model if explorer.width is None. The number affects which tasks are found, so it must not
# depend on a setting that may change during a run.
_MODEL_WIDTH = 2


def name_initial(config: ConfigDict) -> str:
    """The name of the explorer that finds D_0."""
    return config.initial_explorer or config.explorer.name


def find_ending(config: ConfigDict, environment: Environment) -> str:
    """The tool that ends an episode: the one that the environment states, else explorer.ending.

    Raises ValueError if both are set and differ.
    """
    ending_tool, configured_tool = traits_of(environment).ending, config.explorer.ending
    if ending_tool in (None, configured_tool):
        return configured_tool
    if configured_tool != ScriptedExplorer.ending:
        raise ValueError(
            f"explorer.ending is {configured_tool!r}, but an episode of {environment.name!r} is ended by "
            f"{ending_tool or 'an action without calls'}; leave explorer.ending out"
        )
    return ending_tool


def scripted(config: ConfigDict, parts: Parts, journal: Journal) -> ScriptedExplorer:
    """Builds the explorer that uses the environment's affordances and its grammar, and no model."""
    return ScriptedExplorer(
        neighbours=parts.environment.neighbours if isinstance(parts.environment, Charted) else no_neighbours,
        play=watched_play(parts.limits.environment_deadline),
        width=choose_width(config, parts.environment, 1),
        guidance=guidance(parts.signals),
        ending=find_ending(config, parts.environment),
        **_read_keywords(config.explorer, ScriptedSettings),
    )


def _read_keywords(explorer_section: ConfigDict, settings_class: type) -> dict[str, Any]:
    """Returns the settings that every explorer has, and those of `settings_class`, as keywords."""
    return {setting: explorer_section[setting] for setting in ("runs", "steps", *read_leaves(settings_class))}


def build_llm_explorer(config: ConfigDict, parts: Parts, journal: Journal) -> Explorer:
    """Builds the explorer that asks the model llm.model at llm.base_url."""
    from cojax.explorer.llm.chat_client import ChatClient

    return _build_llm_explorer(config, parts, "llm", ChatClient(LLMSettings(**settings(config.llm)), journal))


def build_policy_explorer(config: ConfigDict, parts: Parts, journal: Journal) -> Explorer:
    """Builds the explorer whose model is the policy in training, on the engine of its rollouts."""
    from cojax.explorer.llm.chat_client import PolicyModel

    model_name, llm_settings = Path(config.model.path).name or "self", LLMSettings(**settings(config.llm))
    chat_model = PolicyModel(parts.engine, parts.chat, model_name, journal, llm_settings, parts.limits.engine_deadline)
    return _build_llm_explorer(config, parts, "policy", chat_model)


def _build_llm_explorer(config: ConfigDict, parts: Parts, kind: str, chat_model: ChatModel) -> LLMExplorer:
    return LLMExplorer(
        chat_model,
        ending=find_ending(config, parts.environment),
        width=choose_width(config, parts.environment, _MODEL_WIDTH),
        # A model has its own deadlines; it may wait for its turn and between attempts.
        play=watched_play(parts.limits.environment_deadline, act_timeout_s=config.llm.deadline + config.llm.timeout),
        kind=kind,
        attempt_turns=parts.limits.max_turns,
        guidance=guidance(parts.signals),
        **_read_keywords(config.explorer, ModelExplorerSettings),
    )


def samples_policy(config: ConfigDict) -> bool:
    """Whether an evolution samples the policy; the weights must then not change before the evolution ends."""
    explorer_name = config.explorer.name
    has_attempts = config.validate and explorer_name == "llm" and count_attempts(config) > 0
    # An explorer from outside may sample it, and probes do.
    may_sample = explorer_name == "policy" or ":" in explorer_name or config.synthesis.admit != "all"
    return may_sample or (has_attempts and config.validation.attempter == "policy")


def build_audit(config: ConfigDict) -> Audit | None:
    """What attacks drafts, None where no attackers are set. Raises RegistryError or ValueError for wrong names."""
    if not config.validation.attackers:
        return None
    choose_for_drafts: Callable[..., Audit] = worlds.import_part("audit.examination").choose_for_drafts
    return choose_for_drafts(config.validation.attackers, vars(worlds.module(config.environment.name)))


def validation(config: ConfigDict, parts: Parts, explorer: Explorer, reserved_tasks: Sequence[Task]) -> Validation:
    """Builds the validation of the explorer's drafts, which lets no task of `reserved_tasks` pass.

    Attempts and a judge are used only for queries that a model wrote: a grammar's queries are complete by construction.
    """
    validation_section = config.validation
    draft_attempts, ask_judge = None, None
    play = watched_play(parts.limits.environment_deadline)
    if isinstance(explorer, LLMExplorer):
        play = watched_play(parts.limits.environment_deadline, act_timeout_s=config.llm.deadline + config.llm.timeout)
        if attempt_count := count_attempts(config):
            attempters = choose(ATTEMPTERS, validation_section.attempter, "validation.attempter")(config, parts)
            draft_attempts = Attempts(attempters, attempt_count, parts.limits.max_turns)
        has_veto = choose(JUDGE_MODES, validation_section.judge, "validation.judge")
        ask_judge = None if has_veto is None else functools.partial(judge, explorer.chat_model, has_veto)
    return Validation(
        parts.environment,
        Exclusions.of(
            reserved_tasks,
            choose_threshold(config, parts.environment, reserved_tasks),
            validation_section.evaluation_words,
            parts.evaluation if parts.from_initial else (),
        ),
        enabled=config.validate,
        play=play,
        attempts=draft_attempts,
        judge=ask_judge,
        safe=validation_section.safe,
        longest_query=validation_section.longest_query,
        control_tokens=tuple(token.content for token in parts.chat.tokenizer.added_tokens_decoder.values()),
        audit=build_audit(config),
    )


def _make_policy_attempters(config: ConfigDict, parts: Parts) -> Attempters:
    policy_sampling = make_sampling(config, parts.chat, config.sampling.temperature)
    make_actor = PolicyActors(parts.engine, parts.chat, policy_sampling)

    @contextlib.contextmanager
    def make_attempters(explorer: LLMExplorer, task: Task, count: int) -> Iterator[list[Actor]]:
        # Two expeditions may examine one task at the same time: the explorer's place distinguishes their sessions.
        attempt_names = [f"attempt-{explorer.place}-{task.id}-{attempt}" for attempt in range(count)]
        policy_attempts: list[Actor] = [
            PolicyAttempt(
                make_actor(attempt_name, (config.seed, int(task.id, 16), attempt)),
                explorer.remaining_budget(),
                functools.partial(parts.engine.release, attempt_name),
            )
            for attempt, attempt_name in enumerate(attempt_names)
        ]
        try:
            yield policy_attempts
        finally:
            for attempt_name in attempt_names:
                parts.engine.release(attempt_name)

    return make_attempters


@dataclasses.dataclass(frozen=True)
class PolicyAttempt:
    """The policy's attempt at a draft: an actor that raises EngineError once the evolution's budget is closed or spent.

    `close` frees its slot of the engine, which another attempt may be waiting for.
    """

    act: Actor
    budget: Budget
    close: Callable[[], None]

    def __call__(self, episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if self.budget.is_closed or self.budget.seconds <= 0:
            raise EngineError("the evolution is over; raise llm.deadline if it was not stopped")
        return self.act(episode, messages)


ATTEMPTERS: dict[str, Callable[[ConfigDict, Parts], Attempters]] = {
    "explorer": lambda config, parts: LLMExplorer.attempters,
    "policy": _make_policy_attempters,
}
EXPLORERS: dict[str, Callable[[ConfigDict, Parts, Journal], Explorer] | str] = {
    "scripted": scripted,
    "careless": "experiments.study.careless:careless",
    "llm": build_llm_explorer,
    "policy": build_policy_explorer,
}

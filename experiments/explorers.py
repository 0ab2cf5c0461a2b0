"""Explorers, and what examines their drafts, from a configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.environment import Actor, Charted, EngineError, Environment, Episode
from cojax.explorer import Explorer
from cojax.explorer.llm.chat_model import Budget, ChatModel, check_limits
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.llm.journal import Journal
from cojax.explorer.scripted.explorer import ScriptedExplorer, no_neighbours
from cojax.explorer.scripted.windows import Ending
from cojax.host.deadlines import Watched
from cojax.rollout.chat import PolicyActor
from cojax.rollout.engine import Sampling
from cojax.signals import guidance
from cojax.types import Message, Task, Turn
from cojax.validation import Attempts, Exclusions, Judge, Validation
from cojax.validation.attempts import Attempters
from experiments.careless import CarelessExplorer
from experiments.parts import Parts
from experiments.settings import JUDGES, attempts, choose, settings

# Expeditions of a model that go at once where explorer.width does not say: what it is, decides which tasks result, so
# that no setting which a run may change on its way has a part in it.
_WIDTH = 2


def check(config: ConfigDict, names: Collection[str]) -> None:
    """The settings of explorers of these names. Raises ValueError for what cannot work."""
    if "llm" in names:
        chat_settings(config)
    if "policy" in names:
        check_limits(settings(config.llm))


def check_ending(config: ConfigDict, environment: Environment) -> None:
    """Raises ValueError where the environment has no such tool to end an episode: else it is found once paid for."""
    Ending.of(environment, config.explorer.ending)


def scripted(config: ConfigDict, made: Parts, journal: Journal) -> ScriptedExplorer:
    """Affordances and grammar, no model."""
    section = config.explorer
    return ScriptedExplorer(
        neighbours=made.environment.neighbours if isinstance(made.environment, Charted) else no_neighbours,
        play=Watched(made.limits.environment_deadline),
        width=1 if section.width is None else section.width,
        guidance=guidance(made.signals),
        **{name: section[name] for name in ("runs", "steps", "stretch", "ending", "cut")},
    )


def careless(config: ConfigDict, made: Parts, journal: Journal) -> Explorer:
    """The scripted one, which errs at the rate explorer.mistakes: for experiments on validation."""
    return CarelessExplorer(scripted(config, made, journal), config.explorer.mistakes)


def llm(config: ConfigDict, made: Parts, journal: Journal) -> Explorer:
    """The model of llm.model at llm.base_url."""
    from cojax.explorer.llm.chat_client import ChatClient

    return _by_mind(config, made, "llm", ChatClient(chat_settings(config), journal))


def policy(config: ConfigDict, made: Parts, journal: Journal) -> Explorer:
    """The policy that is being trained, on the engine that its rollouts come from."""
    from cojax.explorer.llm.policy_model import PolicyModel

    section = settings(config.llm)
    check_limits(section)
    chat_model = PolicyModel(
        made.engine,
        made.chat,
        name=Path(config.model.path).name or "self",
        journal=journal,
        max_tokens=section["max_tokens"],
        temperature=section["temperature"],
        most_tokens=section["max_tokens_per_evolution"],
        most_requests=section["max_requests_per_evolution"],
        deadline=section["deadline"],
        engine_deadline=made.limits.engine_deadline,
    )
    return _by_mind(config, made, "policy", chat_model)


def chat_settings(config: ConfigDict) -> Any:
    """The section `llm` as `ChatSettings`. Raises ValueError for what cannot work."""
    # The client's package takes most of a second to import, and most runs have none.
    from cojax.explorer.llm.chat_settings import ChatSettings

    return ChatSettings(**settings(config.llm))


def _by_mind(config: ConfigDict, made: Parts, kind: str, chat_model: ChatModel) -> LLMExplorer:
    section = config.explorer
    return LLMExplorer(
        chat_model,
        runs=section.runs,
        steps=section.steps,
        ending=section.ending,
        separator=section.separator,
        shortest=section.shortest,
        window=section.window,
        width=_WIDTH if section.width is None else section.width,
        # A model has deadlines of its own, and waits for its turn and between attempts.
        play=Watched(made.limits.environment_deadline, thinking=config.llm.deadline + config.llm.timeout),
        kind=kind,
        attempt_turns=made.limits.max_turns,
        guidance=guidance(made.signals),
    )


def samples_policy(config: ConfigDict) -> bool:
    """Whether an evolution asks the policy itself, so that its weights must stay as they are meanwhile."""
    attempted = config.validate and config.explorer.name == "llm" and attempts(config) > 0
    # What one from outside asks is not known.
    unknown = ":" in config.explorer.name
    return unknown or config.explorer.name == "policy" or (attempted and config.validation.attempter == "policy")


def journal(config: ConfigDict) -> Journal:
    """The journal of the run."""
    return Journal(Path(config.workdir) / "journal.jsonl")


def validation(config: ConfigDict, made: Parts, explorer: Explorer, reserved: Sequence[Task]) -> Validation:
    """What the explorer's drafts go through. A grammar's queries say all there is to know: attempts and opinions are
    for queries that a model wrote."""
    section = config.validation
    attempted, judge = None, None
    play = Watched(made.limits.environment_deadline)
    if isinstance(explorer, LLMExplorer):
        play = Watched(made.limits.environment_deadline, thinking=config.llm.deadline + config.llm.timeout)
        if count := attempts(config):
            attempters = choose(ATTEMPTERS, section.attempter, "validation.attempter")(config, made)
            attempted = Attempts(attempters, count, made.limits.max_turns)
        veto = choose(JUDGES, section.judge, "validation.judge")
        judge = None if veto is None else Judge(explorer.chat_model, veto)
    return Validation(
        made.environment,
        Exclusions.of(reserved, section.evaluation_similarity, section.evaluation_words),
        enabled=config.validate,
        play=play,
        attempts=attempted,
        judge=judge,
        safe=section.safe,
        longest_query=section.longest_query,
        control_tokens=tuple(token.content for token in made.chat.tokenizer.added_tokens_decoder.values()),
    )


def _by_explorer(config: ConfigDict, made: Parts) -> Attempters:
    return LLMExplorer.attempters


def _by_policy(config: ConfigDict, made: Parts) -> Attempters:
    sampling = Sampling(
        temperature=config.sampling.temperature,
        max_tokens=config.sampling.max_tokens,
        stop_tokens=(made.chat.end,),
    )

    @contextlib.contextmanager
    def attempters(explorer: LLMExplorer, task: Task, count: int) -> Iterator[list[Actor]]:
        # Two expeditions may examine the same task at once.
        sessions = [f"attempt-{explorer.place}-{task.id}-{attempt}" for attempt in range(count)]
        try:
            yield [
                _timely(
                    PolicyActor(
                        made.engine, made.chat, sampling, session=session, seed=(config.seed, int(task.id, 16), attempt)
                    ),
                    explorer.remaining_budget(),
                )
                for attempt, session in enumerate(sessions)
            ]
        finally:
            for session in sessions:
                made.engine.release(session)

    return attempters


def _timely(act: Actor, budget: Budget) -> Actor:
    """The actor, as long as the evolution it acts for goes on; it costs nothing but time."""

    def timely(episode: Episode, messages: tuple[Message, ...]) -> Turn:
        if budget.closed or budget.seconds <= 0:
            raise EngineError("the evolution is over; raise llm.deadline if it was not stopped")
        return act(episode, messages)

    return timely


ATTEMPTERS = {"explorer": _by_explorer, "policy": _by_policy}
EXPLORERS: dict[str, Callable[[ConfigDict, Parts, Journal], Explorer]] = {
    "scripted": scripted,
    "careless": careless,
    "llm": llm,
    "policy": policy,
}

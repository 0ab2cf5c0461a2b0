"""The objects of a run that need no parameters, and what its environment states about itself."""

import dataclasses
from collections.abc import Mapping, Sequence

from jax.sharding import Mesh
from ml_collections import ConfigDict

from cojax.environment import Environment, traits_of
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Engine, Sampling
from cojax.run.methods import evolves
from cojax.run.processes import ALONE, Together
from cojax.settings.base import settings
from cojax.signals import SignalKind
from cojax.signals.tools import read_by_verb
from cojax.similarity import measure_usual_similarity
from cojax.synthesis import Synthesis
from cojax.types import Task


@dataclasses.dataclass(frozen=True)
class Parts:
    """The objects of one configuration. `evaluation`, `development` and `challenge` are the tasks of its splits.

    `evaluated_in` is `environment` itself, unless an evaluation episode could read there what a training episode left.
    `from_initial` says that the evaluation tasks were split off the initial ones: the environment has none.
    `together` are the processes of the run.
    """

    environment: Environment
    evaluated_in: Environment
    chat: Chat
    model: ModelConfig
    mesh: Mesh | None
    engine: Engine
    limits: Limits
    evaluation: tuple[Task, ...]
    development: tuple[Task, ...]
    challenge: tuple[Task, ...]
    signals: Mapping[str, SignalKind]
    from_initial: bool = False
    together: Together = ALONE


# Above this cosine, wording does not distinguish tasks.
_MAX_DISTINGUISHING_COSINE = 0.95
# The split to train on if nothing is synthesized.
TRAIN_SPLIT = "train"


def make_limits(config: ConfigDict, environment: Environment) -> Limits:
    """Returns an episode's limits: at most the environment's concurrency, and its deadline if none is set."""
    environment_traits, limit_settings = traits_of(environment), settings(config.limits)
    if environment_traits.concurrency is not None:
        limit_settings["concurrency"] = min(limit_settings["concurrency"], environment_traits.concurrency)
    if limit_settings["environment_deadline"] is None:
        del limit_settings["environment_deadline"]
        if environment_traits.deadline is not None:
            limit_settings["environment_deadline"] = environment_traits.deadline
    return Limits(**limit_settings)


def make_sampling(config: ConfigDict, chat: Chat, temperature: float) -> Sampling:
    """How the policy is sampled at this temperature."""
    return Sampling(temperature=temperature, max_tokens=config.sampling.max_tokens, stop_tokens=chat.stops)


def choose_width(config: ConfigDict, environment: Environment, usual_width: int) -> int:
    """How many expeditions run in parallel: explorer.width, `usual_width` if unset, at most the environment's limit."""
    wanted_width = usual_width if config.explorer.width is None else config.explorer.width
    max_parallel = traits_of(environment).concurrency
    return wanted_width if max_parallel is None else min(wanted_width, max_parallel)


def check_evolution(config: ConfigDict, environment: Environment) -> None:
    """Raises ValueError if the task set is to evolve in an environment where no task can be proved."""
    reason = traits_of(environment).incomparable
    if reason and config.evolve != "none" and evolves(config):
        raise ValueError(
            f"no synthesized task could be proved in environment {environment.name!r}, as the states of its episodes "
            f"cannot be compared ({reason}): it trains on its own tasks and synthesizes nothing. Set "
            "--config.evolve=none"
        )


def draw_own_tasks(config: ConfigDict, environment: Environment, reserved_tasks: Sequence[Task]) -> Synthesis:
    """Returns D_0 where nothing is synthesized: at most initial_tasks tasks of the environment's split `train`.

    Evaluation tasks are left out. Raises ValueError if no other task remains.
    """
    reserved_ids = {task.id for task in reserved_tasks}
    candidates = environment.tasks(TRAIN_SPLIT, config.initial_tasks + len(reserved_ids), config.seed)
    tasks = tuple(task for task in candidates if task.id not in reserved_ids)[: config.initial_tasks]
    if not tasks:
        raise ValueError(
            f"environment {environment.name!r} has no task in its split {TRAIN_SPLIT!r} that is not evaluated on, and "
            "nothing can be synthesized in it; expected tasks of its own to train on"
        )
    return Synthesis(tasks)


def read_kinds(environment: Environment, signals: Mapping[str, SignalKind]) -> Mapping[str, SignalKind]:
    """Returns the kinds of signals; if tools take whole commands as text, the kinds go by the commands' verbs."""
    commands = traits_of(environment).commands
    return {signal_name: read_by_verb(kind, commands) for signal_name, kind in signals.items()} if commands else signals


def choose_threshold(config: ConfigDict, environment: Environment, evaluation_tasks: Sequence[Task]) -> float:
    """Returns the cosine above which a query counts as an evaluation task's; 0 compares no wording.

    It is validation.evaluation_similarity, or a measured value in an environment that words its tasks alike.
    """
    similarity_record = similarities(config, environment, evaluation_tasks)
    return similarity_record.get("evaluation_similarity", config.validation.evaluation_similarity)


def similarities(config: ConfigDict, environment: Environment, evaluation_tasks: Sequence[Task]) -> dict[str, float]:
    """Returns the threshold, and the similarity of the evaluation tasks among themselves, as a result records them.

    That similarity is the 99th percentile of their cosines. It is measured only if the environment words its tasks
    alike. The threshold is then at least as high; above 0.95, wording distinguishes nothing and is not compared.
    """
    min_threshold = config.validation.evaluation_similarity
    if not (min_threshold and evaluation_tasks and traits_of(environment).worded_alike):
        return {}
    measured_cosine = measure_usual_similarity([task.query for task in evaluation_tasks])
    threshold = max(min_threshold, measured_cosine) if measured_cosine <= _MAX_DISTINGUISHING_COSINE else 0.0
    return {"evaluation_similarity": threshold, "evaluation_similarity_measured": measured_cosine}

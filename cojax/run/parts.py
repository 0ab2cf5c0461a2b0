"""The objects of one run that need no parameters yet."""

import dataclasses
from collections.abc import Mapping

from jax.sharding import Mesh

from cojax.environment import Environment
from cojax.policy.config import ModelConfig
from cojax.rollout.chat import Chat
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Engine
from cojax.run.processes import ALONE, Together
from cojax.signals import SignalKind
from cojax.types import Task


@dataclasses.dataclass(frozen=True)
class Parts:
    """Of one configuration; `evaluation`, `development` and `challenge` are the tasks of its splits.

    `evaluated_in` is `environment` itself, unless an episode could read there what one of training left.
    `from_initial` says that the evaluation tasks are a part of the initial ones, as the environment has none.
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

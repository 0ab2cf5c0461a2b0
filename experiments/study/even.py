"""The scripted explorer, to whom all tools are alike: a D_0 that leaves none out because few users would try it."""

import dataclasses
from collections.abc import Mapping

from ml_collections import ConfigDict

from cojax.environment import Environment
from cojax.explorer import Exploration
from cojax.explorer.llm.chat_model import Journal
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.run.explorers import scripted
from cojax.run.parts import Parts
from cojax.types import ExplorationContext, Task


def even(config: ConfigDict, parts: Parts, journal: Journal) -> ScriptedExplorer:
    """The explorer's entry."""
    return EvenExplorer(**{**vars(scripted(config, parts, journal)), "name": "even"})


@dataclasses.dataclass(frozen=True)
class EvenExplorer(ScriptedExplorer):
    """Ignores the weights of tools."""

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None = None,
    ) -> Exploration:
        return super().explore(environment, task, context, seed)

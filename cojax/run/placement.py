"""Where the environment of a configuration lives: in this process and its workers, or on the nodes of a Ray cluster."""

from ml_collections import ConfigDict

from cojax import worlds
from cojax.environment import Environment
from cojax.run.entries import entry


def check(config: ConfigDict) -> None:
    """Raises ValueError for a cluster that is no address, or that needs Ray where Ray is not installed."""
    if config.environment.cluster:
        worlds.part("cluster").check(config.environment.cluster)


def environment(config: ConfigDict) -> Environment:
    """The environment that the configuration names. Raises ValueError or EnvironmentFailure where it cannot be made."""
    chosen = entry(config, "environment.name")
    if not config.environment.cluster:
        return chosen.bound()()
    return worlds.part("cluster").place(config.environment.cluster, chosen.name, chosen.given)

"""An environment on the nodes of a Ray cluster: an actor a node loads it there and serves episodes.

    environment = place("ray://HOST:10001", "bfcl", {"category": "base"})

trainer ── nodes ── one node each ──Ray── actor ── the environment, with its own worker where it is isolated
(threads)  (which)  (calls, losses)       (a thread an episode)

placed.py      Environment and Episode, as the trainer sees them
nodes.py       which node gets an episode; nodes that are lost and nodes that join
node.py        the calls of one actor, and when it is lost
host.py        the actor: serves the calls
messages.py    what crosses, and its bounds
connection.py  the only importer of Ray

Where an episode is played does not change what happens in it. A lost node raises EnvironmentFailure in its episodes:
they are played again elsewhere, as any that the infrastructure lost. Ray is imported when `place` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import connection
from .connection import check
from .nodes import Nodes
from .placed import PlacedEnvironment, environment_of

__all__ = ["PlacedEnvironment", "check", "place"]


def place(address: str, name: str, settings: Mapping[str, Any]) -> PlacedEnvironment:
    """The environment of that name and settings, on every node of the cluster that offers processors.

    `address` is ray://HOST:PORT, or HOST:PORT or auto where this host belongs to the cluster. Raises ValueError for a
    cluster that cannot be reached, and EnvironmentFailure, which names the node, where one cannot make the environment.
    """
    nodes = Nodes(connection.connect(address), name, settings)
    try:
        nodes.begin()
        return environment_of(nodes)
    except BaseException:
        nodes.close()
        raise

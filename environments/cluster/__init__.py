"""An environment on the nodes of a Ray cluster: an actor a node loads it there and serves episodes.

    environment = place("ray://HOST:10001", "bfcl", {"category": "base"})

trainer ── nodes ── one node each ──Ray── actor ── the environment, with its own worker where it is isolated
(threads)  (which)  (calls, losses)       (a thread an episode)

nodes.py       which node gets an episode; nodes that are lost and nodes that join; the calls of one
host.py        the actor: serves the calls; what crosses, and its bounds
connection.py  the only importer of Ray

Where an episode is played does not change what happens in it. A lost node raises EnvironmentFailure in its episodes:
they are played again elsewhere, like any that the infrastructure lost. Ray is imported when `place` is called.
"""

import functools
import weakref
from collections.abc import Mapping
from typing import Any

from cojax.environment import SandboxLost
from cojax.types import Task
from ..worker.served import Served, ServedEpisode
from ..worker.wire import Malformed, read
from . import connection
from .connection import check
from .nodes import Nodes

__all__ = ["ClusterEnvironment", "check", "place"]


def place(address: str, name: str, settings: Mapping[str, Any]) -> "ClusterEnvironment":
    """The environment of that name and settings, on every node of the cluster that offers processors.

    `address` is ray://HOST:PORT, or HOST:PORT or auto where this host belongs to the cluster. Raises ValueError for a
    cluster that cannot be reached, and EnvironmentFailure, which names the node, if one cannot make the environment.
    """
    nodes = Nodes(connection.connect(address), name, settings)
    try:
        nodes.start_all()
        return ClusterEnvironment(nodes)
    except BaseException:
        nodes.close()
        raise


class ClusterEnvironment(Served):
    """An environment on the nodes of a cluster; it implements `cojax.environment.Environment`.

    A call raises what the environment raises on its node, as `play` would see it here. It raises EnvironmentFailure if
    the node is lost or fails otherwise. `layers` says which layers of isolation hold on the nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes.description, nodes.call_service)
        self.nodes, self.runs_policy_code = nodes, read(bool, nodes.description["runs_policy_code"])
        self.close = weakref.finalize(self, nodes.close)

    def start(self, task: Task) -> ServedEpisode:
        """One episode on one node, to its end."""
        (node, episode_id), runs_policy_code = self.nodes.place_episode(), self.runs_policy_code

        def call(record_type: Any, op: str, *arguments: Any) -> Any:
            """The node's reply as a record of type `record_type`.

            In a step or a verdict, a value of the wrong shape is the policy's doing if the environment runs the
            policy's code.
            """
            try:
                return read(record_type, node.call(episode_id, op, list(arguments)))
            except Malformed as failure:
                if runs_policy_code and op in ("step", "evaluate"):
                    raise SandboxLost(str(failure)) from failure
                raise

        return ServedEpisode(node, task, call, functools.partial(node.end_episode, episode_id))

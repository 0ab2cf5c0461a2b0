"""The environment and episode protocols of the trainer, carried out on nodes of a cluster."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from cojax.environment import PolicyLoss
from cojax.types import Action, Evaluation, Message, Observation, Task, to_json
from ..worker import wire
from ..worker.records import Malformed, Opening, read
from ..worker.served import Served, ServedCharted, ServedDemonstrated
from .node import Node
from .nodes import Nodes

# Seconds for a call that concerns the whole environment.
_SERVICE = 120.0


class PlacedEnvironment(Served):
    """An environment on the nodes of a cluster, by the protocol of `cojax.environment.Environment`.

    A call raises what the environment raises on its node, as `play` would see it here; where the node is lost, and for
    whatever else happens to one, EnvironmentFailure. `layers` says which layers of isolation hold on the nodes.
    """

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(nodes.described)
        self.nodes, self.runs_policy_code = nodes, read(bool, nodes.described["runs_policy_code"])
        self.close = weakref.finalize(self, nodes.close)

    def start(self, task: Task) -> PlacedEpisode:
        return PlacedEpisode(*self.nodes.place_episode(), task, self.runs_policy_code)

    def _call(self, op: str, *arguments: Any) -> Any:
        return self.nodes.service(op, list(arguments), _SERVICE)


class PlacedCharted(PlacedEnvironment, ServedCharted):
    """An environment with the protocol `Charted`."""


class PlacedDemonstrated(PlacedEnvironment, ServedDemonstrated):
    """An environment with the protocol `Demonstrated`."""


class PlacedChartedDemonstrated(PlacedCharted, ServedDemonstrated):
    """An environment with both protocols."""


def environment_of(nodes: Nodes) -> PlacedEnvironment:
    """The environment, with exactly the protocols of the one on the nodes."""
    kinds: dict[tuple[bool, bool], type[PlacedEnvironment]] = {
        (False, False): PlacedEnvironment,
        (True, False): PlacedCharted,
        (False, True): PlacedDemonstrated,
        (True, True): PlacedChartedDemonstrated,
    }
    return kinds[nodes.described["charted"], nodes.described["demonstrated"]](nodes)


class PlacedEpisode:
    """One episode on one node, to its end."""

    def __init__(self, node: Node, number: int, task: Task, runs_policy_code: bool) -> None:
        self.node, self._number, self._task = node, number, task
        self._runs_policy_code = runs_policy_code
        self._tools: tuple[Mapping[str, Any], ...] = ()

    def reset(self) -> tuple[Message, ...]:
        opened = self._call(Opening, "reset", to_json(self._task))
        self._tools = opened.tools
        return opened.messages

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._tools

    def step(self, action: Action) -> Observation:
        try:
            wire.encode(sent := to_json(action))
        except (ValueError, RecursionError) as error:
            reason = f"error: the action is not JSON that can be sent: {error}"
            return Observation((Message("tool", reason[:200]),), ok=False)
        return self._judged(Observation, "step", sent)

    def state(self) -> Mapping[str, Any]:
        return self._call(Mapping[str, Any], "state")

    def affordances(self) -> tuple[Action, ...]:
        return self._call(tuple[Action, ...], "affordances")

    def evaluate(self) -> Evaluation:
        return self._judged(Evaluation, "evaluate")

    def close(self) -> None:
        self.node.end(self._number)

    def _judged(self, kind: Any, op: str, *arguments: Any) -> Any:
        """As `_call`; a value of the wrong shape is the policy's doing where the environment runs its code."""
        try:
            return self._call(kind, op, *arguments)
        except Malformed as failure:
            if self._runs_policy_code:
                raise PolicyLoss(str(failure)) from failure
            raise

    def _call(self, kind: Any, op: str, *arguments: Any) -> Any:
        """The node's reply as a record of type `kind`."""
        return read(kind, self.node.call(self._number, op, list(arguments)))

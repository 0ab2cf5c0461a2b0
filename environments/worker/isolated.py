"""The environment and episode protocols of the trainer, carried out by other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cojax.environment import EnvironmentFailure, EpisodeFailure, LimitExceeded, PolicyLoss
from cojax.types import Action, Evaluation, Message, Observation, Task, to_json
from . import wire
from .bounds import Bounds
from .client import Client, Connection
from .records import Malformed, Opening, read
from .served import Served, ServedCharted, ServedDemonstrated


class IsolatedEnvironment(Served):
    """An environment in a worker, by the protocol of `cojax.environment.Environment`.

    A failure of the host or the worker raises EnvironmentFailure. A failure of the episode's own process raises
    EpisodeFailure, or LimitExceeded where the current call may have caused it; from reset on, with `runs_policy_code`,
    PolicyLoss. `layers` says which layers of isolation hold here.
    """

    def __init__(self, client: Client, bounds: Bounds, runs_policy_code: bool) -> None:
        super().__init__(client.connection.described)
        self._client, self._bounds, self.runs_policy_code = client, bounds, runs_policy_code

    def start(self, task: Task) -> IsolatedEpisode:
        return IsolatedEpisode(self._client.connect(), task, self._bounds, self.runs_policy_code)

    @property
    def supervisor(self) -> int:
        """The id of the supervisor, from which all other processes of the environment descend."""
        return self._client.connection.process.pid

    def close(self) -> None:
        """Ends every process behind this environment."""
        self._client.close()

    def _call(self, op: str, *arguments: Any) -> Any:
        connection = self._client.connect()
        try:
            return connection.call(0, op, list(arguments), self._bounds.service_deadline)
        except EnvironmentFailure:
            if not connection.ended:
                raise
            # The supervisor ended before or during the call. These calls may be made twice.
            return self._client.connect().call(0, op, list(arguments), self._bounds.service_deadline)


class IsolatedCharted(IsolatedEnvironment, ServedCharted):
    """An environment with the protocol `Charted`."""


class IsolatedDemonstrated(IsolatedEnvironment, ServedDemonstrated):
    """An environment with the protocol `Demonstrated`."""


class IsolatedChartedDemonstrated(IsolatedCharted, ServedDemonstrated):
    """An environment with both protocols."""


def environment_of(client: Client, bounds: Bounds, runs_policy_code: bool) -> IsolatedEnvironment:
    """The environment, with exactly the protocols of the one in the worker."""
    described = client.connection.described
    kinds: dict[tuple[bool, bool], type[IsolatedEnvironment]] = {
        (False, False): IsolatedEnvironment,
        (True, False): IsolatedCharted,
        (False, True): IsolatedDemonstrated,
        (True, True): IsolatedChartedDemonstrated,
    }
    return kinds[described["charted"], described["demonstrated"]](client, bounds, runs_policy_code)


class IsolatedEpisode:
    """One episode in a child of its own, which is killed when the episode is closed."""

    def __init__(self, connection: Connection, task: Task, bounds: Bounds, runs_policy_code: bool) -> None:
        self._connection, self._task, self._bounds = connection, task, bounds
        self._number = next(connection.episodes)
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._runs_policy_code, self._opened = runs_policy_code, False

    def reset(self) -> tuple[Message, ...]:
        opened = self._call(Opening, "reset", to_json(self._task))
        self._tools, self._opened = opened.tools, True
        return opened.messages

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._tools

    def step(self, action: Action) -> Observation:
        try:
            wire.encode(sent := to_json(action))
        except (ValueError, RecursionError) as error:
            reason = f"error: the action is not JSON that can be sent: {error}"
            return Observation((Message("tool", reason[:200]),), ok=False)
        try:
            return self._call(Observation, "step", sent)
        except Malformed as failure:
            # Code in the child could write such a reply on purpose, so that a failing episode counts as lost.
            raise LimitExceeded(f"the reply to step is no observation: {failure}") from failure

    def state(self) -> Mapping[str, Any]:
        return self._call(Mapping[str, Any], "state")

    def affordances(self) -> tuple[Action, ...]:
        return self._call(tuple[Action, ...], "affordances")

    def evaluate(self) -> Evaluation:
        return self._call(Evaluation, "evaluate")

    def close(self) -> None:
        self._connection.end_episode(self._number)

    def _call(self, kind: Any, op: str, *arguments: Any) -> Any:
        """The child's reply as a record of type `kind`."""
        try:
            return read(kind, self._connection.call(self._number, op, list(arguments), self._bounds.deadline))
        except (EpisodeFailure, LimitExceeded) as failure:
            if self._runs_policy_code and self._opened:
                raise PolicyLoss(str(failure)) from failure
            raise

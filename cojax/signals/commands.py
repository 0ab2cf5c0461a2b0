"""Text commands as tools: where one tool takes a whole command as text, signals treat each verb as its own tool."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.signals.kinds import Guidance, Visit
from cojax.types import Action, Call, Group, Signal, Trajectory, normalise


@dataclasses.dataclass(frozen=True)
class ByVerb:
    """A kind of signal that reads `act(command="go north")` as a call of the tool `act go`.

    `commands` maps a tool to the parameter that holds the command. `kind` is the kind of signal itself.
    """

    kind: Any
    commands: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def colour(self) -> str:
        return self.kind.colour

    @property
    def guidance(self) -> Guidance:
        return self.kind.guidance

    def init(self) -> dict[str, Any]:
        return self.kind.init()

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        return self.kind.update(memory, [self._group(group) for group in groups])

    def confidence(self, signal: Signal, visits: Sequence[Visit]) -> float:
        return self.kind.confidence(signal, visits)

    def _group(self, group: Group) -> Group:
        return Group(group.task, tuple(map(self._trajectory, group.trajectories)))

    def _trajectory(self, trajectory: Trajectory) -> Trajectory:
        turns = (dataclasses.replace(turn, action=self._action(turn.action)) for turn in trajectory.turns)
        return dataclasses.replace(trajectory, turns=tuple(turns))

    def _action(self, action: Action) -> Action:
        return dataclasses.replace(action, calls=tuple(map(self._call, action.calls)))

    def _call(self, call: Call) -> Call:
        command = call.arguments.get(self.commands.get(call.name, "")) if isinstance(call.arguments, Mapping) else None
        verb = normalise(command).partition(" ")[0] if isinstance(command, str) else ""
        return Call(f"{call.name} {verb}", call.arguments) if verb else call

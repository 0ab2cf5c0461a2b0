"""One world: the commands of an episode, their limit, and the state."""

from collections.abc import Mapping
from typing import Any

from cojax.types import canonical
from ..tools import commands
from . import record
from .commands import worth_trying
from .engine import Simulator
from .limits import limit_of

_UNKNOWN = "No known action matches that input."


class World:
    """A world of one episode, single-use. A command that the simulator does not know raises ValueError."""

    def __init__(self, jvm: str, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup that names no variation of a task."""
        if set(setup) != {"task", "variation", "simplifications"}:
            raise ValueError(f"the setup is {dict(setup)!r:.200}; expected task, variation and simplifications")
        self.simulator = Simulator(jvm, setup["task"], setup["variation"], setup["simplifications"])
        self._limit = limit_of(setup["task"])
        self._done = 0
        self._told: Mapping[str, Any] | None = None

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the simulator says to a command."""
        if name == commands.ENDING:
            return ""
        command = commands.command_of(name, arguments)
        self._done += 1
        said = self.simulator.step(command)
        self._told = None
        if said.startswith(_UNKNOWN):
            raise ValueError(said)
        return said

    def over(self) -> bool:
        """Whether the task is completed or failed, or the episode has had its commands."""
        return self.simulator.over or self._done >= self._limit

    def state(self) -> Mapping[str, Any]:
        """Where the agent is, what it carries, what each room holds, and the score."""
        if self._told is None:
            self._told = record.state_of(self.simulator.objects(), self.simulator.score)
        return self._told


def offers(world: World) -> list[tuple[str, dict[str, Any]]]:
    """(tool, arguments) of commands worth trying now."""
    state = world.state()
    return commands.offers(worth_trying(world.simulator.valid(), state["rooms"]), canonical(state))

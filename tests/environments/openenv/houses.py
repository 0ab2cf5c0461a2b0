"""Lamps and a safe as environments of openenv: one with tools, one whose actions are records."""

from typing import Literal
from uuid import uuid4

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

ROOMS = ("kitchen", "cellar", "hall", "attic")


class House(State):
    lamps: dict[str, dict[str, str]] = Field(default_factory=dict)


class Lamps(MCPEnvironment):
    """Lamps of a house; the cellar's must be green."""

    def __init__(self, rooms: int = 4):
        mcp = FastMCP("lamps")
        self._rooms, self._house = ROOMS[:rooms], House()

        @mcp.tool
        def paint(room: str, color: Literal["red", "green", "blue"]) -> str:
            """Paint the lamp of a room."""
            if room not in self._house.lamps:
                raise ValueError(f"there is no room {room}")
            self._house.lamps[room]["color"] = color
            return "painted"

        @mcp.tool
        def look(room: str) -> dict[str, str]:
            """Look at the lamp of a room."""
            return self._house.lamps[room]

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, **kwargs):
        colors = ("red", "blue")
        lamps = {room: {"color": colors[((seed or 0) >> place) % 2]} for place, room in enumerate(self._rooms)}
        self._house = House(episode_id=episode_id or str(uuid4()), lamps=lamps)
        return Observation(metadata={"asks": "paint the lamp of the cellar green"})

    def step(self, action, timeout_s=None, **kwargs):
        return self._rewarded(super().step(action, timeout_s=timeout_s, **kwargs))

    async def step_async(self, action, timeout_s=None, **kwargs):
        return self._rewarded(await super().step_async(action, timeout_s=timeout_s, **kwargs))

    def _rewarded(self, seen):
        self._house.step_count += 1
        green = self._house.lamps.get("cellar", {}).get("color") == "green"
        seen.done, seen.reward = green, float(green)
        return seen

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("expected a call of a tool")

    @property
    def state(self):
        return self._house


class Turn(Action):
    """Turn the wheel of the safe."""

    way: Literal["left", "right"]
    by: int


class Position(Observation):
    position: int = 0


class Safe(Environment[Turn, Position, State]):
    """A safe that opens at 3; it tells no state of its own."""

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._position, self._state = seed or 0, State(episode_id=episode_id)
        return Position(position=self._position)

    def step(self, action, timeout_s=None, **kwargs):
        self._position += action.by if action.way == "right" else -action.by
        self._state.step_count += 1
        opened = self._position == 3
        return Position(position=self._position, done=opened, reward=float(opened))

    @property
    def state(self):
        return self._state


def position(safe):
    """What a reader tells of the safe."""
    return safe._position


def opens(reset):
    """The solution of a task."""
    return [{"name": "act", "arguments": {"way": "right", "by": 3 - reset["seed"]}}]


def painted(reset):
    """The solution of a task."""
    return [{"name": "paint", "arguments": {"room": "cellar", "color": "green"}}]

"""Environments of openenv that misbehave: the argument `kind` says how."""

import math
import os
import time

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Press(Action):
    """Press a key."""

    key: str


class Seen(Observation):
    text: str = ""


class Kept(State):
    keys: list[str] = Field(default_factory=list)


REWARDS = {"nan": math.nan, "inf": math.inf, "huge": 10**400, "minus inf": -math.inf}


class Keys(Environment[Press, Seen, Kept]):
    """Keys that are pressed."""

    def __init__(self, kind: str = ""):
        super().__init__()
        self._kind, self._state = kind, Kept()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._state = Kept(episode_id=episode_id)
        match self._kind:
            case "over":
                return Seen(done=True)
            case "sometimes over":
                return Seen(done=seed == 3)
            case "bare":
                return {"text": "no observation"}
            case "reset hangs":
                time.sleep(3_600)
            case "reset dies":
                os._exit(3)
            case "reset floods":
                return Seen(text="x" * 50_000_000)
            case "strange":
                return Seen(text="\ud800")
        return Seen(text=f"{sorted(kwargs.items())}")

    def step(self, action, timeout_s=None, **kwargs):
        self._state.keys.append(action.key)
        self._state.step_count += 1
        match self._kind:
            case "step hangs":
                time.sleep(3_600)
            case "step dies":
                os._exit(3)
            case "step floods":
                return Seen(text="x" * 50_000_000)
            case "nothing":
                return None
            case "bare step":
                return {"text": "no observation"}
            case "raises":
                raise RuntimeError("the keys are stuck")
            case "forks":
                if os.fork() == 0:
                    time.sleep(3_600)
            case "surrogate":
                return Seen(text="\ud800")
            case "not a number":
                return Seen.model_construct(done=False, reward="much", text="", metadata={})
        return Seen(text=action.key, reward=REWARDS.get(self._kind, 0.5))

    def num_tasks(self, split):
        return {"none": 0}[split]

    @property
    def state(self):
        if self._kind == "stateless":
            return None
        if self._kind == "endless state":
            self._state.keys = ["x" * 1_000] * 100_000
        return self._state


class Finishing(MCPEnvironment):
    """A job whose tool is called finish; after the reset of seed 5 it has other tools."""

    def __init__(self, changing: bool = False):
        mcp = FastMCP("jobs")
        self._kept, self._mcp, self._changing = Kept(), mcp, changing

        @mcp.tool
        def finish(job: str) -> str:
            """Finish a job."""
            self._kept.keys.append(job)
            return "finished"

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._kept = Kept(episode_id=episode_id)
        if self._changing and seed == 5:

            @self._mcp.tool
            def start(job: str) -> str:
                """Start a job."""
                return "started"

        return Observation()

    def step(self, action, timeout_s=None, **kwargs):
        seen = super().step(action, timeout_s=timeout_s, **kwargs)
        seen.reward = float("wash" in self._kept.keys)
        return seen

    async def step_async(self, action, timeout_s=None, **kwargs):
        seen = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        seen.reward = float("wash" in self._kept.keys)
        return seen

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("expected a call of a tool")

    @property
    def state(self):
        return self._kept


def washed(reset):
    """The solution of a task."""
    return [{"name": "finish", "arguments": {"job": "wash"}}]

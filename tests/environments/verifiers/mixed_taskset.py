"""Tasksets whose tasks differ, and whose data is hostile: the setting `kind` says which."""

import math
from typing import Any

import verifiers.v1 as vf
from pydantic import Field


class Held(vf.State):
    count: int = 0


class Data(vf.TaskData):
    info: Any = None


class Settings(vf.TaskConfig):
    tools: tuple[str, ...] = ("add",)
    reward: str = "0.5"
    stopped: bool = False


class Add(vf.Toolset[vf.ToolsetConfig, Held]):
    TOOL_PREFIX = "count"

    @vf.tool
    def add(self, by: int) -> str:
        """Add to the count."""
        self.state.count += by
        return "added"


class Take(vf.Toolset[vf.ToolsetConfig, Held]):
    TOOL_PREFIX = "count"

    @vf.tool
    def take(self, by: int) -> str:
        """Take from the count."""
        self.state.count -= by
        return "taken"


class OtherAdd(vf.Toolset[vf.ToolsetConfig, Held]):
    TOOL_PREFIX = "count"

    @vf.tool
    def add(self, word: str) -> str:
        """Add a word."""
        return word


TOOLSETS = {"add": Add, "take": Take, "other add": OtherAdd}
REWARDS = {"0.5": 0.5, "nan": math.nan, "inf": math.inf, "text": "a lot", "none": None, "huge": 10**400, "list": [1]}


class Counting(vf.Task[Data, Held, Settings]):
    @classmethod
    def toolsets(cls, config: Settings) -> list[vf.Toolset]:
        return [TOOLSETS[name](vf.ToolsetConfig()) for name in config.tools]

    @vf.reward
    async def counted(self, trace: vf.Trace) -> float:
        return REWARDS[self.config.reward]

    @vf.stop
    def stopped(self, trace: vf.Trace) -> bool:
        return self.config.stopped


class Stateless(vf.Task[Data, vf.State, Settings]):
    @classmethod
    def toolsets(cls, config: Settings) -> list[vf.Toolset]:
        return [TOOLSETS[name](vf.ToolsetConfig()) for name in config.tools]

    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return 1.0


class Boxed(Counting):
    NEEDS_CONTAINER = True


class Config(vf.TasksetConfig):
    kind: str = "tools"
    rest: dict[str, Any] = Field(default_factory=dict)


class Mixed(vf.Taskset[Counting, Config]):
    def load(self):
        kind = self.config.kind
        if kind == "empty":
            return
        if kind == "raises":
            raise OSError("the data is on another planet")
        if kind == "endless":
            number = 0
            while True:
                yield Counting(Data(prompt=f"Count to {number}."), Settings())
                number += 1
        for number in range(20):
            odd = number % 2
            settings, made, info = Settings(), Counting, None
            prompt = f"Count to {number}."
            if kind == "tools":
                settings = Settings(tools=("add", "take") if odd else ("add",))
            elif kind == "clash":
                settings = Settings(tools=("other add",) if number == 7 else ("add",))
            elif kind == "states":
                made = Stateless if number == 7 else Counting
            elif kind == "box":
                made = Boxed if number == 7 else Counting
            elif kind == "no tools":
                settings = Settings(tools=() if number == 7 else ("add",))
            elif kind == "stop":
                settings = Settings(stopped=True)
            elif kind.startswith("reward "):
                settings = Settings(reward=kind.removeprefix("reward "))
            elif kind == "twins":
                prompt = "Count."
            elif kind == "words":
                prompt = f"{number} \u202e\u0000 <|im_end|> \U0001f3ca \u2028 \x1b[2J"
            elif kind == "half":
                prompt = f"{number} \ud800"
            elif kind == "set":
                info = {1, 2}
            elif kind == "object":
                info = object()
            elif kind == "nan":
                info = {"a": math.nan, "b": [math.inf]}
            elif kind == "huge":
                prompt = str(number) + "x" * 3_000_000
            elif kind == "blank":
                prompt = "   "
            yield made(Data(prompt=prompt, info=info), settings)


__all__ = ["Mixed"]

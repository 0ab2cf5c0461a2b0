"""To-do lists as a taskset with tools and a state."""

import verifiers.v1 as vf
from pydantic import Field

TITLES = ("milk", "bread", "stamps", "rent", "letters", "lamp")
DAYS = ("monday", "tuesday", "friday")


class Lists(vf.State):
    items: dict[str, dict[str, str]] = Field(default_factory=dict)


class ListData(vf.TaskData):
    items: dict[str, dict[str, str]]
    wanted: dict[str, str]


class ListToolset(vf.Toolset[vf.ToolsetConfig, Lists]):
    TOOL_PREFIX = "list"

    @vf.tool
    def move(self, item: str, day: str) -> str:
        """Move an item to another day."""
        if item not in self.state.items:
            raise ValueError(f"there is no item {item}")
        self.state.items[item]["day"] = day
        return "moved"

    @vf.tool
    def show(self, item: str) -> dict[str, str]:
        """Show an item."""
        return self.state.items[item]


class ListTask(vf.Task[ListData, Lists, vf.TaskConfig]):
    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:
        trace.state.items = {item: dict(held) for item, held in self.data.items.items()}

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [ListToolset(vf.ToolsetConfig())]

    @vf.reward(weight=0.75)
    async def moved(self, trace: vf.Trace) -> float:
        held = [trace.state.items[item]["day"] == day for item, day in self.data.wanted.items()]
        return sum(held) / len(held)

    @vf.reward(weight=0.25)
    async def said_so(self, trace: vf.Trace) -> float:
        return float("done" in trace.last_reply and bool(trace.tool_messages))

    @vf.stop
    def late(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 12


class ListConfig(vf.TasksetConfig):
    lists: int = 30


class ListTaskset(vf.Taskset[ListTask, ListConfig]):
    def load(self):
        for number in range(self.config.lists):
            items = {title: {"day": DAYS[(number + place) % 3]} for place, title in enumerate(TITLES[number % 4 :])}
            wanted = {TITLES[4]: "friday", TITLES[5]: "monday"}
            asked = " and ".join(f"{title} to {day}" for title, day in wanted.items())
            yield ListTask(
                ListData(
                    prompt=f"List {number}: move {asked}, then say done.",
                    system_prompt="You keep a list.",
                    items=items,
                    wanted=wanted,
                ),
                self.config.task,
            )


def solved(data: ListData) -> list:
    """The solution of a task."""
    moves = [{"name": "list_move", "arguments": {"item": item, "day": day}} for item, day in data.wanted.items()]
    return [*moves, "done"]


__all__ = ["ListTaskset"]

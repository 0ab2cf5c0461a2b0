"""Groups and trajectories written by hand, and a desk small enough to know by heart."""

from __future__ import annotations

from collections.abc import Sequence

from cojax.types import Action, Call, Group, Message, Observation, Outcome, Task, Trajectory, Turn

DESK = {
    "files": {
        "report": {"folder": "drafts", "text": "amber", "copies": []},
        "budget": {"folder": "archive", "text": "bread", "copies": []},
    },
    "folders": {"drafts": {"shared": []}, "archive": {"shared": []}, "taxes": {"shared": []}},
    "notes": {"memo": {"text": "pearl"}},
    "contacts": {"ana": {"address": "box11"}, "bob": {"address": "box12"}},
    "calendar": {"lunch": {"day": "friday", "guests": []}},
    "mail": {"ana": {"text": "onyx", "flagged": False, "forwarded": []}},
    "sent": {},
}


def call(name: str, **arguments: str) -> Action:
    return Action(calls=(Call(name, arguments),))


def task(name: str = "t", solution: Sequence[Action] = ()) -> Task:
    return Task("test", name, {}, tuple(solution))


def trajectory(
    of: Task, reward: float, *tools: str, episode: str = "", failed: Sequence[str] = (), outcome: Outcome = "finished"
) -> Trajectory:
    """One turn a tool; calls of the tools in `failed` are answered with an error."""
    turns = tuple(
        Turn(
            call(tool), Observation((Message("tool", "error: no" if tool in failed else "ok"),), ok=tool not in failed)
        )
        for tool in tools
    )
    return Trajectory(of, episode, (), turns, reward, (), outcome)


def group(of: Task, *rewards: float) -> Group:
    """Trajectories without turns, their episodes numbered from e0."""
    return Group(of, tuple(trajectory(of, reward, episode=f"e{i}") for i, reward in enumerate(rewards)))

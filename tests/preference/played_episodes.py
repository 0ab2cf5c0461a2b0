"""Episodes for the tests of preference learning: each is named, and has one turn for each of its tokens."""

from __future__ import annotations

from cojax.types import Action, Call, Check, Group, Outcome, Task, Trajectory, Turn

TASKS = {name: Task("desk", name, {}) for name in ("a", "b")}


def episode(
    name: str,
    partial: float = 0.0,
    *,
    reward: float = 0.0,
    version: int = 4,
    turns: int = 1,
    outcome: Outcome = "finished",
) -> Trajectory:
    """The episode `name`, whose first letter is its task; its actions are calls of a tool named after it."""
    number = sum(map(ord, name))
    played = tuple(
        Turn(
            Action(calls=(Call(name),)),
            prompt_tokens=(1, 2),
            action_tokens=(number, turn),
            action_logprobs=(-0.5, -0.25),
            weights_version=version,
        )
        for turn in range(turns)
    )
    checks = (Check("done", reward >= 1.0),)
    return Trajectory(TASKS[name[0]], name, (), played, reward, checks, outcome, partial=partial)


def group(*trajectories: Trajectory) -> Group:
    return Group(trajectories[0].task, trajectories)

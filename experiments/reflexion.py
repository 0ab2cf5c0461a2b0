"""Reflexion: who fails a task notes why, and tries again with the notes in view (Shinn et al. 2023, Algorithm 1).

A way to spend more on an evaluation instead of on training: no weight changes. It needs to be told after each trial
whether the task is solved, which an evaluation of one trial is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, Episode
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.explorer.llm.fitting import fitted, shortened
from cojax.rollout.chat import Chat
from cojax.types import Action, Evaluation, Group, Message, Observation, Task, Trajectory, Triplet

# Plays one episode of each task in an environment; the label names the episodes, and keeps their seeds apart.
Play = Callable[[Environment, Sequence[Task], str], list[Group]]
# Notes that are kept in view, the newest, and the characters of one.
_NOTES, _NOTE = 3, 1_000

_REQUEST = """You worked on a task and did not solve it. You will try it again from the start.

The task:
{task}

What you did, and what came of it:
{record}

In a few sentences: what went wrong, and what will you do differently? Write for yourself; call no tool now."""
_REMINDER = "You tried what follows before and did not solve it. What you noted then:"
# What stands before a message of the record; → before what came of an action.
_SPEAKERS = {"user": "The user said:"}


@dataclasses.dataclass(frozen=True)
class Trial:
    """`success`: share of all tasks that are solved after this trial; of this trial alone its `episodes`, their
    `turns`, the `notes` that were written before it, and the `tokens` sampled for both."""

    success: float
    episodes: int
    turns: int
    notes: int
    tokens: int


def retried(
    play: Play, environment: Environment, groups: Sequence[Group], trials: int, reflects: bool, room: int
) -> tuple[list[Group], list[Trial]]:
    """Each task's last trial, and what each of at most `trials` trials came to; `groups` are the first.

    A task is tried until an episode earns full reward. Where the policy `reflects`, it writes a note about each failure
    before, from about `room` characters; otherwise it tries again without a hint. A task whose episode was lost to
    the machinery is not tried again: nobody knows that it failed. Raises what `play` raises.
    """
    last = {group.task.id: group for group in groups}
    notes: dict[str, tuple[str, ...]] = {}
    told = [_trial(last, groups, ())]
    for number in range(2, trials + 1):
        failed = [group for group in last.values() if group.valid and not _solved(group)]
        if not failed:
            break
        tasks = [group.task for group in failed]
        written: list[Group] = []
        if reflects:
            failures = {group.task.id: group.valid[-1] for group in failed}
            written = play(Notebook(environment.name, failures, room), tasks, f"note{number}")
            for group in written:
                if text := _note(group):
                    notes[group.task.id] = (*notes.get(group.task.id, ()), text)[-_NOTES:]
        again = play(reminded(environment, notes), tasks, f"trial{number}")
        # A trial that was lost says nothing: what came before it stands.
        last |= {group.task.id: group for group in again if group.valid}
        told.append(_trial(last, again, written))
    return list(last.values()), told


def _solved(group: Group) -> bool:
    return any(trajectory.reward >= 1.0 for trajectory in group.valid)


def _trial(last: Mapping[str, Group], played: Sequence[Group], written: Sequence[Group]) -> Trial:
    scored = [group for group in last.values() if group.valid]
    episodes = [trajectory for group in played for trajectory in group.trajectories]
    sampled = [*episodes, *(trajectory for group in written for trajectory in group.trajectories)]
    return Trial(
        sum(map(_solved, scored)) / max(1, len(scored)),
        len(episodes),
        sum(len(trajectory.turns) for trajectory in episodes),
        sum(bool(_note(group)) for group in written),
        sum(len(turn.action_tokens) for trajectory in sampled for turn in trajectory.turns),
    )


def _note(group: Group) -> str:
    """What was written, without what was thought before; empty where nothing came."""
    said = [_said(turn.action.text) for trajectory in group.trajectories for turn in trajectory.turns]
    return shortened(said[0], _NOTE) if said else ""


def _said(text: str) -> str:
    """A reply without the thought before it; nothing where the thought did not come to its end."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


class Notebook:
    """Where notes are written: the episode of a task asks about its failed trajectory, and ends with the reply.

    An environment like any other, so that notes are sampled as actions are: with deadlines, seeds and retries.
    """

    def __init__(self, name: str, failures: Mapping[str, Trajectory], room: int) -> None:
        self.name, self.failures, self.room = name, failures, room

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def tasks(self, split: str, count: int, seed: int = 0) -> tuple[Task, ...]:
        return tuple(failure.task for failure in self.failures.values())[:count]

    def phrase(self, steps: Sequence[Triplet]) -> str | None:
        return None

    def start(self, task: Task) -> Episode:
        return _Entry(request(self.failures[task.id], self.room))


class _Entry:
    """One request, one reply."""

    def __init__(self, text: str) -> None:
        self.text, self.reply = text, ""

    def reset(self) -> tuple[Message, ...]:
        return (Message("user", self.text),)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def step(self, action: Action) -> Observation:
        self.reply = action.text
        return Observation(done=True)

    def state(self) -> Mapping[str, Any]:
        return {"reply": self.reply}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        return Evaluation(0.0)

    def close(self) -> None:
        """Nothing is held."""


def request(failure: Trajectory, room: int) -> str:
    """What the policy is asked after a failure: the task, its own actions and what it saw, in about `room`
    characters; the oldest actions are left out first."""
    task = shortened("\n".join(message.content for message in failure.opening), room // 2)
    steps = [
        "\n".join((
            _said(turn.action.text) or Chat.write(turn.action.calls) or "(nothing)",
            *(f"{_SPEAKERS.get(message.role, '→')} {message.content}" for message in turn.observation.messages),
        ))
        for turn in failure.turns
    ]  # fmt: skip
    shown = [step for step in fitted(steps, room - len(task), each=8) if step is not None]
    first = len(steps) - len(shown) + 1
    record = "\n".join(f"{number}. {step}" for number, step in enumerate(shown, first)) or "(nothing)"
    return _REQUEST.format(task=task, record=record)


def reminded(environment: Environment, notes: Mapping[str, Sequence[str]]) -> Environment:
    """The environment, whose tasks open with the notes about them: task id → notes, oldest first.

    They begin the last opening message: a template may not take one message more, and a long one is cut at its end.
    """

    def start(task: Task) -> Episode:
        episode = environment.start(task)
        lines = "\n".join(f"{number}. {note}" for number, note in enumerate(notes.get(task.id, ()), 1))

        def reset() -> tuple[Message, ...]:
            *before, asked = episode.reset()
            return (*before, Message(asked.role, f"{_REMINDER}\n{lines}\n\n{asked.content}"))

        return WrappedEpisode(episode, reset=reset) if lines else episode

    return Wrapped(environment, start)

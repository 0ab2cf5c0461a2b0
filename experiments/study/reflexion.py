"""Reflexion: a policy that failed a task writes why, and tries again with its notes (Shinn et al. 2023, Algorithm 1).

It costs more at evaluation and changes no weights. It uses the verdict after each trial, which an evaluation with one
trial does not.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from cojax.environment import Environment, Episode
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.explorer.llm.prompting import fit_texts, shorten
from cojax.rollout.chat import Chat
from cojax.types import Evaluation, Group, Message, Observation, Task, Trajectory

# Plays one episode of each task in an environment; the label names the episodes, and keeps their seeds apart.
Play = Callable[[Environment, Sequence[Task], str], list[Group]]
# How many of the newest notes are shown, and the most characters of a note.
_MAX_NOTES_PER_TASK, _MAX_NOTE_CHARS = 3, 1_000

_REQUEST_TEXT = Path(__file__).with_name("reflexion.txt").read_text("utf-8").rstrip("\n")
_REMINDER_TEXT = "You tried what follows before and did not solve it. What you noted then:"
# Role of a message in the record → words before it; "→" for other roles, such as the result of an action.
_SPEAKER_BY_ROLE = {"user": "The user said:"}


def retry_failures(
    play: Play, environment: Environment, groups: Sequence[Group], trials: int, reflects: bool, room: int
) -> tuple[list[Group], list[dict[str, Any]]]:
    """Tries failed tasks again; returns the last trial of each task, and a record of each of at most `trials` trials.

    `groups` are the first trial. A task is tried until an episode earns full reward. If the policy `reflects`, it
    writes a note about each failure before the next trial, and sees about `room` characters of the failed episode. A
    task without a valid episode is not tried again, because it may not have failed. Raises what `play` raises.
    """
    group_by_task = {group.task.id: group for group in groups}
    notes: dict[str, tuple[str, ...]] = {}
    trial_records = [_trial_record(group_by_task, groups, ())]
    for trial_number in range(2, trials + 1):
        failed_groups = [group for group in group_by_task.values() if group.valid and not group.solved]
        if not failed_groups:
            break
        tasks = [group.task for group in failed_groups]
        note_groups: list[Group] = []
        if reflects:
            failure_by_task = {group.task.id: group.valid[-1] for group in failed_groups}
            note_groups = play(_make_note_environment(environment, failure_by_task, room), tasks, f"note{trial_number}")
            for group in note_groups:
                if note := _read_note(group):
                    notes[group.task.id] = (*notes.get(group.task.id, ()), note)[-_MAX_NOTES_PER_TASK:]
        retry_groups = play(add_notes(environment, notes), tasks, f"trial{trial_number}")
        # A trial without a valid episode leaves the result of the trial before it.
        group_by_task |= {group.task.id: group for group in retry_groups if group.valid}
        trial_records.append(_trial_record(group_by_task, retry_groups, note_groups))
    return list(group_by_task.values()), trial_records


def _trial_record(latest: Mapping[str, Group], groups: Sequence[Group], note_groups: Sequence[Group]) -> dict[str, Any]:
    """The record of a trial: `success` is the share of all tasks solved after it, and the other figures are its own.

    They are its `episodes`, their `turns`, the `notes` written before it, and the `tokens` sampled for both.
    """
    valid_groups = [group for group in latest.values() if group.valid]
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    all_trajectories = [*episodes, *(trajectory for group in note_groups for trajectory in group.trajectories)]
    return {
        "success": sum(group.solved > 0 for group in valid_groups) / max(1, len(valid_groups)),
        "episodes": len(episodes),
        "turns": sum(len(trajectory.turns) for trajectory in episodes),
        "notes": sum(bool(_read_note(group)) for group in note_groups),
        "tokens": sum(len(turn.action_tokens) for trajectory in all_trajectories for turn in trajectory.turns),
    }


def _read_note(group: Group) -> str:
    """The note that the policy wrote, without its thought; "" if there is none."""
    replies = [_strip_thought(turn.action.text) for trajectory in group.trajectories for turn in trajectory.turns]
    return shorten(replies[0], _MAX_NOTE_CHARS) if replies else ""


def _strip_thought(text: str) -> str:
    """A reply without the thought before it; "" if the thought did not end."""
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def _make_note_environment(environment: Environment, failures: Mapping[str, Trajectory], room: int) -> Environment:
    """The environment in which notes are written: an episode asks about a failed trajectory, and ends with the reply.

    Because it is an environment, notes are sampled like actions: with deadlines, seeds and retries.
    """

    def start_note(task: Task) -> Episode:
        note_episode = types.SimpleNamespace(
            reset=lambda: (Message("user", write_request(failures[task.id], room)),),
            tools=lambda: (),
            step=lambda action: Observation(done=True),
            state=dict,
            affordances=lambda: (),
            evaluate=lambda: Evaluation(0.0),
            close=lambda: None,
        )
        return cast(Episode, note_episode)

    return Wrapped(environment, start_note)


def write_request(failure: Trajectory, room: int) -> str:
    """The request for a note after a failure: the task, the actions and their results, in about `room` characters.

    The oldest actions are left out first.
    """
    task_text = shorten("\n".join(message.content for message in failure.opening), room // 2)
    step_texts = [
        "\n".join((
            _strip_thought(turn.action.text) or Chat.write(turn.action.calls) or "(nothing)",
            *(f"{_SPEAKER_BY_ROLE.get(message.role, '→')} {message.content}" for message in turn.observation.messages),
        ))
        for turn in failure.turns
    ]  # fmt: skip
    recent_steps = [step for step in fit_texts(step_texts, room - len(task_text), extra_each=8) if step is not None]
    first_number = len(step_texts) - len(recent_steps) + 1
    attempt_text = (
        "\n".join(f"{number}. {step}" for number, step in enumerate(recent_steps, first_number)) or "(nothing)"
    )
    return _REQUEST_TEXT.format(task=task_text, record=attempt_text)


def add_notes(environment: Environment, notes: Mapping[str, Sequence[str]]) -> Environment:
    """The environment with the notes of a task in its opening; `notes` maps a task id to notes, oldest first.

    The notes come first in the last opening message, because a template may not allow another message, and a long
    message is cut at its end.
    """

    def start(task: Task) -> Episode:
        episode = environment.start(task)
        note_lines = "\n".join(f"{note_number}. {note}" for note_number, note in enumerate(notes.get(task.id, ()), 1))

        def reset() -> tuple[Message, ...]:
            *earlier_messages, last = episode.reset()
            return (*earlier_messages, Message(last.role, f"{_REMINDER_TEXT}\n{note_lines}\n\n{last.content}"))

        return WrappedEpisode(episode, reset=reset) if note_lines else episode

    return Wrapped(environment, start)

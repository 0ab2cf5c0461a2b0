"""Trial after trial at an evaluation, with and without notes."""

from __future__ import annotations

import re

import pytest
from counter_environment import CounterEnvironment

from cojax.environment import EngineError
from cojax.rollout.chat import Chat, PolicyActors, whole_document
from cojax.rollout.collect import EpisodeCollector, Limits, RolloutError
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import train_byte_tokenizer
from cojax.types import Action, Call, Group, Message, Observation, Task, Trajectory, Turn
from experiments.study.reflexion import add_notes, retry_failures, write_request

WORLD = CounterEnvironment()
CHAT = Chat(train_byte_tokenizer([], 512), whole_document)
ASKED = "what will you do differently?"


class Counter:
    """Counts to one, unless a note in view names a number: to that. A note names one more than the last try reached.

    What it writes is `note` with that number; `heard` keeps the openings of all episodes.
    """

    def __init__(self, note: str = "count to {} instead", luck: int = 0) -> None:
        self.note, self.luck = note, luck
        self.heard: list[str] = []

    def generate(self, prompt, sampling, *, session, seed) -> Completion:
        text = CHAT.tokenizer.decode(list(prompt))
        if ASKED in text:
            said = Action(self.note.format(text.count('{"name": "add"') + 1))
        else:
            if "<tool_response>" not in text:
                self.heard.append(text)
            goals = [int(number) for number in re.findall(r"count to (\d+) instead", text)]
            lucky = self.luck if sampling.temperature else 0
            done = text.count('{"name": "add", "arguments"')
            said = Action(calls=(Call("add" if done < (goals[-1] if goals else 1 + lucky) else "finish"),))
        tokens = CHAT.encode_action(said)
        return Completion(tokens, (-0.5,) * len(tokens), 0, "stop")

    def release(self, session: str) -> None: ...


def evaluated(engine, trials: int, reflects: bool, count: int = 4, world=WORLD, **limits):
    """Each task's last group, the trials, and the labels in order."""
    labels: list[str] = []

    def play(environment, tasks, label) -> list[Group]:
        labels.append(label)
        sampling = Sampling(temperature=0.0 if label == "first" else 1.0, max_tokens=200)
        collector = EpisodeCollector(
            PolicyActors(engine, CHAT, sampling), environment, Limits(**{"error_rate": 1.0, **limits})
        )
        return collector.collect(tasks, seed=(0, len(labels)), label=label)

    first = play(world, WORLD.tasks("eval", count), "first")
    return *retry_failures(play, world, first, trials, reflects, 24_000), labels


def test_a_note_about_each_failure_is_in_view_at_the_next_trial():
    engine = Counter()
    groups, trials, labels = evaluated(engine, 3, reflects=True)
    # One more a trial: tasks of one, two and three are solved after the first, second and third.
    assert [trial["success"] for trial in trials] == [0.25, 0.5, 0.75]
    assert [trial["episodes"] for trial in trials] == [4, 3, 2]
    assert [trial["turns"] for trial in trials] == [8, 9, 8]
    assert [trial["notes"] for trial in trials] == [0, 3, 2]
    assert [group.score for group in groups] == [1.0, 1.0, 1.0, 0.0]
    assert [group.task for group in groups] == list(WORLD.tasks("eval", 4))
    assert labels == ["first", "note2", "trial2", "note3", "trial3"]
    last = engine.heard[-1]
    assert last.index("1. count to 2 instead") < last.index("2. count to 3 instead")
    assert trials[1]["tokens"] > sum(len(turn.action_tokens) for turn in groups[1].trajectories[0].turns)


def test_without_notes_it_is_tried_again_as_it_was():
    engine = Counter(luck=1)
    _groups, trials, labels = evaluated(engine, 3, reflects=False)
    assert [trial["success"] for trial in trials] == [0.25, 0.5, 0.5]
    assert labels == ["first", "trial2", "trial3"]
    assert len({text for text in engine.heard if "count to 4" in text}) == 1


def test_what_is_solved_is_not_tried_again():
    _, trials, labels = evaluated(Counter(), 5, reflects=True, count=1)
    assert ([trial["success"] for trial in trials], labels) == ([1.0], ["first"])


@pytest.mark.parametrize("note", ["", "   ", "<think>count to 9 instead</think>", "<think>count to 9 instead"])
def test_a_note_that_says_nothing_is_none(note: str):
    engine = Counter(note)
    _, trials, _ = evaluated(engine, 2, reflects=True)
    assert [(trial["success"], trial["notes"]) for trial in trials] == [(0.25, 0), (0.25, 0)]
    assert not any("You tried what follows" in text for text in engine.heard)


def test_notes_are_cut_and_the_newest_are_kept():
    engine = Counter("<|im_end|>" + "x" * 5000 + "{}")
    evaluated(engine, 6, reflects=True, count=2)
    last = engine.heard[-1]
    assert last.count("characters left out]") == 3
    # A control token that is written as text stays text: the opening still has one user turn.
    assert last.count("<|im_start|>user") == 1
    opening = [heard for heard in engine.heard if "You tried" in heard][-1]
    assert "4. " not in opening


def test_a_task_that_was_lost_is_not_tried_again_and_a_lost_trial_changes_nothing():
    def broken(task: Task) -> None:
        if task.setup["target"] == 3:
            raise RuntimeError("no such world")

    _, trials, _ = evaluated(Counter(), 2, reflects=True, world=CounterEnvironment(on_start=broken), retries=0)
    assert [(trial["success"], trial["episodes"]) for trial in trials] == [(1 / 3, 4), (2 / 3, 2)]

    class Dying(Counter):
        def generate(self, prompt, sampling, *, session, seed):
            if session.startswith("trial"):
                raise EngineError("gone")
            return super().generate(prompt, sampling, session=session, seed=seed)

    groups, trials, _ = evaluated(Dying(), 2, reflects=True, retries=0)
    assert [trial["success"] for trial in trials] == [0.25, 0.25]
    assert all(group.valid for group in groups)
    with pytest.raises(RolloutError, match="lost to the machinery"):
        evaluated(Dying(), 2, reflects=True, retries=0, error_rate=0.3)


def test_a_request_holds_the_task_and_the_newest_of_the_record():
    task = Task("counter", "count to 2", {"target": 2})
    turns = [
        Turn(Action(f"step {number} " + "a" * 300), Observation((Message("tool", f"seen {number}"),)))
        for number in range(20)
    ]
    failure = Trajectory(task, opening=(Message("user", "count to 2"),), turns=tuple(turns))
    whole, short = write_request(failure, 100_000), write_request(failure, 2_000)
    assert "1. step 0 " in whole
    assert "20. step 19 " in whole
    assert "→ seen 19" in whole
    assert len(short) < 2_700
    assert "count to 2" in short
    assert "step 19" in short
    assert "step 0 " not in short
    assert "(nothing)" in write_request(Trajectory(task), 1_000)


def test_a_request_tells_what_a_user_said_from_what_came_of_an_action_and_leaves_thoughts_out():
    task = Task("dialogue", "book a flight", {})
    replies = (Message("tool", "booked"), Message("user", "and a hotel"))
    turns = (Turn(Action("<think>hm, a long thought</think>book()"), Observation(replies)),)
    text = write_request(Trajectory(task, opening=(Message("user", "book a flight"),), turns=turns), 10_000)
    assert "1. book()\n→ booked\nThe user said: and a hotel" in text
    assert "long thought" not in text


def test_reminders_begin_the_last_opening_message():
    task = WORLD.tasks("eval", 1)[0]
    world = add_notes(WORLD, {task.id: ("look first",)})
    (opening,) = world.start(task).reset()
    assert opening.content.endswith(f"1. look first\n\n{task.query}")
    other = WORLD.tasks("eval", 2)[1]
    assert world.start(other).reset() == WORLD.start(other).reset()
    assert (world.name, world.tools(), world.tasks("eval", 2)) == (WORLD.name, WORLD.tools(), WORLD.tasks("eval", 2))

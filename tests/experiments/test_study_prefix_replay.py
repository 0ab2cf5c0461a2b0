"""Prefix replay: how many actions are replayed, that they are the environment's, and that nothing learns from them."""

import numpy as np
import pytest

import environments
from cojax.environment import play
from cojax.learner.batch import mark_sampled
from cojax.rollout.chat import Chat, PolicyActors, no_document
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import word_tokenizer
from cojax.types import Action, Call, Group, Task, Trajectory, Turn
from experiments.study.prefix_replay import PrefixStaircase

DESK = environments.load("desk")
TASK = next(task for task in DESK.tasks("seed", 50) if len(task.solution) == 4)
CHAT = Chat(word_tokenizer(*DESK.lexicon(), DESK.tools()), no_document)
FOUR = tuple(Action(calls=(Call(name),)) for name in ("read", "write", "move", "finish"))
JOINED = Task("test", "join", {}, FOUR, origin="frontier")


class Solving:
    """An engine that continues with the task's solution."""

    busy_seconds = 0.0

    def __init__(self):
        self.prompts = []

    def generate(self, prompt, sampling, *, session, seed):
        self.prompts.append((prompt, seed))
        tokens = CHAT.encode_action(TASK.solution[seed[-1]])
        return Completion(tokens, (-0.5,) * len(tokens), 3, "stop")


def played(length, engine):
    actors = PolicyActors(engine, CHAT, Sampling(max_tokens=24), lambda session: TASK.solution[:length])
    return play(DESK, TASK, actors("1-t-0", (7,)), max_turns=6)


def group(task, length, rewards):
    turns = (*map(Turn, task.solution[:length]), Turn(FOUR[-1], action_tokens=(1,)))
    return Group(task, tuple(Trajectory(task, turns=turns, reward=reward) for reward in rewards))


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_an_episode_with_a_prefix_has_the_tokens_of_one_without_but_learns_from_the_rest_alone(length):
    whole, engine = played(0, Solving()), Solving()
    part = played(length, engine)
    assert (whole.reward, part.reward, whole.replayed, part.replayed) == (1.0, 1.0, 0, length)
    assert [turn.action for turn in part.turns] == [turn.action for turn in whole.turns]

    def tokens(trajectory):
        return [token for turn in trajectory.turns for token in (*turn.prompt_tokens, *turn.action_tokens)]

    assert tokens(part) == tokens(whole)
    # The engine is asked for the other turns alone, with the random numbers that they have anyway.
    assert [seed for _, seed in engine.prompts] == [(7, turn) for turn in range(length, 4)]
    kept = mark_sampled(part)
    cut = sum(len(turn.prompt_tokens) + len(turn.action_tokens) for turn in whole.turns[:length])
    assert not kept[:cut].any()
    np.testing.assert_array_equal(kept[cut:], mark_sampled(whole)[cut:])


def test_the_actors_of_a_step_ask_for_the_prefix_of_their_session():
    actors = PolicyActors(Solving(), CHAT, Sampling(max_tokens=24), lambda session: TASK.solution[: int(session)])
    assert [play(DESK, TASK, actors(session, (0,)), max_turns=6).replayed for session in "012"] == [0, 1, 2]
    without = PolicyActors(Solving(), CHAT, Sampling(max_tokens=24))
    assert play(DESK, TASK, without("3", (0,)), max_turns=6).replayed == 0


def test_half_of_a_joined_task_is_replayed_at_first_and_never_its_last_action():
    assert PrefixStaircase().prefix(JOINED, {}) == FOUR[:1]
    assert [len(PrefixStaircase().prefix(JOINED, {JOINED.id: length})) for length in (0, 2, 3, 9)] == [0, 2, 3, 3]
    assert PrefixStaircase().prefix(Task("test", "other", {}, FOUR, origin="posterior"), {}) == ()
    assert PrefixStaircase().prefix(Task("test", "none", {}, (), origin="frontier"), {}) == ()


@pytest.mark.parametrize(
    ("length", "rewards", "next_length"),
    [(2, (1, 1, 1, 0), 1), (2, (0, 0, 0, 1), 3), (2, (1, 0, 0, 1), 2), (0, (1, 1, 1, 1), 0), (3, (0, 0, 0, 0), 3)],
)
def test_the_length_follows_success_up_and_down(length, rewards, next_length):
    changes, found = PrefixStaircase().update({}, [group(JOINED, length, rewards)])
    assert (changes, found) == ({JOINED.id: next_length}, [])


def test_other_tasks_and_lost_groups_change_no_length():
    lost = Group(JOINED, (Trajectory(JOINED, outcome="engine_error"),))
    other = group(Task("test", "other", {}, FOUR), 0, (1.0, 0.0))
    assert PrefixStaircase().update({JOINED.id: 2}, [lost, other]) == ({}, [])

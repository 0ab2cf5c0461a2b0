"""Experts: solutions as the policy would have acted, in the real desk."""

from __future__ import annotations

import dataclasses

import environments
from cojax.environment.wrapping import Wrapped
from cojax.preference.agents import SolutionActors, play_experts
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.vocabulary import word_tokenizer
from cojax.types import Action, Call, Message

DESK = environments.load("desk")
CHAT = Chat(word_tokenizer(*DESK.lexicon(), DESK.tools()), no_document)
LIMITS = Limits(concurrency=2)
SOLVED, WRONG, UNSOLVED = DESK.tasks("seed", 3)
WRONG = dataclasses.replace(WRONG, solution=(*WRONG.solution[:-1], Action(calls=(Call("nonsense"),))))
UNSOLVED = dataclasses.replace(UNSOLVED, solution=())


def test_an_expert_is_a_solution_that_succeeds_rendered_as_the_policy_acts():
    found = play_experts(DESK, CHAT, LIMITS, [SOLVED, WRONG, UNSOLVED], 10_000)
    assert found.keys() == {SOLVED.id}
    expert = found[SOLVED.id]
    assert (expert.reward, expert.partial, len(expert.turns)) == (1.0, 1.0, len(SOLVED.solution))
    for turn, action in zip(expert.turns, SOLVED.solution, strict=True):
        assert turn.action.calls == action.calls
        assert CHAT.read(turn.action_tokens).calls == action.calls
        assert turn.action_tokens[-1] == CHAT.end
        assert (turn.weights_version, set(turn.action_logprobs)) == (-1, {0.0})


def test_calls_are_written_also_where_an_action_has_other_text_and_a_policys_code_runs():
    desk = Wrapped(DESK, DESK.start)
    desk.runs_policy_code = True
    thinking = tuple(dataclasses.replace(action, text="I should look first.") for action in SOLVED.solution)
    solved = dataclasses.replace(SOLVED, solution=thinking)
    found = play_experts(desk, CHAT, LIMITS, [solved], 10_000)[solved.id]
    assert [CHAT.read(turn.action_tokens).calls for turn in found.turns] == [one.calls for one in SOLVED.solution]


def test_code_without_calls_is_written_as_it_is():
    act = SolutionActors(CHAT, {"0": (Action("print(1)"),)})("expert-0-0-0", ())
    assert act(DESK.start(SOLVED), (Message("user", "go"),)).action == Action("print(1)")


def test_an_expert_longer_than_a_row_is_left_out():
    size = sum(
        len(turn.prompt_tokens) + len(turn.action_tokens)
        for turn in play_experts(DESK, CHAT, LIMITS, [SOLVED], 10_000)[SOLVED.id].turns
    )
    assert play_experts(DESK, CHAT, LIMITS, [SOLVED], size).keys() == {SOLVED.id}
    assert play_experts(DESK, CHAT, LIMITS, [SOLVED], size - 1) == {}


def test_without_solutions_nothing_is_played():
    assert play_experts(DESK, CHAT, LIMITS, [UNSOLVED], 10_000) == {}

"""Beliefs about pairs of tools: literal evidence, discounts, and what is borrowed."""

import pytest

import environments
from cojax import signals
from cojax.environment import EnvironmentFailure
from cojax.synthesis.beliefs import Beliefs, Posterior, make_pair_key, predictor, tool_key
from cojax.types import Action, Call, Group, Task, TaskDraft, Trajectory
from environments.desk import Desk

DESK = environments.load("desk")


def group(tools, rewards, lost=0):
    task = Task("desk", " ".join(tools), {}, tuple(Action(calls=(Call(tool),)) for tool in (*tools, "finish")))
    ended = [Trajectory(task, f"1-{task.id}-{i}", reward=reward) for i, reward in enumerate(rewards)]
    failed = [Trajectory(task, f"1-{task.id}-{9 + i}", outcome="environment_error") for i in range(lost)]
    return Group(task, (*ended, *failed))


def after(*steps, discount=0.5):
    detector = Beliefs(discount)
    memory = {"beliefs": detector.init()}
    for groups in steps:
        changes, found = signals.detect({"beliefs": detector}, memory, groups)
        signals.apply(memory, changes)
        assert not found
    return memory["beliefs"]


def test_evidence_is_counted_by_tool_and_by_pair_at_the_length_of_the_solution():
    memory = after([group(("b", "a"), (1.0, 0.0, 1.0, 1.0)), group(("a",), (0.0, 0.5), lost=2)])
    assert memory == {
        "steps": 1,
        "discount": 0.5,
        "tool:a": [3.0, 3.0, 1],
        "tool:b": [3.0, 1.0, 1],
        "tool:finish": [3.0, 3.0, 1],
        "pair:a+b/3": [3.0, 1.0, 1],
        "pair:b+finish/3": [3.0, 1.0, 1],
        "pair:a+finish/3": [3.0, 1.0, 1],
        "pair:a+finish/2": [0.0, 2.0, 1],
    }
    assert make_pair_key("b", "a", 3) == make_pair_key("a", "b", 3) == "pair:a+b/3"


def test_evidence_is_discounted_by_the_steps_since_its_last_change():
    memory = after([group(("a",), (1.0, 1.0))], [], [group(("a",), (0.0,))], [group(("b",), (1.0,))])
    assert memory["tool:a"] == [0.5, 1.0, 3]
    # One further step has passed: 0.25 successes and 0.5 failures.
    assert Posterior(memory).known("a") == 0.75
    assert Posterior(memory).tool_mean("a") == pytest.approx((2 * 0.5 + 0.25) / 2.75)


def test_a_group_without_a_valid_episode_is_no_evidence():
    assert after([group(("a",), (), lost=4)]) == {"steps": 1, "discount": 0.5}


def test_the_belief_about_a_pair_begins_at_the_product_of_its_tools():
    memory = after([group(("a",), (1.0,) * 6), group(("b",), (0.0,) * 2)], discount=1.0)
    posterior = Posterior(memory)
    assert posterior.tool_mean("a") == pytest.approx(7 / 8)
    assert posterior.tool_mean("b") == pytest.approx(1 / 4)
    assert posterior.pair_belief("a", "b", 3) == pytest.approx((2 * 7 / 32, 2 * 25 / 32))
    known = after([group(("a", "b"), (1.0, 0.0, 0.0))], discount=1.0)
    alpha, beta = Posterior(known).pair_belief("b", "a", 3)
    assert (alpha + beta, alpha) == pytest.approx((5.0, 1 + 2 * (2 / 5) ** 2))
    # Evidence at one length is none at another.
    assert sum(Posterior(known).pair_belief("a", "b", 4)) == pytest.approx(2.0)


def test_a_tool_without_evidence_borrows_from_its_neighbours():
    memory = after([group(("a",), (1.0,) * 8), group(("c",), (0.0,) * 8)], discount=1.0)
    near = {"b": ("a",), "d": ("c",), "e": ("a", "c")}
    posterior = Posterior(memory, lambda tool: near.get(tool, ()))
    assert [posterior.tool_mean(tool) for tool in "bdef"] == pytest.approx([3 / 4, 1 / 4, 1 / 2, 1 / 2])
    assert tool_key("a") in memory


def steps(*tools):
    return tuple(Action(calls=(Call(tool),)) for tool in tools)


def test_what_beliefs_predict_of_a_task_is_the_mean_over_the_pairs_of_its_tools():
    memory = after([group(("a", "b"), (1.0,) * 6), group(("c",), (0.0,) * 2)], discount=1.0)
    posterior = Posterior(memory)
    # a and b: Beta(2 · 49/64 + 6, 2 · 15/64); a or b with c: the priors alone, 7/8 · 1/4.
    known, prior = (2 * 49 / 64 + 6) / 8, 7 / 8 * 1 / 4
    assert posterior.task_success(steps("a", "b", "finish"), "finish") == pytest.approx(known)
    assert posterior.task_success(steps("a", "b", "c"), "finish") == pytest.approx((known + 2 * prior) / 3)
    # No evidence at this length.
    assert posterior.task_success(steps("a", "b", "c", "finish"), "finish") == pytest.approx((49 / 64 + 2 * prior) / 3)
    assert posterior.task_success(steps("a", "a", "finish"), "finish") == pytest.approx(7 / 8)
    assert posterior.task_success(steps("finish"), "finish") is None
    assert posterior.task_success((), "finish") is None


def draft(*tools):
    return TaskDraft("desk", {}, "", "do it", steps(*tools), "")


def test_predictions_of_drafts_borrow_from_neighbours_and_survive_what_a_draft_may_call():
    predict = predictor(after([group(("mail_send",), (1.0,) * 6)], discount=1.0), DESK, "finish")
    assert predict(draft("mail_send", "finish")) == pytest.approx((2 * 1 / 2 + 6) / 8)
    assert predict(draft("mail_forward")) == pytest.approx(3 / 4)
    # A tool that is not there has no neighbours.
    assert predict(draft("nowhere", "finish")) == pytest.approx(1 / 2)
    # Too large to play.
    assert predict(draft(*(f"tool {number}" for number in range(5_000)))) is None


def test_where_the_environment_fails_nothing_is_predicted():
    class Failing(Desk):
        def neighbours(self, tool):
            raise EnvironmentFailure("the worker is gone")

    assert predictor(Beliefs().init(), Failing(), "finish")(draft("mail_send")) is None

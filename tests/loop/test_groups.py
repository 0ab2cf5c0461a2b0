"""Which tasks a step samples: a batch, and with dynamic sampling as many as it takes until enough groups are live."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
from counter_environment import CounterEnvironment
from ml_collections import ConfigDict

from cojax.learner.batch import RowShape, count_rows
from cojax.learner.losses import LOSSES
from cojax.learner.objective import bind_loss, objective
from cojax.loop import Loop, State
from cojax.loop.groups import PlayedCount, open_queue, order_steps, select_learnable
from cojax.metrics import Stopwatch
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import word_tokenizer
from cojax.run.checks import check_settings
from cojax.types import Action, Call, Group, Task
from experiments import desk

ENVIRONMENT = CounterEnvironment()
CHAT = Chat(word_tokenizer([], ["count to", "ok"], ENVIRONMENT.tools()), no_document)


def pool(lively: int, dull: int) -> TaskPool:
    """Tasks whose groups are live, of the target 1, and such that nobody solves."""
    tasks = ENVIRONMENT.tasks("train", lively + dull)
    targets = [1] * lively + [99] * dull
    return TaskPool.of(
        [dataclasses.replace(task, setup={"target": target}) for task, target in zip(tasks, targets, strict=True)]
    )


class FirstSampleAdds:
    """Of each group the first episode calls add once, all others finish at once."""

    busy_seconds = 0.0

    def generate(self, prompt, sampling, *, session, seed):
        adds = session.split("-")[2] == "0" and seed[-1] == 0  # STEP-TASK-SAMPLE-ATTEMPT
        tokens = CHAT.encode_action(Action(calls=(Call("add" if adds else "finish"),)))
        return Completion(tokens, (-0.5,) * len(tokens), 3, "stop")

    def release(self, session):
        pass


def loop(**settings) -> Loop:
    nothing = SimpleNamespace()
    detectors = {"played": PlayedCount()} if settings.keys() & {"episodes", "environment_steps"} else {}
    return Loop(
        environment=ENVIRONMENT, engine=FirstSampleAdds(), chat=CHAT, learner=nothing, explorer=nothing,
        validate=nothing, detectors=detectors, evolve=nothing, popularity=None, sampling=Sampling(max_tokens=32),
        limits=Limits(concurrency=4), clock=Stopwatch(), seed=0, steps=5, group_size=2, evolve_every=1,
        fresh_fraction=0.0, contexts=1, budget=1, per_context=1, checkpoint_every=1, **settings,
    )  # fmt: skip


def sample_groups(some_loop: Loop, state: State) -> list[Group]:
    with open_queue(some_loop, state) as queue:
        order_steps(some_loop, queue, state)
        return list(queue.take(1))


def sampled(tasks: TaskPool, **settings) -> list[Group]:
    return sample_groups(loop(**settings), State(0, SimpleNamespace(), tasks, {}))


def named(groups: list[Group]) -> list[Task]:
    return [group.task for group in groups]


def test_without_it_a_step_is_a_batch() -> None:
    tasks = pool(2, 10)
    assert named(sampled(tasks, batch_size=4)) == list(tasks.sample(4, (0, 0)))


def test_a_batch_that_is_live_needs_no_refill() -> None:
    tasks = pool(6, 0)
    groups = sampled(tasks, batch_size=4, dynamic_sampling=6)
    assert named(groups) == list(tasks.sample(4, (0, 0)))
    assert all(group.live for group in groups)


def test_tasks_are_sampled_until_a_batch_is_live() -> None:
    tasks = pool(6, 6)
    groups = sampled(tasks, batch_size=4, dynamic_sampling=12)
    assert named(groups)[:4] == list(tasks.sample(4, (0, 0)))
    assert sum(group.live for group in groups) == 4
    assert len({task.id for task in named(groups)}) == len(groups)
    assert 4 < len(groups) < 12
    # The last refill asked for no more than was missing.
    assert groups[-1].live
    assert named(sampled(tasks, batch_size=4, dynamic_sampling=12)) == named(groups)


def test_the_cap_and_the_pool_are_ends() -> None:
    assert len(sampled(pool(0, 12), batch_size=4, dynamic_sampling=7)) == 7
    assert len(sampled(pool(0, 5), batch_size=4, dynamic_sampling=7)) == 5


def test_it_samples_the_same_ahead_of_the_update() -> None:
    tasks = pool(6, 6)
    found = sampled(tasks, batch_size=4, dynamic_sampling=12, staleness=1)
    assert named(found) == named(sampled(tasks, batch_size=4, dynamic_sampling=12))


def test_the_episodes_of_a_run_are_an_end() -> None:
    """14 episodes are 7 groups of 2: the step that would play more gets what is left, a later one nothing."""

    def step(played: int, **settings) -> list[Group]:
        memory = {"played": {"episodes": played, "environment_steps": 0}}
        state = State(0, SimpleNamespace(), pool(0, 12), memory)
        return sample_groups(loop(batch_size=4, episodes=14, **settings), state)

    assert [len(step(played)) for played in (0, 6, 10, 13, 14)] == [4, 4, 2, 0, 0]
    assert [len(step(played, dynamic_sampling=6)) for played in (0, 4, 10, 14)] == [6, 5, 2, 0]


def test_the_environment_steps_of_a_run_are_an_end() -> None:
    """The step that reaches the budget is whole, a later one plays nothing."""

    def step(acted: int) -> list[Group]:
        memory = {"played": {"episodes": 0, "environment_steps": acted}}
        return sample_groups(loop(batch_size=4, environment_steps=30), State(0, SimpleNamespace(), pool(0, 12), memory))

    assert [len(step(acted)) for acted in (0, 29, 30, 31)] == [4, 4, 0, 0]


def test_episodes_and_environment_steps_are_counted() -> None:
    groups = sampled(pool(6, 6), batch_size=4)
    actions = sum(len(trajectory.turns) for group in groups for trajectory in group.trajectories)
    assert actions > 0
    begun = PlayedCount().init()
    assert begun == {"episodes": 0, "environment_steps": 0}
    changes, signals = PlayedCount().update(begun, groups)
    assert (changes, signals) == ({"episodes": 8, "environment_steps": actions}, [])
    assert PlayedCount().update(changes, groups)[0] == {"episodes": 16, "environment_steps": 2 * actions}


@pytest.mark.parametrize("parts", [1, 4])
def test_a_step_without_episodes_learns_nothing(parts) -> None:
    groups, room = select_learnable(loop(batch_size=4, episodes=14), [])
    learns = objective(bind_loss("grpo", LOSSES, {}), "group_relative", {}, "group_token_mean", {}, parts)
    batches, facts = learns.pack_batches(groups, (0, 1), RowShape(32, 2), room)
    assert [(count_rows(batch), batch.tokens.shape) for batch in batches] == [(0, (8 // parts, 32))] * parts
    assert (facts["groups"], facts["tokens_trained"]) == (0.0, 0.0)


def test_episodes_are_not_counted_where_steps_run_ahead() -> None:
    with pytest.raises(ValueError, match=r"episodes is 8 and environment_steps 0 with staleness=1 and"):
        loop(batch_size=4, episodes=8, staleness=1)
    with pytest.raises(ValueError, match=r"episodes is 0 and environment_steps 8 with staleness=1"):
        loop(batch_size=4, environment_steps=8, staleness=1)
    config = desk.get_config()
    config.episodes = 8
    check_settings(config)
    for name, value in (("staleness", 1), ("episodes", 7)):
        wrong = config.copy_and_resolve_references()
        wrong[name] = value
        with pytest.raises(ValueError, match=r"episodes is \d with group_size=8 and staleness=\d; expected 0 \(any"):
            check_settings(wrong)
    config.episodes, config.environment_steps, config.staleness = 0, 8, 1
    with pytest.raises(ValueError, match=r"environment_steps is 8 with staleness=1; expected 0 \(any"):
        check_settings(config)


@pytest.mark.parametrize("settings", [{"staleness": -1}, {"quorum": 0.0}, {"quorum": 1.5}])
def test_settings_out_of_bounds_are_named(settings: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(settings))} is .*expected"):
        loop(batch_size=4, **settings)


@pytest.mark.parametrize("settings", [{"dynamic_sampling": 3}, {"dynamic_sampling": 8, "quorum": 0.75}])
def test_what_makes_no_sense_is_refused(settings) -> None:
    with pytest.raises(ValueError, match=r"dynamic_sampling is .*expected 0, or at least batch_size groups"):
        loop(batch_size=4, **settings)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dynamic_sampling": 8}, "dynamic_sampling is 8; expected 0 (off), or at least batch_size=32 groups"),
        ({"quorum": 0.5}, "with quorum=0.5 whether a group is live depends on who is slow"),
        (
            {"learner.loss": "sft", "learner.loss_settings": {}},
            "learner.loss=sft as it is set also learns from groups whose",
        ),
        (
            {"learner.loss_settings": {"kl_coefficient": 0.1}},
            "learner.loss=grpo as it is set also learns from groups whose",
        ),
        ({"dynamic_sampling": -1}, "dynamic_sampling is -1; expected a whole number at least 0"),
    ],
)
def test_the_configuration_says_so_in_the_first_second(change: dict, said: str) -> None:
    config = desk.get_config()
    config.dynamic_sampling = 64
    check_settings(config)
    for name, value in change.items():
        section, _, leaf = name.rpartition(".")
        place = config[section] if section else config
        place[leaf] = ConfigDict(value) if isinstance(value, dict) else value
    with pytest.raises(ValueError, match=re.escape(said)):
        check_settings(config)

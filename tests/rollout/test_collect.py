"""Parallel episodes: order, seeds, deadlines, typed outcomes, and no lost episode in an advantage."""

import random
import threading
import time

import numpy as np
import pytest
from counter_environment import CounterEnvironment, CounterEpisode, hang
from patience import patience

from cojax.environment import EngineError, EnvironmentFailure, LimitExceeded
from cojax.host.background import Interrupted
from cojax.learner.advantages import group_relative
from cojax.learner.batch import RowShape, pack
from cojax.rollout.chat import Chat, PolicyActors, no_document
from cojax.rollout.collect import EpisodeCollector, Limits, RolloutError
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import word_tokenizer
from cojax.types import Action, Call, Group

CHAT = Chat(word_tokenizer([], ["count to", "ok"], CounterEnvironment().tools()), no_document)
TASKS = CounterEnvironment().tasks("train", 4)
SAMPLING = Sampling(max_tokens=32)


class DiceEngine:
    """Adds or finishes by a die thrown from the request's seed; slow for some, so that arrival order varies."""

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        self.lock = threading.Lock()

    def generate(self, prompt, sampling, *, session, seed) -> Completion:
        with self.lock:
            self.sessions.add(session)
        time.sleep(random.random() * 0.002)
        name = "add" if random.Random(repr(seed)).random() < 0.7 else "finish"
        tokens = CHAT.encode_action(Action(calls=(Call(name),)))
        return Completion(tokens, (-0.5,) * len(tokens), 3, "stop")

    def release(self, session: str) -> None:
        with self.lock:
            self.sessions.discard(session)


WORLD = CounterEnvironment()


def gather(environment=WORLD, engine=None, group_size=8, quorum=1.0, stop=lambda: False, **limits) -> list[Group]:
    limits = Limits(**{"environment_deadline": 0.5, "error_rate": 1.0, **limits})
    actors = PolicyActors(engine or DiceEngine(), CHAT, SAMPLING)
    collector = EpisodeCollector(actors, environment, limits, group_size, quorum)
    return collector.collect(TASKS, seed=(0, 7), label="7", stop=stop)


def plain(groups: list[Group]) -> list[list[tuple]]:
    return [[(t.episode, t.reward, [turn.action_tokens for turn in t.turns]) for t in g.trajectories] for g in groups]


def test_order_is_by_task_and_sample_never_by_arrival():
    first = gather()
    assert [group.task for group in first] == list(TASKS)
    assert [t.episode for t in first[1].trajectories] == [f"7-{TASKS[1].id}-{sample}" for sample in range(8)]
    assert plain(first) == plain(gather(concurrency=1)) == plain(gather(concurrency=5))


def test_known_episodes_are_taken_as_they_are_and_the_rest_comes_out_the_same():
    first = gather()
    known = {t.episode: t for group in first[1:] for t in group.trajectories[:5]}
    engine, seen = DiceEngine(), []
    collector = EpisodeCollector(PolicyActors(engine, CHAT, SAMPLING), WORLD, Limits(), group_size=8)
    again = collector.collect(TASKS, seed=(0, 7), label="7", known_episodes=known, on_episode=seen.append)
    assert plain(again) == plain(first)
    assert len(seen) == 32 - len(known)
    assert not known.keys() & {t.episode for t in seen}


def test_prefixes_only_grow_and_versions_are_kept():
    for group in gather():
        for trajectory in group.trajectories:
            assert trajectory.turns[0].prompt_tokens == CHAT.open(trajectory.opening)
            assert {turn.weights_version for turn in trajectory.turns} == {3}
            assert all(turn.engine_seconds > 0 for turn in trajectory.turns)


def test_every_session_is_released():
    engine = DiceEngine()
    gather(engine=engine)
    assert not engine.sessions


def test_failures_in_a_fifth_of_the_episodes_change_no_advantage():
    """The advantages of what is left are those of groups that never held the failures."""
    count = iter(range(10**6))
    lock = threading.Lock()

    def sometimes(task):
        with lock:
            failing = next(count) % 5 == 0
        if failing:
            raise ConnectionError("session reset failed")

    whole = {t.episode: t for group in gather() for t in group.trajectories}
    groups = gather(CounterEnvironment(on_start=sometimes), retries=0)
    lost = [t for group in groups for t in group.trajectories if not t.valid]
    assert 6 <= len(lost) <= 7  # a fifth of 32
    assert {t.outcome for t in lost} == {"environment_error"}
    left = [Group(g.task, tuple(whole[t.episode] for t in g.trajectories if t.valid)) for g in groups]
    damaged, _ = pack(groups, group_relative, RowShape(512), skip_flat=False)
    clean, _ = pack(left, group_relative, RowShape(512), skip_flat=False)
    rows = clean.tokens.shape[0]
    for name in ("tokens", "advantages", "weights", "sampler_logprobs"):
        np.testing.assert_array_equal(getattr(damaged, name)[:rows], getattr(clean, name))
        assert not getattr(damaged, name)[rows:].any()


def test_a_lost_episode_is_played_again_with_the_same_seeds():
    failed = set()

    def once(task):
        if task.id not in failed:
            failed.add(task.id)
            raise ConnectionError("first time")

    assert plain(gather(CounterEnvironment(on_start=once))) == plain(gather())


def test_a_step_that_hangs_twice_is_the_actions_doing():
    environment = CounterEnvironment(lambda task, step: hang() if task.setup["target"] == 1 and step == 1 else None)
    began = time.monotonic()
    groups = gather(environment, group_size=2, environment_deadline=0.25)
    assert time.monotonic() - began < patience(4)
    hung = [t for t in groups[0].trajectories if t.outcome != "finished"]
    assert hung
    assert all((t.outcome, t.valid, t.reward) == ("timeout", True, 0.0) for t in hung)
    assert all("isolated" in t.error and t.turns[-1].action_tokens for t in hung)
    assert all(t.outcome == "finished" for group in groups[1:] for t in group.trajectories)


def test_a_hanging_start_is_lost_not_punished():
    environment = CounterEnvironment(on_start=lambda task: hang() if task.setup["target"] == 1 else None)
    groups = gather(environment, group_size=1, environment_deadline=0.25)
    assert [t.outcome for g in groups for t in g.trajectories] == ["environment_error", *["finished"] * 3]


def test_a_failing_engine_is_retried_then_typed():
    class Gone(DiceEngine):
        def generate(self, prompt, sampling, *, session, seed):
            raise EngineError("connection refused")

    groups = gather(engine=Gone())
    assert {t.outcome for g in groups for t in g.trajectories} == {"engine_error"}


def test_above_the_error_rate_the_step_stops_and_names_the_cause():
    def broken(task):
        raise ConnectionError("session reset failed")

    with pytest.raises(RolloutError, match=r"32 of 32 .* environment_error: reset: ConnectionError: session reset"):
        gather(CounterEnvironment(on_start=broken), error_rate=0.3)


def test_a_bug_in_the_engine_is_raised():
    class Buggy(DiceEngine):
        def generate(self, prompt, sampling, *, session, seed):
            raise KeyError("bug")

    with pytest.raises(KeyError):
        gather(engine=Buggy())


class SlowSample(DiceEngine):
    """Stalls the last two samples of each task until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.released: list[str] = []

    def generate(self, prompt, sampling, *, session, seed):
        if session.split("-")[2] in ("6", "7"):
            assert self.free.wait(patience(10))
        return super().generate(prompt, sampling, session=session, seed=seed)

    def release(self, session):
        super().release(session)
        self.released.append(session)


def test_an_update_need_not_wait_for_stragglers():
    engine = SlowSample()
    began = time.monotonic()
    # The slow ones may not hold up the others' threads.
    groups = gather(engine=engine, quorum=0.75)
    assert time.monotonic() - began < patience(5)
    engine.free.set()
    for group, whole in zip(groups, gather(), strict=True):
        assert [t.episode for t in group.trajectories] == [t.episode for t in whole.trajectories]
        assert [t.outcome for t in group.trajectories[6:]] == ["cut", "cut"]
        # Those that are in are what they would have been.
        assert plain([Group(group.task, group.trajectories[:6])]) == plain([Group(whole.task, whole.trajectories[:6])])
        assert len(group.valid) == 6
        assert group.score == sum(t.reward for t in group.trajectories[:6]) / 6
        # Their requests are given up, so that nothing is generated that nobody reads.
        assert {f"{t.episode}-0" for t in group.trajectories[6:]} <= set(engine.released)


def test_what_is_cut_counts_as_no_loss():
    """Two of eight are more than the 10 % that may be lost."""
    engine = SlowSample()
    assert gather(engine=engine, quorum=0.75, error_rate=0.1)
    engine.free.set()


def test_a_quorum_of_valid_episodes_is_waited_for():
    """Lost episodes don't stand in for valid ones; a group that cannot reach its quorum is waited for to its end."""

    def broken(task):
        if task.setup["target"] == 1:
            raise ConnectionError("gone")

    groups = gather(CounterEnvironment(on_start=broken), quorum=0.5)
    assert [t.outcome for t in groups[0].trajectories] == ["environment_error"] * 8
    assert all(len(group.valid) >= 4 for group in groups[1:])


def test_unwanted_rollouts_stop_and_start_nothing_more():
    engine = SlowSample()
    asked = threading.Event()
    threading.Timer(0.1, asked.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted, match=r"of 32 episodes"):
        gather(engine=engine, stop=asked.is_set, concurrency=4)
    assert time.monotonic() - began < patience(5)
    seen = set(engine.released)
    engine.free.set()
    time.sleep(0.2)
    assert len(set(engine.released) - seen) <= 4


class CodeRunning(CounterEnvironment):
    """An environment that declares that it runs what a policy wrote."""

    runs_policy_code = True


def hanging(monkeypatch, method: str) -> None:
    """Has that method of the first task's episodes hang."""
    as_it_is = getattr(CounterEpisode, method)

    def call(self, *arguments):
        if self.task.setup["target"] == 1:
            hang()
        return as_it_is(self, *arguments)

    monkeypatch.setattr(CounterEpisode, method, call)


def test_a_hanging_verdict_is_the_policys_where_its_code_runs(monkeypatch):
    hanging(monkeypatch, "evaluate")
    for environment, valid in ((CodeRunning(), True), (CounterEnvironment(), False)):
        groups = gather(environment, group_size=1, environment_deadline=0.25, retries=0)
        outcome = "timeout" if valid else "environment_error"
        assert [t.outcome for g in groups for t in g.trajectories] == [outcome, *["finished"] * 3]
        assert (groups[0].trajectories[0].valid, groups[0].trajectories[0].reward) == (valid, 0.0)


def test_a_hanging_start_is_nobodys_where_a_policys_code_runs(monkeypatch):
    hanging(monkeypatch, "reset")
    groups = gather(CodeRunning(), group_size=1, environment_deadline=0.25, retries=0)
    assert [t.outcome for g in groups for t in g.trajectories] == ["environment_error", *["finished"] * 3]


@pytest.mark.parametrize(
    ("losses", "retries", "outcome", "played"),
    [
        ("t", 1, "finished", 2),
        ("tt", 1, "timeout", 2),
        ("tt", 0, "timeout", 2),
        ("tttt", 3, "timeout", 2),
        ("it", 1, "finished", 3),
        ("itt", 1, "timeout", 3),
        ("tit", 1, "timeout", 3),
        ("tii", 1, "environment_error", 3),
        ("ii", 1, "environment_error", 2),
        ("i", 0, "environment_error", 1),
    ],
)
def test_a_loss_by_the_policy_is_played_once_more_whatever_the_machinery_loses(losses, retries, outcome, played):
    """`t` is a loss that may be the policy's, `i` one of what serves it."""
    left, count = iter(losses), [0]

    def lose(task, step):
        if step == 0:
            count[0] += 1
            match next(left, ""):
                case "t":
                    raise LimitExceeded("the child is gone")
                case "i":
                    raise EnvironmentFailure("the worker is gone")

    actors, limits = PolicyActors(DiceEngine(), CHAT, SAMPLING), Limits(retries=retries, error_rate=1.0)
    groups = EpisodeCollector(actors, CounterEnvironment(lose), limits).collect(TASKS[:1], seed=(0, 7), label="7")
    assert (groups[0].trajectories[0].outcome, count[0]) == (outcome, played)

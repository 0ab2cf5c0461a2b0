"""Evolutions beside the step that follows, and evolutions that are told to stop."""

import dataclasses
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from counter_environment import CounterEnvironment
from patience import patience

from cojax import signals
from cojax.coevolve import coevolve
from cojax.explorer import Exploration
from cojax.host.background import await_background, in_background
from cojax.loop import Loop, State
from cojax.loop.records import save
from cojax.metrics import Stopwatch
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import word_tokenizer
from cojax.signals import Forgetting, SignalKind
from cojax.signals.tools import read_by_verb
from cojax.storage.run_directory import RunDirectory
from cojax.synthesis import Expedition
from cojax.synthesis.evolutions import around_signals
from cojax.types import Action, Call, Task, TaskDraft, Triplet
from cojax.validation import Validation

ENVIRONMENT = CounterEnvironment()
CHAT = Chat(word_tokenizer([], ["count to", "ok"], ENVIRONMENT.tools()), no_document)
FINISH = Action(calls=(Call("finish"),))
STEPS = 6


class Hasty:
    """An engine that ends every episode at once."""

    busy_seconds = 0.0

    def load(self, weights):
        pass

    def rest(self):
        pass

    def generate(self, prompt, sampling, *, session, seed):
        tokens = CHAT.encode_action(FINISH)
        return Completion(tokens, (-0.5,) * len(tokens), 0, "stop")

    def release(self, session):
        pass


class Counting:
    """A learner whose state counts its updates; `during` is called in each of them."""

    def __init__(self, during):
        self.during = during

    def weights(self, state, version):
        return version

    def update(self, state, groups, sizes=()):
        self.during()
        return {"updates": state["updates"] + 1}, {"groups": float(len(groups)), "groups_live": 0.0}


class Finder:
    """An explorer that finds one new number to count to on each expedition; `during` is called on the way."""

    name = "finder"
    ending = "finish"
    width = 1

    def __init__(self, during):
        self.during = during

    def explore(self, environment, task, context, seed, weights=None):
        self.during()
        add = Action(calls=(Call("add"),))
        episode = environment.start(task)
        return Exploration(task, context, seed, (Triplet(add, episode.step(add), 0),))

    def abstract(self, exploration, environment, limit):
        target = exploration.task.setup["target"]
        solution = (*(exploration.triplets[0].action for _ in range(target)), FINISH)
        yield TaskDraft("counter", {"target": target}, "", f"count up to {target}", solution, "", (0,))


def expeditions(inputs):
    for number in range(2):
        target = 2 + number + 2 * inputs.seed[1]
        yield Expedition(Task("counter", "", {"target": target}), "unguided")


class Run:
    """A run of six steps with an evolution every second one."""

    def __init__(self, folder, parallel, exploring=lambda: None, updating=lambda: None):
        self.directory = RunDirectory(folder)
        self.loop = Loop(
            environment=ENVIRONMENT, engine=Hasty(), chat=CHAT, learner=Counting(updating), explorer=Finder(exploring),
            validate=Validation(ENVIRONMENT), detectors={}, evolve=expeditions, popularity=None,
            sampling=Sampling(max_tokens=32), limits=Limits(concurrency=2), clock=Stopwatch(), seed=0, steps=STEPS,
            batch_size=2, group_size=2, evolve_every=2, fresh_fraction=0.5, contexts=2, budget=2, per_context=1,
            checkpoint_every=3, staleness=int(parallel), evolve_beside=parallel,
        )  # fmt: skip

    def go(self, stop=lambda: False) -> State:
        arrays = {"updates": np.zeros((), np.int32)}
        found = self.directory.resume(arrays, {})
        if found is None:
            self.directory.begin()
            tasks = ENVIRONMENT.tasks("train", 2)
            self.directory.add_tasks(tasks)
            state = State(0, arrays, TaskPool.of(tasks), signals.init({}))
            save(self.loop, state, self.directory)
        else:
            host = found.host
            state = State(
                found.step, found.arrays, found.pool, found.memory, found.pending, host["evolved"], found.waiting,
                host["record"],
            )  # fmt: skip
        return coevolve(self.loop, state, self.directory, lambda record: self.directory.metrics.append([record]), stop)

    def left(self) -> list[list]:
        logs = self.directory.logs
        return [list(logs[name].read()) for name in ("metrics", "tasks", "drafts", "expeditions")]

    def untimed(self) -> list[list]:
        return [
            [{key: value for key, value in line.items() if key != "seconds"} for line in log] for log in self.left()
        ]


@pytest.mark.parametrize("parallel", [False, True])
def test_an_evolution_that_is_stopped_is_left_and_the_run_goes_on_to_the_same_end(parallel, tmp_path):
    straight = Run(tmp_path / "straight", parallel)
    assert straight.go().step == STEPS
    for met in (1, 4, 6):  # the expedition it is stopped on, of two in each evolution
        stopped, seen = threading.Event(), []

        def exploring(seen=seen, stopped=stopped, met=met):
            seen.append(1)
            if len(seen) == met:
                stopped.set()

        folder = tmp_path / f"stopped{met}"
        first = Run(folder, parallel, exploring)
        assert first.go(stopped.is_set).step <= STEPS
        evolutions = [record for record in first.left()[0] if "evolution" in record]
        assert len(evolutions) == (met - 1) // 2, "the evolution that was stopped left a record"
        first.directory._lock.close()
        again = Run(folder, parallel)
        assert again.go().step == STEPS
        assert again.untimed() == straight.untimed(), met
        again.directory._lock.close()


def test_an_evolution_beside_runs_while_the_next_step_trains(tmp_path):
    training = threading.Event()
    waited = []

    def exploring():
        waited.append(training.wait(patience(5)))

    run = Run(tmp_path, True, exploring, updating=training.set)
    run.go()
    assert waited == [True] * 6
    records = run.left()[0]
    # That of step 2 comes with step 3, that of step 4 with step 5; no step follows the sixth, which ends with its own.
    assert [record["step"] for record in records if "evolution" in record] == [3, 5, 6]
    assert [record["tasks"] for record in records] == [2, 2, 4, 4, 6, 8]
    assert [record["evolution"]["step"] for record in records if "evolution" in record] == [2, 4, 6]
    assert [task["lineage"]["step"] for task in run.left()[1][2:]] == [2, 2, 4, 4, 6, 6]


def test_an_evolution_that_fails_beside_ends_the_step(tmp_path):
    def exploring():
        raise KeyError("bug")

    with pytest.raises(KeyError):
        Run(tmp_path, True, exploring).go()


def test_what_is_under_way_is_waited_for_but_not_for_ever():
    free = threading.Event()
    with in_background("stalled", lambda unwanted: free.wait(patience(10))):
        pass
    began = time.monotonic()
    assert not await_background(0.1)
    assert time.monotonic() - began < patience(5)
    free.set()
    assert await_background(10)


def test_a_step_stopped_in_its_evolution_keeps_the_seconds_it_took(tmp_path):
    stopped = threading.Event()
    first = Run(tmp_path, False, stopped.set)
    state = first.go(stopped.is_set)
    assert (state.step, state.last_evolution) == (2, 0)
    assert state.record is not None
    assert state.record["seconds"]["total"] > 0
    first.directory._lock.close()
    again = Run(tmp_path, False)
    again.go()
    records = again.left()[0]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert records[1]["seconds"] == state.record["seconds"]
    assert records[1]["evolution"]["step"] == 2


def test_an_evolution_without_expeditions_says_why_in_its_record(tmp_path):
    run = Run(tmp_path, False)
    run.loop = dataclasses.replace(run.loop, evolve=around_signals)
    run.go()
    said = [record["evolution"]["idle"] for record in run.left()[0] if "evolution" in record]
    assert said == ["no signal is switched on (signals)"] * 3
    other = Run(tmp_path / "other", False)
    other.go()
    assert [record["evolution"].get("idle") for record in other.left()[0] if "evolution" in record] == [None] * 3


def test_visits_before_the_last_evolution_count_where_signals_go_by_verbs(tmp_path: Path) -> None:
    def seen_by(kind: SignalKind, folder: Path) -> list:
        run, seen = Run(folder, parallel=False), []

        def evolve(inputs):
            seen.append(inputs.visits)
            return expeditions(inputs)

        kinds = {"forgetting": kind}
        run.loop = dataclasses.replace(run.loop, detectors=kinds, kinds=kinds, evolve=evolve)
        arrays = {"updates": np.zeros((), np.int32)}
        run.directory.begin()
        tasks = ENVIRONMENT.tasks("train", 2)
        run.directory.add_tasks(tasks)
        state = State(0, arrays, TaskPool.of(tasks), signals.init(kinds))
        save(run.loop, state, run.directory)
        coevolve(run.loop, state, run.directory, lambda record: None, lambda: False)
        return seen

    plain = seen_by(Forgetting(), tmp_path / "plain")
    assert any(visit.step == 0 for visits in plain[-1].values() for visit in visits)
    assert seen_by(read_by_verb(Forgetting(), {"act": "command"}), tmp_path / "verbs") == plain

"""The arms of the study of signals in the real loop, on a grown desk: a probe, beliefs and replayed prefixes."""

from __future__ import annotations

import functools
import random
import threading

import numpy as np
import pytest

import environments
from cojax import signals
from cojax.coevolve import coevolve
from cojax.environment.wrapping import Wrapped
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.loop import Loop, State
from cojax.loop.groups import probe_tasks
from cojax.loop.records import save
from cojax.metrics import Stopwatch
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.vocabulary import word_tokenizer
from cojax.storage.run_directory import RunDirectory
from cojax.synthesis import EVOLUTIONS, initial_tasks, reads
from cojax.synthesis.beliefs import Beliefs, posteriors, predictor
from cojax.synthesis.pipeline import Probe
from cojax.types import Action, Call, TaskDraft, from_json
from cojax.validation import Validation
from experiments.study.credits import Credits, credited
from experiments.study.frontier import frontier
from experiments.study.prefix_replay import PrefixStaircase

GROWN = environments.load("desk", suites=2, applications=3)
CHAT = Chat(word_tokenizer(*GROWN.lexicon(), GROWN.tools()), no_document)
EXPLORER = ScriptedExplorer(neighbours=GROWN.neighbours)
FIRST = initial_tasks(GROWN, EXPLORER, Validation(GROWN), 8, seed=(0, "initial"), weights=None).tasks
FINISH = Action(calls=(Call("finish"),))


class Knowing:
    """An engine that continues with the solution of the episode's task, and sometimes finishes too early."""

    busy_seconds = 0.0

    def __init__(self, tasks, sampling=lambda session: None):
        self.tasks, self.sampling = tasks, sampling

    def load(self, weights):
        pass

    def rest(self):
        pass

    def release(self, session):
        pass

    def generate(self, prompt, sampling, *, session, seed):
        self.sampling(session)
        task = self.tasks[session.split("-")[1]]
        knows = random.Random(repr(seed)).random() < 0.8
        tokens = CHAT.encode_action(task.solution[seed[-1]] if knows else FINISH)
        return Completion(tokens, (-0.5,) * len(tokens), 0, "stop")


class Counting:
    """A learner whose state counts its updates; `groups` are all that it was given."""

    def __init__(self):
        self.groups = []

    def weights(self, state, version):
        return version

    def update(self, state, groups, sizes=()):
        self.groups += groups
        return {"updates": state["updates"] + 1}, {"groups": float(len(groups)), "groups_live": 0.0}


class Run:
    """A run of four steps with an evolution every second one, which adds at most four tasks."""

    def __init__(self, folder, evolve, admission, sampling=lambda session: None, steps=4, kinds=()):
        known = {}

        def start(task):
            known[task.id] = task
            return GROWN.start(task)

        self.directory, self.learner = RunDirectory(folder), Counting()
        kinds = {name: signals.SIGNALS[name]() for name in kinds}
        self.detectors = {**kinds, "beliefs": Beliefs(), "credits": Credits(), "prefixes": PrefixStaircase()}
        world = Wrapped(GROWN, start)
        self.loop = Loop(
            environment=world, engine=Knowing(known, sampling), chat=CHAT, learner=self.learner, explorer=EXPLORER,
            validate=Validation(GROWN), detectors=self.detectors, evolve=evolve, kinds=kinds, reads=reads(evolve),
            admission=admission, popularity=None, sampling=Sampling(max_tokens=32), limits=Limits(concurrency=4),
            clock=Stopwatch(), seed=0, steps=steps, batch_size=6, group_size=4, evolve_every=2, fresh_fraction=0.5,
            contexts=4, budget=4, per_context=1, checkpoint_every=2, prefix=self.detectors["prefixes"].prefix,
            predictor=functools.partial(predictor, environment=world, ending=EXPLORER.ending),
        )  # fmt: skip

    def go(self, stop=lambda: False) -> State:
        arrays = {"updates": np.zeros((), np.int32)}
        found = self.directory.resume(arrays, signals.init(self.detectors))
        if found is None:
            self.directory.begin()
            self.directory.add_tasks(FIRST)
            state = State(0, arrays, TaskPool.of(FIRST), signals.init(self.detectors))
            save(self.loop, state, self.directory)
        else:
            state = State(
                found.step, found.arrays, found.pool, found.memory, found.pending, found.host["evolved"],
                found.waiting, found.host["record"],
            )  # fmt: skip
        return coevolve(self.loop, state, self.directory, lambda record: self.directory.metrics.append([record]), stop)

    def left(self, name):
        return [
            {key: value for key, value in line.items() if key != "seconds"} for line in self.directory.logs[name].read()
        ]


LOGS = ("metrics", "tasks", "drafts", "expeditions", "memory")


@pytest.fixture(scope="module")
def probed(tmp_path_factory) -> Run:
    run = Run(tmp_path_factory.mktemp("probed"), posteriors, Probe(candidates=3, attempts=4))
    assert run.go().step == 4
    return run


def test_a_probe_tries_every_candidate_and_keeps_as_many_as_the_budget(probed):
    found = [record["evolution"] for record in probed.left("metrics") if "evolution" in record]
    assert [one["step"] for one in found] == [2, 4]
    for one in found:
        assert one["expeditions"] <= 12
        assert 4 < one["probe"]["candidates"] <= 12
        assert one["probe"]["episodes"] == 4 * one["probe"]["candidates"]
        assert one["probe"]["tokens"] > one["probe"]["turns"] >= one["probe"]["episodes"]
        assert one["probe"]["live"] > 0
        assert one["probe"]["live_kept"] >= 0.5  # half of the tasks kept are the most learnable
        assert one["accepted"] == sum(one["added"].values()) == 4
        assert set(one["added"]) <= {"posterior", "uniform"}
    tasks = probed.left("tasks")
    assert len(tasks) == 16
    assert all(task["lineage"]["evidence"][-1].startswith("probed: ") for task in tasks[8:])
    refused = [draft for draft in probed.left("drafts") if draft["verdict"]["evidence"][-1].startswith("not admitted")]
    assert len(refused) == sum(one["probe"]["candidates"] for one in found) - 8
    assert not any(draft["task"] for draft in refused)


def test_a_draft_tells_the_success_that_beliefs_and_the_probe_predicted(probed):
    drafts = probed.left("drafts")
    believed = [draft["predicted"]["beliefs"] for draft in drafts]
    assert all(0.0 < p < 1.0 for p in believed)
    # Nothing but the evidence of earlier steps decides it.
    memory = Beliefs().init()
    for line in probed.left("memory"):
        memory |= line["changes"].get("beliefs", {}) if line["step"] <= 2 else {}
    predict = predictor(memory, probed.loop.environment, EXPLORER.ending)
    first = [draft for draft in drafts if draft["step"] == 2]
    assert [draft["predicted"]["beliefs"] for draft in first] == [
        predict(from_json(TaskDraft, draft["draft"])) for draft in first
    ]
    tried = [draft for draft in drafts if any(line.startswith("probed") for line in draft["verdict"]["evidence"])]
    assert len(tried) > 8
    for draft in drafts:
        p = draft["predicted"]["probe"]
        assert p in (0.0, 0.25, 0.5, 0.75, 1.0) if draft in tried else p is None


def test_without_beliefs_or_a_probe_nothing_is_predicted(tmp_path):
    run = Run(tmp_path, EVOLUTIONS["uniform"], None, steps=2)
    run.go()
    assert [draft["predicted"] for draft in run.left("drafts")] == [{"beliefs": None, "probe": None}] * len(
        run.left("drafts")
    )
    assert run.left("drafts")


def test_probes_are_no_evidence_and_no_episode_of_a_step(probed):
    assert [sum(record["outcomes"].values()) for record in probed.left("metrics")] == [24] * 4
    memory = {}
    for line in probed.left("memory"):
        memory |= line["changes"]["beliefs"]
    assert memory["steps"] == 4
    assert memory["tool:finish"][2] == 4
    solved, failed, _ = memory["tool:finish"]
    assert solved + failed == pytest.approx(24 * (1 + 0.98 + 0.98**2 + 0.98**3))


def test_a_run_that_is_stopped_while_it_probes_goes_on_to_the_same_end(probed, tmp_path):
    stopped = threading.Event()

    def sampling(session):
        if session.startswith("probe4-"):
            stopped.set()

    first = Run(tmp_path, posteriors, Probe(candidates=3, attempts=4), sampling)
    state = first.go(stopped.is_set)
    assert (state.step, state.last_evolution) == (4, 2)
    assert [record["step"] for record in first.left("metrics")] == [1, 2, 3]
    first.directory._lock.close()
    again = Run(tmp_path, posteriors, Probe(candidates=3, attempts=4))
    assert again.go().step == 4
    for name in LOGS:
        assert again.left(name) == probed.left(name), name


def test_joined_tasks_begin_with_a_replayed_prefix_and_no_others(tmp_path):
    run = Run(tmp_path, functools.partial(frontier, mastered=0.0, floor=0.0), None, steps=6)
    assert run.go().step == 6
    begun = {"frontier": set(), "": set()}
    for group in run.learner.groups:
        of_joins = group.task.origin == "frontier"
        for trajectory in group.trajectories:
            begun["frontier" if of_joins else ""].add((trajectory.replayed, (len(group.task.solution) - 1) // 2))
    assert {length for length, _ in begun[""]} == {0}
    told = [row["replayed"] for row in run.left("metrics")]
    lengths = [group.valid[0].replayed for group in run.learner.groups if group.valid[0].replayed]
    assert sum(one["groups"] for one in told) == len(lengths)
    assert sum(one["groups"] * one["actions"] for one in told) == pytest.approx(sum(lengths))
    # A joined task is visited twice at most: its length has moved by at most one.
    assert all(abs(length - half) <= 1 for length, half in begun["frontier"])
    assert max(length for length, _ in begun["frontier"]) >= 1
    lengths = {}
    for line in run.left("memory"):
        lengths |= line["changes"]["prefixes"]
    assert set(lengths) <= {task["id"] for task in run.left("tasks") if task["origin"] == "frontier"}
    assert lengths
    # A probe tries a joined task as its first visit would.
    joined = {group.task.id: group.task for group in run.learner.groups if group.task.origin == "frontier"}
    tried = probe_tasks(run.loop, list(joined.values()), 7, 2, lambda: False)
    assert {
        trajectory.replayed - (len(group.task.solution) - 1) // 2 for group in tried for trajectory in group.valid
    } == {0}


def test_signals_earn_credit_by_the_groups_of_the_tasks_they_led_to(tmp_path):
    run = Run(tmp_path / "whole", credited, None, steps=6, kinds=("boundary",))
    assert run.go().step == 6
    led_to = {task["id"] for task in run.left("tasks") if task["origin"] == "boundary"}
    assert led_to
    memory = {}
    for line in run.left("memory"):
        memory |= line["changes"]["credits"]
    live, dead, _ = memory["boundary/"]
    visits = [group for group in run.learner.groups if group.task.id in led_to]
    alive = [len({trajectory.reward for trajectory in group.trajectories}) > 1 for group in visits]
    # Counts are discounted by 0.98 a step, over at most four steps.
    assert 0.98**4 * len(visits) <= live + dead <= len(visits)
    assert (live > 0, dead > 0) == (any(alive), not all(alive))
    # A run that ended earlier and is extended finds the same tasks.
    assert Run(tmp_path / "parts", credited, None, steps=3, kinds=("boundary",)).go().step == 3
    parts = Run(tmp_path / "parts", credited, None, steps=6, kinds=("boundary",))
    assert parts.go().step == 6
    for name in LOGS:
        assert parts.left(name) == run.left(name), name

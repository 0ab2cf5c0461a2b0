"""Runs at staleness 0, 1, 2 and 4: which weights and tasks a step has, and runs that are killed and go on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from counter_environment import CounterEnvironment

from cojax import signals
from cojax.coevolve import coevolve
from cojax.explorer import Exploration
from cojax.loop import Loop, State
from cojax.loop.records import save
from cojax.metrics import Stopwatch
from cojax.pool import RecentScores, TaskPool, learnability
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Completion, Sampling, Weights
from cojax.rollout.vocabulary import word_tokenizer
from cojax.run.checks import check_settings
from cojax.storage.episodes import make_record
from cojax.storage.run_directory import RunDirectory
from cojax.synthesis import Expedition
from cojax.types import Action, Call, Task, TaskDraft, Triplet
from cojax.validation import Validation
from experiments import desk

ENVIRONMENT = CounterEnvironment()
CHAT = Chat(word_tokenizer([], ["count to", "ok"], ENVIRONMENT.tools()), no_document)
ADD, FINISH = Action(calls=(Call("add"),)), Action(calls=(Call("finish"),))
STEPS = 10


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


class Events:
    """Counts what happens by name, and kills the run when `fatal`, a name and a number, happens."""

    def __init__(self, fatal: tuple[str, int] = ("", 0)):
        self.fatal, self.counts = fatal, dict[str, int]()

    def __call__(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1
        if (name, self.counts[name]) == self.fatal:
            raise Killed(name)


class Engine:
    """Adds or finishes by chance, in proportions that its weights decide."""

    busy_seconds = 0.0

    def __init__(self, events: Events):
        self.events, self.version, self.number = events, -1, 0
        self.loaded: list[int] = []

    def load(self, weights):
        ((_, array),) = weights.arrays()
        self.version, self.number = weights.version, int(array)
        self.loaded.append(weights.version)

    def rest(self):
        pass

    def generate(self, prompt, sampling, *, session, seed):
        self.events("generate")
        adds = random.Random(repr((self.number, seed))).random() < 0.6
        tokens = CHAT.encode_action(ADD if adds else FINISH)
        return Completion(tokens, (-0.5,) * len(tokens), self.version, "stop")

    def release(self, session):
        pass


class Learner:
    """Its state is a checksum of all that it has learned from. An update destroys the state before it."""

    def __init__(self, events: Events):
        self.events = events

    def weights(self, state, version):
        return Weights(version, lambda: iter([("number", state["number"])]))

    def update(self, state, groups, sizes=()):
        self.events("update")
        number = int(state["number"])
        for group in groups:
            for trajectory in group.trajectories:
                number = zlib.crc32(repr([turn.action_tokens for turn in trajectory.turns]).encode(), number)
        state["number"][...] = 0
        facts = {"groups": float(len(groups)), "groups_live": float(sum(group.live for group in groups))}
        return {"number": np.array(number, np.uint32)}, facts


class Finder:
    """An explorer that finds one new number to count to on each expedition."""

    name, ending, width = "finder", "finish", 1

    def __init__(self, events: Events):
        self.events = events

    def explore(self, environment, task, context, seed, weights=None):
        self.events("explore")
        return Exploration(task, context, seed, (Triplet(ADD, environment.start(task).step(ADD), 0),))

    def abstract(self, exploration, environment, limit):
        target = exploration.task.setup["target"]
        solution = (*(ADD for _ in range(target)), FINISH)
        yield TaskDraft("counter", {"target": target}, "", f"count up to {target}", solution, "", (0,))


def expeditions(inputs):
    for number in range(2):
        yield Expedition(Task("counter", "", {"target": 2 + number + 2 * inputs.seed[1]}), "unguided")


class Run:
    """A run of ten steps with an evolution every third one and a checkpoint every second one."""

    def __init__(self, folder: Path, staleness: int, events: Events | None = None, **settings):
        self.events = events or Events()
        self.directory = RunDirectory(folder)
        self.engine = Engine(self.events)
        self.detectors = {"visits": RecentScores()}
        defaults = {
            "evolve": expeditions, "evolve_beside": staleness > 0, "steps": STEPS, "curriculum": learnability,
            "fresh_fraction": 0.5,
        }  # fmt: skip
        self.loop = Loop(
            environment=ENVIRONMENT, engine=self.engine, chat=CHAT, learner=Learner(self.events),
            explorer=Finder(self.events), validate=Validation(ENVIRONMENT), detectors=self.detectors,
            popularity=None, sampling=Sampling(max_tokens=32), limits=Limits(concurrency=4),
            clock=Stopwatch(), seed=0, batch_size=2, group_size=2, evolve_every=3, contexts=2, budget=2,
            per_context=1, checkpoint_every=2, staleness=staleness, **{**defaults, **settings},
        )  # fmt: skip

    def go(self, stop=lambda: False) -> State:
        arrays = {"number": np.zeros((), np.uint32)}
        found = self.directory.resume(arrays, signals.init(self.detectors))
        if found is None:
            self.directory.begin()
            tasks = ENVIRONMENT.tasks("train", 3)
            self.directory.add_tasks(tasks)
            state = State(0, arrays, TaskPool.of(tasks), signals.init(self.detectors))
            save(self.loop, state, self.directory)
        else:
            state = State(
                found.step, {"number": np.array(found.arrays["number"])}, found.pool, found.memory, found.pending,
                found.host["evolved"], found.waiting, found.host["record"],
            )  # fmt: skip
        return coevolve(self.loop, state, self.directory, self.observe, stop)

    def observe(self, record):
        self.events("record")
        self.directory.metrics.append([record])

    def episodes(self, step: int) -> list[dict]:
        records, find = self.directory.read_episodes([step])
        return [make_record(find(episode), with_times=False) for episode in records]

    def contents(self) -> dict:
        """All that the run has written, without times."""
        logs = {
            name: [{key: value for key, value in line.items() if key != "seconds"} for line in log.read()]
            for name, log in self.directory.logs.items()
        }
        return {**logs, "episodes": [self.episodes(step) for step in range(1, self.loop.steps + 1)]}


@contextlib.contextmanager
def opened(*arguments, **settings):
    run = Run(*arguments, **settings)
    try:
        yield run
    finally:
        run.directory.close()


def straight(folder: Path, staleness: int, **settings) -> dict:
    with opened(folder, staleness, **settings) as run:
        state = run.go()
        assert state.step == run.loop.steps
        return {**run.contents(), "state": int(state.learner["number"])}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> dict[int, dict]:
    return {
        staleness: straight(tmp_path_factory.mktemp(f"staleness{staleness}"), staleness) for staleness in (0, 1, 2, 4)
    }


@pytest.mark.parametrize(
    ("staleness", "settings", "number", "digest"),
    [
        (0, {}, 152494225, "d9f3c9ea6f15ebe0"),
        (0, {"dynamic_sampling": 6}, 2359154412, "647ac0d88a99e20b"),
        (1, {}, 3165702671, "82d30a8aea6b630e"),
        (1, {"dynamic_sampling": 6}, 617589842, "9411d55e085a84c7"),
        (1, {"evolve_beside": False}, 2199339508, "e2275eb574b71050"),
    ],
)
def test_at_0_and_1_it_is_the_run_of_before_there_was_a_queue(staleness, settings, number, digest, tmp_path):
    """The literals are of the loop that overlapped one step with one block."""
    found = straight(tmp_path, staleness, **settings)
    assert found["state"] == number
    assert hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_a_step_has_the_weights_of_a_step_fixed_by_its_number(staleness, uninterrupted):
    found = uninterrupted[staleness]
    for step, episodes in enumerate(found["episodes"], 1):
        assert {turn["weights_version"] for episode in episodes for turn in episode["turns"]} == {
            max(0, step - 1 - staleness)
        }


@pytest.mark.parametrize(("staleness", "arrivals"), [(0, (4, 7, 10)), (1, (6, 9)), (2, (7, 10)), (4, (9,))])
def test_tasks_of_an_evolution_enter_at_a_step_fixed_by_its_number(staleness, arrivals, tmp_path):
    """With fresh_fraction 1 a step draws from the newest tasks alone."""
    found = straight(tmp_path, staleness, fresh_fraction=1.0, curriculum=None)
    joined = {task["id"]: task["lineage"]["step"] for task in found["tasks"][3:]}
    sources = [{joined.get(episode["episode"].split("-")[1], 0) for episode in step} for step in found["episodes"]]
    changes = [step for step in range(2, STEPS + 1) if sources[step - 1] != sources[step - 2]]
    assert tuple(changes) == arrivals
    assert all(len(source) == 1 for source in sources)


@pytest.mark.parametrize("staleness", [2, 4])
def test_the_same_seed_is_the_same_run(staleness, uninterrupted, tmp_path):
    assert straight(tmp_path, staleness) == uninterrupted[staleness]


# Ten moments: in rollouts, updates and evolutions, and before a step's record is written.
MOMENTS = (
    ("generate", 2), ("generate", 30), ("generate", 55), ("generate", 80), ("update", 2), ("update", 5), ("update", 8),
    ("explore", 2), ("record", 4), ("record", 9),
)  # fmt: skip


@pytest.mark.parametrize("staleness", [2, *(pytest.param(value, marks=pytest.mark.nightly) for value in (0, 1, 4))])
def test_killed_at_any_moment_it_goes_on_to_the_same_end(staleness, uninterrupted, tmp_path):
    for name, number in MOMENTS:
        folder = tmp_path / f"{name}{number}"
        with opened(folder, staleness, Events((name, number))) as run, pytest.raises(Killed):
            run.go()
        assert straight(folder, staleness) == uninterrupted[staleness], (name, number)


def test_a_checkpoint_holds_the_groups_of_as_many_steps_as_the_staleness(tmp_path):
    with opened(tmp_path, 2, Events(("update", 5))) as run, pytest.raises(Killed):
        run.go()
    with opened(tmp_path, 2) as run:
        waiting = run.directory.resume({"number": np.zeros((), np.uint32)}, {"visits": {}}).waiting
    names = [[episode.episode for group in groups for episode in group.trajectories] for groups in waiting]
    assert [{name.split("-")[0] for name in step_names} for step_names in names] == [{"5"}, {"6"}]
    assert [len(groups) for groups in waiting] == [2, 2]


def test_a_run_that_is_stopped_or_extended_goes_on(uninterrupted, tmp_path):
    with opened(tmp_path / "stopped", 2) as run:
        assert run.go(lambda: run.events.counts.get("record", 0) == 5).step == 5
    assert straight(tmp_path / "stopped", 2) == uninterrupted[2]
    straight(tmp_path / "extended", 2, steps=4)
    found = straight(tmp_path / "extended", 2)
    versions = [
        {turn["weights_version"] for episode in step for turn in episode["turns"]} for step in found["episodes"]
    ]
    # Beyond its last step a run begins as at step 0: nothing older than the weights of step 4 is stored.
    assert versions == [{0}, {0}, {0}, {1}, {4}, {4}, {4}, {5}, {6}, {7}]


def test_before_an_evolution_or_an_evaluation_samples_the_engine_has_the_weights_after_the_step(tmp_path):
    """Steps that were ordered before are sampled first, so no weights are loaded twice."""
    versions = {}

    def evolve(inputs):
        versions["evolution", inputs.seed[1] + 1] = run.engine.version
        yield from expeditions(inputs)

    def score(step):
        versions["score", step] = run.engine.version
        return {"success": 0.0}

    with opened(tmp_path, 3, evolve_beside=False, evolve=evolve, score=score, score_every=4) as run:
        run.go()
    assert versions == {(kind, step): step for kind, step in (
        ("evolution", 3), ("score", 4), ("evolution", 6), ("score", 8), ("evolution", 9),
    )}  # fmt: skip
    assert run.engine.loaded == sorted(set(run.engine.loaded))
    assert run.engine.loaded[-1] == STEPS


def test_with_mixed_the_engine_has_weights_as_soon_as_they_are_made(tmp_path):
    with opened(tmp_path, 4, mixed=True) as run:
        run.go()
        assert run.engine.loaded == list(range(STEPS + 1))
        staleness = [
            step - 1 - turn["weights_version"]
            for step in range(1, STEPS + 1) for episode in run.episodes(step) for turn in episode["turns"]
        ]  # fmt: skip
    assert 0 <= min(staleness) <= max(staleness) <= 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sync": "orbax", "follow": True}, r"sglang.sync=orbax .* with staleness=2 servers load them up to 1 updates"),
        ({"release_memory": True}, r"sglang.release_memory .* with staleness=2 the servers sample"),
        ({"sync": "orbax", "follow": True, "mixed": True}, ""),
    ],
)
def test_servers_that_cannot_be_ahead_are_refused_at_the_start(change, said):
    config = desk.get_config()
    config.staleness = 2
    for key, value in change.items():
        config.sglang[key] = value
    with pytest.raises(ValueError, match=said) if said else contextlib.nullcontext():
        check_settings(config)


def test_a_lap_counts_what_the_trainer_and_the_sampler_waited(tmp_path):
    with opened(tmp_path, 2) as run:
        run.go()
        lap = run.loop.clock.lap()
    assert 0.0 <= lap["trainer_waited"] <= lap["total"]
    assert 0.0 <= lap["sampler_waited"] <= lap["total"]

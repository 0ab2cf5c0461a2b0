"""How long a step takes at each staleness, with an engine and updates of fixed rates."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from counter_environment import CounterEnvironment

from benchmarks.simulate import paced
from benchmarks.simulate.servers import make_constant
from cojax import signals
from cojax.coevolve import coevolve
from cojax.loop import Loop, State
from cojax.loop.records import save
from cojax.metrics import Stopwatch
from cojax.pool import TaskPool
from cojax.rollout.chat import Chat, no_document
from cojax.rollout.collect import Limits
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.vocabulary import word_tokenizer
from cojax.storage.run_directory import RunDirectory
from cojax.types import Action, Call

ENVIRONMENT = CounterEnvironment()
CHAT = Chat(word_tokenizer([], ["count to", "ok"], ENVIRONMENT.tools()), no_document)
FINISH = CHAT.encode_action(Action(calls=(Call("finish"),)))
EPISODES, STEPS = 8, 12


class Learner:
    """Each update takes the same seconds."""

    def __init__(self, update_s: float):
        self.update_s = update_s

    def weights(self, state, version):
        return Weights(version, lambda: iter([("w", np.zeros(1))]))

    def update(self, state, groups, sizes=()):
        time.sleep(self.update_s)
        return state, {"groups": float(len(groups)), "groups_live": 0.0}


def measure(folder: Path, staleness: int, generation_s: float, update_s: float) -> float:
    """The median seconds of a step that neither evolves nor is checkpointed, without the first ones, which fill up."""
    paced.SERVER_RATES = make_constant(EPISODES * len(FINISH) / generation_s)
    engine = paced.PacedEngine([FINISH], server_count=1, vocabulary=10_000, length=1_000)
    nothing, directory, seconds = SimpleNamespace(), RunDirectory(folder), []
    loop = Loop(
        environment=ENVIRONMENT, engine=engine, chat=CHAT, learner=Learner(update_s), explorer=nothing,
        validate=nothing, detectors={}, evolve=nothing, popularity=None, sampling=Sampling(max_tokens=32),
        limits=Limits(concurrency=EPISODES), clock=Stopwatch(), seed=0, steps=STEPS, batch_size=2,
        group_size=EPISODES // 2, evolve_every=100, fresh_fraction=0.0, contexts=1, budget=1, per_context=1,
        checkpoint_every=100, staleness=staleness,
    )  # fmt: skip
    directory.begin()
    state = State(0, {"w": np.zeros(1)}, TaskPool.of(ENVIRONMENT.tasks("train", 2)), signals.init({}))
    save(loop, state, directory)
    coevolve(loop, state, directory, lambda record: seconds.append(loop.clock.lap()["total"]))
    engine.close()
    directory.close()
    return statistics.median(seconds[staleness + 1 : -1 - staleness])


@pytest.mark.nightly
@pytest.mark.parametrize(("generation_s", "update_s"), [(1.0, 0.8), (0.8, 1.0), (1.0, 0.3)])
def test_from_2_on_a_step_takes_the_longer_of_generation_and_update(generation_s, update_s, tmp_path, monkeypatch):
    monkeypatch.setattr(paced, "SERVER_RATES", None)
    found = {n: measure(tmp_path / str(n), n, generation_s, update_s) for n in (0, 1, 2, 4)}
    print(found)
    assert found[0] >= generation_s + update_s
    assert found[2] <= 1.1 * max(generation_s, update_s)
    assert found[4] <= 1.1 * max(generation_s, update_s)

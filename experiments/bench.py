"""What costs how much: python -m experiments.bench [--only=signals,desk,engine,update]

Prints one line a figure, the median of several runs with the smallest and the largest. Machines are shared and noisy:
compare figures of one run only.
"""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from absl import app, flags

import environments
from cojax.environment import play
from cojax.policy.config import ModelConfig
from cojax.replay import follow
from cojax.rollout.engine import Sampling
from cojax.signals import SIGNALS, apply, detect, init
from cojax.types import Action, Call, Group, Observation, Task, Trajectory, Turn

_ONLY = flags.DEFINE_list("only", ["signals", "desk", "engine", "update"], "Which benchmarks to run.")
# The demo's policy.
MODEL = ModelConfig(
    vocab_size=432,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
)


def report(name: str, seconds: Sequence[float], unit: str = "s", scale: float = 1.0) -> None:
    figures = sorted(scale * value for value in seconds)
    print(f"{name:<58} {statistics.median(figures):10.3f} {unit}   ({figures[0]:.3f} to {figures[-1]:.3f})", flush=True)


def timed(run: Callable[[], object], repeats: int) -> list[float]:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds


def bench_signals() -> None:
    """All three detectors over 10,000, 30,000 and 100,000 trajectories in steps of 32 groups of 8."""
    for count in (10_000, 30_000, 100_000):
        steps = list(_groups(count))

        def run(steps: list[list[Group]] = steps) -> None:
            detectors = {kind: detector() for kind, detector in SIGNALS.items()}
            memory = init(detectors)
            for groups in steps:
                changes, _ = detect(detectors, memory, groups)
                apply(memory, changes)

        report(f"signals: detection on {count:,} trajectories", timed(run, 3))


def _groups(count: int) -> Sequence[list[Group]]:
    """Groups of five-turn trajectories over 1,000 tasks and 26 tools, half of them solved."""
    rng = random.Random(0)
    tools = [f"tool{number}" for number in range(26)]
    tasks = [Task("bench", f"task {number}", {}) for number in range(1000)]

    def trajectory(task: Task, episode: str) -> Trajectory:
        names = rng.choices(tools, weights=[1 / rank for rank in range(1, 27)], k=5)
        turns = tuple(Turn(Action(calls=(Call(name),)), Observation()) for name in names)
        return Trajectory(task, episode, turns=turns, reward=float(rng.random() < 0.5))

    drawn = [rng.choice(tasks) for _ in range(count // 8)]
    groups = [Group(t, tuple(trajectory(t, f"{i}-{t.id}-{k}") for k in range(8))) for i, t in enumerate(drawn)]
    return [groups[start : start + 32] for start in range(0, len(groups), 32)]


def bench_desk() -> None:
    """Solutions of the evaluation tasks through play()."""
    desk = environments.load("desk")
    tasks = desk.tasks("eval", 500)
    actions = sum(len(task.solution) for task in tasks)

    def run() -> None:
        for task in tasks:
            play(desk, task, follow(task.solution), max_turns=len(task.solution))

    report("desk: actions a second, start and evaluation included", [actions / s for s in timed(run, 5)], "/s")


def bench_engine() -> None:
    """128 conversations of 4 turns: a prompt of 40 tokens, then 12 new and 9 sampled tokens a turn."""
    from cojax.learner.step import Learner, adamw
    from cojax.policy.transformer import initialize
    from cojax.rollout.local import LocalEngine

    learner = Learner(config=MODEL, optimizer=adamw(1e-3))
    engine = LocalEngine(MODEL, slots=128, max_length=256)
    engine.load(learner.weights(learner.init(initialize(MODEL, 0)), 0))
    sampling = Sampling(temperature=1.0, max_tokens=9)

    def converse(number: int, wave: int) -> None:
        rng = random.Random(number)
        tokens = [rng.randrange(432) for _ in range(28)]
        for turn in range(4):
            tokens += [rng.randrange(432) for _ in range(12)]
            session = f"{wave}-{number}"
            tokens += engine.generate(tokens, sampling, session=session, seed=(number, turn)).tokens
        engine.release(f"{wave}-{number}")

    wave = iter(range(100))

    def run() -> None:
        number = next(wave)
        threads = [threading.Thread(target=converse, args=(place, number)) for place in range(128)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run()
    seconds = timed(run, 5)
    report("engine: 128 conversations of 4 turns", seconds)
    report("engine: sampled tokens a second", [128 * 4 * 9 / value for value in seconds], "/s")
    engine.close()


def bench_update() -> None:
    """One update on 128 trajectories of 120 tokens, all groups live, and the same with half of them live."""
    from cojax.learner.step import Learner, adamw
    from cojax.policy.transformer import initialize

    learner = Learner(config=MODEL, optimizer=adamw(3e-4), row_length=256)
    rng = random.Random(0)

    def trajectory(task: Task, reward: float) -> Trajectory:
        def tokens(count: int) -> tuple[int, ...]:
            return tuple(rng.randrange(432) for _ in range(count))

        turns = tuple(
            Turn(Action(), prompt_tokens=tokens(21), action_tokens=tokens(9), action_logprobs=(-1.0,) * 9)
            for _ in range(4)
        )
        return Trajectory(task, turns=turns, reward=reward)

    for live in (16, 8):
        tasks = [Task("bench", f"task {number}", {}) for number in range(16)]
        groups = [
            Group(task, tuple(trajectory(task, float(place < live and sample % 2)) for sample in range(8)))
            for place, task in enumerate(tasks)
        ]
        state = learner.init(initialize(MODEL, 0))
        state, _ = learner.update(state, groups)
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            state, _ = learner.update(state, groups)
            seconds.append(time.perf_counter() - began)
        report(f"update: 128 trajectories of 120 tokens, {live} of 16 groups live", seconds)


BENCHMARKS = {"signals": bench_signals, "desk": bench_desk, "engine": bench_engine, "update": bench_update}


def main(argv: Sequence[str]) -> None:
    if unknown := set(_ONLY.value) - set(BENCHMARKS):
        raise app.UsageError(f"no benchmark {', '.join(sorted(unknown))}; available: {', '.join(BENCHMARKS)}")
    for name in _ONLY.value:
        BENCHMARKS[name]()


if __name__ == "__main__":
    app.run(main)

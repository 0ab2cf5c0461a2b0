"""Suites `signals`, `desk` and `engine`: detectors, the embedded environment, the engine with short conversations."""

import itertools
import random
import threading
from collections.abc import Sequence

from benchmarks import machine
from benchmarks.results import Row, time_calls
from benchmarks.shapes import SHAPES
from cojax import worlds
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.policy.parameters import to_hf
from cojax.policy.transformer import initialize
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine
from cojax.signals import SIGNALS, Detector, apply, detect, init
from cojax.types import Action, Call, Group, Observation, Task, Trajectory, Turn


def signals(*, trajectories: Sequence[int] = (10_000, 30_000, 100_000), repeats: int = 3) -> list[Row]:
    """All three detectors over `trajectories`, one number after another, in steps of 32 groups of 8."""
    rows: list[Row] = []
    for trajectory_count in trajectories:
        steps = _make_groups(trajectory_count)

        def run_detectors(steps: Sequence[list[Group]] = steps) -> None:
            detectors: dict[str, Detector] = {kind: detector() for kind, detector in SIGNALS.items()}
            memory = init(detectors)
            for groups in steps:
                changes, _ = detect(detectors, memory, groups)
                apply(memory, changes)

        _, seconds = time_calls(run_detectors, repeats)
        rows.append({"trajectories": trajectory_count, "detection_seconds": seconds})
    return rows


def _make_groups(trajectory_count: int) -> Sequence[list[Group]]:
    """Groups of five-turn trajectories over 1,000 tasks and 26 tools, half of them solved."""
    rng = random.Random(0)
    tools = [f"tool{number}" for number in range(26)]
    tasks = [Task("bench", f"task {number}", {}) for number in range(1000)]

    def make_trajectory(task: Task, episode_id: str) -> Trajectory:
        tool_names = rng.choices(tools, weights=[1 / rank for rank in range(1, 27)], k=5)
        turns = tuple(Turn(Action(calls=(Call(tool_name),)), Observation()) for tool_name in tool_names)
        return Trajectory(task, episode_id, turns=turns, reward=float(rng.random() < 0.5))

    choices = [rng.choice(tasks) for _ in range(trajectory_count // 8)]
    groups = [
        Group(
            task, tuple(make_trajectory(task, f"{group_index}-{task.id}-{sample_index}") for sample_index in range(8))
        )
        for group_index, task in enumerate(choices)
    ]
    return [groups[start : start + 32] for start in range(0, len(groups), 32)]


def desk(*, tasks: int = 500, repeats: int = 5) -> list[Row]:
    """Solutions of evaluation tasks through play(), start and evaluation included."""
    environment = worlds.load("desk")
    eval_tasks = environment.tasks("eval", tasks)
    action_count = sum(len(task.solution) for task in eval_tasks)

    def play_all() -> None:
        for task in eval_tasks:
            play(environment, task, follow(task.solution), max_turns=len(task.solution))

    _, seconds = time_calls(play_all, repeats)
    return [
        {
            "actions": action_count,
            "seconds": seconds,
            "actions_per_second": seconds.map(lambda value: action_count / value),
        }
    ]


def engine(*, batch: int = 128, lanes: int | None = None, repeats: int = 5) -> list[Row]:
    """`batch` conversations with the demo's policy: 28 tokens, then 4 turns of 12 new and 9 sampled ones."""
    config = SHAPES["demo"]
    params = initialize(config, 0)
    local_engine = LocalEngine(config, slots=batch, lanes=machine.choose_lanes(batch, lanes), max_length=256)
    sampling = Sampling(temperature=1.0, max_tokens=9)

    def converse(number: int, round_number: int) -> None:
        rng = random.Random(number)
        tokens = [rng.randrange(config.vocab_size) for _ in range(28)]
        session = f"{round_number}-{number}"
        for turn in range(4):
            tokens += [rng.randrange(config.vocab_size) for _ in range(12)]
            tokens += local_engine.generate(tokens, sampling, session=session, seed=(number, turn)).tokens
        local_engine.release(session)

    round_numbers = itertools.count()

    def play_round() -> None:
        round_number = next(round_numbers)
        threads = [threading.Thread(target=converse, args=(number, round_number)) for number in range(batch)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    try:
        local_engine.load(Weights(0, lambda: to_hf(config, params)))
        _, seconds = time_calls(play_round, repeats)
    finally:
        local_engine.close()
    token_count = batch * 4 * 9
    return [
        {
            "conversations": batch,
            "sampled_tokens": token_count,
            "seconds": seconds,
            "tokens_per_second": seconds.map(lambda value: token_count / value),
        }
    ]

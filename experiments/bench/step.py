"""One step of GRPO end to end, through the real engine and the real learner."""

from __future__ import annotations

import concurrent.futures
import random
import time
from collections.abc import Sequence
from typing import Any

from cojax.learner.step import Learner, TrainState, adamw
from cojax.policy.transformer import initialize
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.local import LocalEngine
from cojax.types import Action, Group, Task, Trajectory, Turn
from experiments.bench import machine
from experiments.bench.arithmetic import parameter_count
from experiments.bench.results import Row, Spread, compile_seconds
from experiments.bench.shapes import model_config

TEMPERATURE = 0.9
KL_COEFFICIENT = 1e-3
_RESERVED = 3  # tokens at the start of the vocabulary that no prompt holds


def step(
    *,
    shape: str = "nano",
    layers: int | None = None,
    override: Sequence[str] = (),
    dtype: str = "float32",
    param_dtype: str = "float32",
    remat: str = "none",
    prompts: int = 8,
    samples: int = 8,
    prompt_length: int = 64,
    completion_length: int = 128,
    row_length: int | None = None,
    micro_rows: int = 8,
    learning_rate: float = 1e-6,
    steps: int = 6,
) -> list[Row]:
    """`prompts` × `samples` conversations a step, the KL to a reference on, AdamW, one update a step.

    There is no stop token: every completion has `completion_length` tokens. A row of `row_length` tokens (None: one
    conversation) is what the learner packs. The first step compiles and is reported apart.
    """
    if steps < 2:
        raise ValueError(f"--steps={steps}: the first step only warms up; give 2 or more")
    if samples < 2:
        raise ValueError(f"--samples={samples}: an advantage relative to a group needs a group of 2 or more")
    length = prompt_length + completion_length
    config = model_config(shape, layers, override, dtype, param_dtype)
    if config.vocab_size <= _RESERVED:
        raise ValueError(f"vocab_size is {config.vocab_size}; give --override=vocab_size=64 or more")
    reference = initialize(config, 0)
    learner = Learner(
        config=config,
        optimizer=adamw(learning_rate),
        loss_settings={"kl_coefficient": KL_COEFFICIENT},
        temperature=TEMPERATURE,
        row_length=row_length or length,
        micro_rows=micro_rows,
        remat=remat,
        reference=reference,
    )
    state = learner.init(reference)
    engine = LocalEngine(
        config,
        slots=prompts * samples,
        max_length=length,
        prefill_rows=prompts * samples,
        prefill_chunks=(prompt_length,),
    )
    try:
        engine.load(learner.weights(state, 0))
        records = _train(engine, learner, state, [prompts, samples, prompt_length, completion_length], steps)
    finally:
        engine.close()
    return [
        {
            "shape": shape,
            "dtype": dtype,
            "parameters": parameter_count(config),
            **_summary(records),
            **machine.memory(),
            "row_length": learner.row_length,
            "micro_rows": micro_rows,
            "remat": remat,
        }
    ]


def _train(
    engine: LocalEngine, learner: Learner, state: TrainState, job: Sequence[int], steps: int
) -> list[dict[str, Any]]:
    """What each step took, in seconds, and counted."""
    prompts, samples, prompt_length, completion_length = job
    rng = random.Random(0)
    records = []
    with concurrent.futures.ThreadPoolExecutor(prompts * samples) as pool:
        for number in range(steps):
            questions = [
                tuple(rng.randrange(_RESERVED, learner.config.vocab_size) for _ in range(prompt_length))
                for _ in range(prompts)
            ]
            began = time.perf_counter()
            groups = _generate(engine, pool, number, questions, samples, completion_length)
            generated = time.perf_counter()
            state, metrics = learner.update(state, groups)
            updated = time.perf_counter()
            engine.load(learner.weights(state, number + 1))
            synced = time.perf_counter()
            turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
            records.append(
                {
                    "step_seconds": synced - began,
                    "generation_seconds": generated - began,
                    "update_seconds": updated - generated,
                    "sync_seconds": synced - updated,
                    "prompt_tokens": sum(len(turn.prompt_tokens) for turn in turns),
                    "completion_tokens": sum(len(turn.action_tokens) for turn in turns),
                    "updates": int(metrics["updates"]),
                    "tokens_trained": int(metrics["tokens_trained"]),
                    "kl": metrics["kl"],
                    "logprob_mismatch": metrics["logprob_mismatch"],
                }
            )
    return records


def _generate(
    engine: LocalEngine,
    pool: concurrent.futures.Executor,
    number: int,
    questions: Sequence[tuple[int, ...]],
    samples: int,
    completion_length: int,
) -> list[Group]:
    """A group of sampled and rewarded conversations for each question."""
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=completion_length)

    def complete(place: int) -> Completion:
        session = f"{number}-{place}"
        completion = engine.generate(questions[place // samples], sampling, session=session, seed=(number, place))
        engine.release(session)
        return completion

    completions = list(pool.map(complete, range(len(questions) * samples)))
    groups = []
    for place, question in enumerate(questions):
        task = Task("bench", f"question {number}-{place}", {})
        own = completions[place * samples : (place + 1) * samples]
        groups.append(Group(task, tuple(_trajectory(task, question, completion) for completion in own)))
    return groups


def _trajectory(task: Task, question: tuple[int, ...], completion: Completion) -> Trajectory:
    """Rewarded by (number of different tokens mod 7) / 6, which varies within a group."""
    turn = Turn(Action(), prompt_tokens=question, action_tokens=completion.tokens, action_logprobs=completion.logprobs)
    return Trajectory(task, turns=(turn,), reward=len(set(completion.tokens)) % 7 / 6)


def _summary(records: Sequence[dict[str, Any]]) -> Row:
    """Spreads over the warm steps; tokens of one step, updates of all, figures of the last.

    Raises RuntimeError where a step counted other tokens than the first one did.
    """
    first, *warm = records
    for name in ("prompt_tokens", "completion_tokens"):
        if len(counts := {record[name] for record in records}) > 1:
            raise RuntimeError(f"steps differ in {name}: {sorted(counts)}; expected the same job in every step")
    seconds = {name: Spread(tuple(record[name] for record in warm)) for name in first if name.endswith("_seconds")}
    return {
        **seconds,
        "compile_seconds": compile_seconds(first["step_seconds"], seconds["step_seconds"]),
        "first_step_seconds": first["step_seconds"],
        "steps": len(records),
        "updates": sum(record["updates"] for record in records),
        **{name: warm[-1][name] for name in first if not name.endswith("_seconds") and name != "updates"},
    }

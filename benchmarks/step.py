"""One step of GRPO end to end, through the real engine and the real learner."""

import concurrent.futures
import dataclasses
import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from benchmarks.results import Row, Spread, compute_compile_s
from benchmarks.shapes import model_config
from cojax.compile.programs import forward_flops, parameter_count
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import AUTO, fastest_that_fits
from cojax.learner.update import Metrics, TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import initialize
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.local import LocalEngine
from cojax.types import Action, Group, Task, Trajectory, Turn

TEMPERATURE = 0.9
KL_COEFFICIENT = 1e-3
_RESERVED = 3  # tokens at the start of the vocabulary that no prompt holds


@dataclasses.dataclass(frozen=True)
class Workload:
    """The conversations of a step: `samples` of each of `prompts` prompts; lengths are in tokens."""

    prompts: int
    samples: int
    prompt_length: int
    completion_length: int

    @property
    def conversations(self) -> int:
        return self.prompts * self.samples

    @property
    def length(self) -> int:
        """Tokens of a conversation."""
        return self.prompt_length + self.completion_length

    def questions(self, rng: random.Random, vocabulary: int) -> list[tuple[int, ...]]:
        """Random prompts."""
        return [
            tuple(rng.randrange(_RESERVED, vocabulary) for _ in range(self.prompt_length)) for _ in range(self.prompts)
        ]


def step(
    *,
    shape: str = "nano",
    layers: int | None = None,
    override: Sequence[str] = (),
    dtype: str = "float32",
    param_dtype: str = "float32",
    moments_dtype: str = "",
    remat: str = "dots",
    prompts: int = 8,
    samples: int = 8,
    prompt_length: int = 64,
    completion_length: int = 128,
    row_length: int | None = None,
    micro_rows: int = 8,
    lanes: int | None = None,
    learning_rate: float = 1e-6,
    steps: int = 6,
) -> list[Row]:
    """`prompts` × `samples` conversations a step, the KL to a reference on, AdamW, one update a step.

    There is no stop token: every completion has `completion_length` tokens. The learner packs rows of `row_length`
    tokens (None: one conversation). The first step compiles and is reported separately. `…_mfu` is the share of the
    rate of a large matrix product in `dtype` on this machine that generation and update reach.
    """
    if steps < 2:
        raise ValueError(f"--steps={steps}: the first step only warms up; give 2 or more")
    if samples < 2:
        raise ValueError(f"--samples={samples}: an advantage relative to a group needs a group of 2 or more")
    config = model_config(shape, layers, override, dtype, param_dtype)
    if config.vocab_size <= _RESERVED:
        raise ValueError(f"vocab_size is {config.vocab_size}; give --override=vocab_size=64 or more")
    workload = Workload(prompts, samples, prompt_length, completion_length)
    lanes = machine.choose_lanes(workload.conversations, lanes)
    learner, state = _learner(
        config, workload, learning_rate, moments_dtype, remat, row_length or workload.length, micro_rows
    )
    records = _train(learner, state, workload, lanes, steps)
    return [
        {
            "shape": shape,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "moments_dtype": moments_dtype or param_dtype,
            "parameters": parameter_count(config),
            **(figures := _summary(records)),
            **machine.read_peak_memory(),
            **_shares(config, workload, figures, machine.measure_matmul_rate(dtype)),
            "row_length": learner.row_length,
            "micro_rows": micro_rows,
            "lanes": lanes,
            "remat": learner.remat,
        }
    ]


def _learner(
    config: ModelConfig,
    workload: Workload,
    learning_rate: float,
    moments_dtype: str,
    remat: str,
    row_length: int,
    micro_rows: int,
) -> tuple[Learner, TrainState]:
    """The learner and its first state; only the learner holds the reference, in the dtype it is computed in."""
    params = initialize(config, 0)
    learner = Learner(
        config=config,
        optimizer=adamw(learning_rate, moments_dtype=moments_dtype),
        loss_settings={"kl_coefficient": KL_COEFFICIENT},
        temperature=TEMPERATURE,
        row_length=row_length,
        micro_rows=micro_rows,
        remat="layers" if remat == AUTO else remat,
        reference=params,
    )
    state = learner.init(params)
    if remat == AUTO:
        learner = fastest_that_fits(learner, state, [workload.samples] * workload.prompts)
    return learner, state


def _shares(config: ModelConfig, workload: Workload, figures: Row, rate: float) -> Row:
    """Model FLOPs utilisation of generation and update: the operations that every program needs (`arithmetic`) a second
    over `rate`, that of a large matrix product."""
    tokens = workload.conversations * workload.completion_length
    # No forward pass is fed the last sampled token.
    generation = forward_flops(config, [workload.length - 1] * workload.conversations, tokens)
    update = 4 * forward_flops(
        config, [workload.length] * workload.conversations, tokens
    )  # one of them the reference's
    return {
        "generation_tflop": generation / 1e12,
        "update_tflop": update / 1e12,
        "matmul_tflops_per_second": rate / 1e12,
        "generation_mfu": figures["generation_seconds"].map(lambda seconds: generation / seconds / rate),
        "update_mfu": figures["update_seconds"].map(lambda seconds: update / seconds / rate),
    }


def _train(learner: Learner, state: TrainState, workload: Workload, lanes: int, steps: int) -> list[dict[str, Any]]:
    """The seconds and the counts of each step."""
    rng = random.Random(0)
    records = []
    engine = LocalEngine(
        learner.config,
        slots=workload.conversations,
        lanes=lanes,
        max_length=workload.length,
        prefill_rows=workload.conversations // lanes,
    )
    try:
        engine.load(learner.weights(state, 0))
        with concurrent.futures.ThreadPoolExecutor(workload.conversations) as pool:
            for number in range(steps):
                questions = workload.questions(rng, learner.config.vocab_size)
                began = time.perf_counter()
                groups = _generate(engine, pool, number, questions, workload)
                generation_end = time.perf_counter()
                state, metrics = learner.update(state, groups)
                update_end = time.perf_counter()
                engine.load(learner.weights(state, number + 1))
                sync_end = time.perf_counter()
                records.append(_record(groups, metrics, (began, generation_end, update_end, sync_end)))
    finally:
        engine.close()
    return records


def _record(groups: Sequence[Group], metrics: Metrics, moments: tuple[float, float, float, float]) -> dict[str, Any]:
    """A step's seconds between its moments, the tokens of its groups, and metrics of its update."""
    began, generation_end, update_end, sync_end = moments
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    return {
        "step_seconds": sync_end - began,
        "generation_seconds": generation_end - began,
        "update_seconds": update_end - generation_end,
        "sync_seconds": sync_end - update_end,
        "prompt_tokens": sum(len(turn.prompt_tokens) for turn in turns),
        "completion_tokens": sum(len(turn.action_tokens) for turn in turns),
        "updates": int(metrics["updates"]),
        "tokens_trained": int(metrics["tokens_trained"]),
        "kl": metrics["kl"],
        "logprob_mismatch": metrics["logprob_mismatch"],
    }


def _generate(
    engine: LocalEngine,
    pool: concurrent.futures.Executor,
    number: int,
    questions: Sequence[tuple[int, ...]],
    workload: Workload,
) -> list[Group]:
    """A group of sampled and rewarded conversations for each question."""
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=workload.completion_length)

    def complete(index: int) -> Completion:
        session = f"{number}-{index}"
        completion = engine.generate(
            questions[index // workload.samples], sampling, session=session, seed=(number, index)
        )
        engine.release(session)
        return completion

    completions = list(pool.map(complete, range(workload.conversations)))
    groups = []
    for index, question in enumerate(questions):
        task = Task("bench", f"question {number}-{index}", {})
        own = completions[index * workload.samples : (index + 1) * workload.samples]
        groups.append(Group(task, tuple(_trajectory(task, question, completion) for completion in own)))
    return groups


def _trajectory(task: Task, question: tuple[int, ...], completion: Completion) -> Trajectory:
    """Rewarded by (number of different tokens mod 7) / 6, which varies within a group."""
    turn = Turn(
        Action(),
        prompt_tokens=question,
        action_tokens=completion.tokens,
        action_logprobs=completion.logprobs,
        weights_version=completion.weights_version,
    )
    return Trajectory(task, turns=(turn,), reward=len(set(completion.tokens)) % 7 / 6)


def _summary(records: Sequence[dict[str, Any]]) -> Row:
    """Spreads over the warm steps; tokens of one step, updates of all, figures of the last.

    Raises RuntimeError if the number of tokens differs between steps.
    """
    first, *warm = records
    for name in ("prompt_tokens", "completion_tokens"):
        if len(counts := {record[name] for record in records}) > 1:
            raise RuntimeError(f"steps differ in {name}: {sorted(counts)}; expected the same workload in every step")
    seconds = {name: Spread(tuple(record[name] for record in warm)) for name in first if name.endswith("_seconds")}
    return {
        **seconds,
        "compile_seconds": compute_compile_s(first["step_seconds"], seconds["step_seconds"]),
        "first_step_seconds": first["step_seconds"],
        "steps": len(records),
        "updates": sum(record["updates"] for record in records),
        **{name: warm[-1][name] for name in first if not name.endswith("_seconds") and name != "updates"},
    }

"""One step of GRPO end to end, through the real engine and the real learner."""

import concurrent.futures
import dataclasses
import functools
import random
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import machine
from benchmarks.results import Row, Spread, compute_compile_s
from benchmarks.shapes import model_config, update_flops
from benchmarks.update import count_row_tokens, refuse_beyond_memory, refuse_float16, refuse_row_length
from cojax.compile.programs import count_forward_flops, count_parameters
from cojax.learner.learner import Learner
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import AUTO_REMAT, choose_fastest
from cojax.learner.update import Metrics, TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.transformer import initialize
from cojax.rollout.engine import Completion, Sampling
from cojax.rollout.local import LocalEngine
from cojax.types import Action, Group, Task, Trajectory, Turn

TEMPERATURE = 0.9
KL_COEFFICIENT = 1e-3
_RESERVED_TOKENS = 3  # tokens at the start of the vocabulary that no prompt holds


@dataclasses.dataclass(frozen=True)
class Workload:
    """The conversations of a step: `sample_count` of each of `prompt_count` prompts; lengths are in tokens.

    The learner packs `segments` conversations of one prompt into a row.
    """

    prompt_count: int
    sample_count: int
    prompt_length: int
    completion_length: int
    segments: int = 1

    @property
    def conversation_count(self) -> int:
        return self.prompt_count * self.sample_count

    @property
    def length(self) -> int:
        """Tokens of a conversation."""
        return self.prompt_length + self.completion_length

    def draw_prompts(self, rng: random.Random, vocabulary: int) -> list[tuple[int, ...]]:
        """Random prompts."""
        return [
            tuple(rng.randrange(_RESERVED_TOKENS, vocabulary) for _ in range(self.prompt_length))
            for _ in range(self.prompt_count)
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
    segments: int | None = None,
    micro_rows: int = 2,
    lanes: int | None = None,
    learning_rate: float = 1e-6,
    steps: int = 6,
) -> list[Row]:
    """`prompts` × `samples` conversations a step, the KL to a reference on, AdamW, one update a step.

    There is no stop token: every completion has `completion_length` tokens. The learner packs rows of `row_length`
    tokens, or of `segments` conversations of one prompt (None: two if `samples` is even, otherwise one). The first step
    compiles and is reported separately. `…_mfu` is the share of the rate of a large matrix product in `dtype` on this
    machine that generation and update reach.
    """
    if steps < 2:
        raise ValueError(f"--steps={steps}: the first step only warms up; give 2 or more")
    if samples < 2:
        raise ValueError(f"--samples={samples}: an advantage relative to a group needs a group of 2 or more")
    config = model_config(shape, layers, override, dtype, param_dtype)
    if config.vocab_size <= _RESERVED_TOKENS:
        raise ValueError(f"vocab_size is {config.vocab_size}; give --override=vocab_size=64 or more")
    workload = Workload(prompts, samples, prompt_length, completion_length)
    workload, row_length = _lay_out(config, workload, row_length, segments)
    lanes = machine.choose_lanes(workload.conversation_count, lanes)
    learner, state = _make_learner(config, workload, learning_rate, moments_dtype, remat, row_length, micro_rows)
    records = _train_steps(learner, state, workload, lanes, steps)
    return [
        {
            "shape": shape,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "moments_dtype": moments_dtype or param_dtype,
            "parameters": count_parameters(config),
            **(figures := _summarise(records)),
            **machine.read_peak_memory(),
            **_compute_mfu(config, workload, figures, machine.measure_matmul_rate(dtype)),
            "prompt_length": prompt_length,
            "completion_length": completion_length,
            "segments": workload.segments,
            "row_length": learner.row_length,
            "micro_rows": learner.micro_rows,
            "lanes": lanes,
            "remat": learner.remat,
        }
    ]


def _lay_out(
    config: ModelConfig, workload: Workload, row_length: int | None, segments: int | None
) -> tuple[Workload, int]:
    """The workload with its segments, and the tokens of a row.

    Raises ValueError for flags that do not fit together, DeviceMemoryError for more than this machine can hold.
    """
    if workload.length > (max_positions := config.max_position_embeddings):
        raise ValueError(
            f"--prompt={workload.prompt_length} and --answer={workload.completion_length} exceed the model's "
            f"{max_positions} positions; shorten them, or give --override=max_position_embeddings={workload.length}"
        )
    refuse_float16(config)
    refuse_beyond_memory(workload.conversation_count * workload.length)
    count_tokens = functools.partial(count_row_tokens, config, workload.prompt_length, workload.completion_length)
    if segments is None and row_length is not None:
        if row_length < workload.length:
            raise ValueError(
                f"--row-length={row_length} is less than a conversation's {workload.length} tokens; make it "
                f"{workload.length} or more"
            )
        further_count = (row_length - workload.length) // (count_tokens(2) - workload.length)
        return dataclasses.replace(workload, segments=min(workload.sample_count, 1 + further_count)), row_length
    segments = segments or 2 - workload.sample_count % 2
    refuse_row_length(row_length, "--segments")
    if workload.sample_count % segments:
        raise ValueError(
            f"--samples={workload.sample_count} is no multiple of --segments={segments} a row; make it one"
        )
    return dataclasses.replace(workload, segments=segments), count_tokens(segments)


def _make_learner(
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
        remat="layers" if remat == AUTO_REMAT else remat,
        reference=params,
    )
    state = learner.init(params)
    if remat == AUTO_REMAT:
        learner = choose_fastest(learner, state, [workload.sample_count] * workload.prompt_count)
    return learner, state


def _compute_mfu(config: ModelConfig, workload: Workload, figures: Row, rate: float) -> Row:
    """Model FLOPs utilisation of generation and update: the operations that every program needs (`arithmetic`) a second
    over `rate`, that of a large matrix product."""
    tokens = workload.conversation_count * workload.completion_length
    # No forward pass is fed the last sampled token.
    generation_flops = count_forward_flops(config, [workload.length - 1] * workload.conversation_count, tokens)
    count_flops = functools.partial(update_flops, config, reference=True, prompt_length=workload.prompt_length)
    full_rows, samples_left = divmod(workload.sample_count, workload.segments)
    learning_flops = workload.prompt_count * full_rows * count_flops([workload.length] * workload.segments)
    if samples_left:  # of each prompt, in a row of their own or beside another prompt's
        learning_flops += workload.prompt_count * count_flops([workload.length] * samples_left)
    return {
        "generation_tflop": generation_flops / 1e12,
        "update_tflop": learning_flops / 1e12,
        "matmul_tflops_per_second": rate / 1e12,
        "generation_mfu": figures["generation_seconds"].map(lambda seconds: generation_flops / seconds / rate),
        "update_mfu": figures["update_seconds"].map(lambda seconds: learning_flops / seconds / rate),
    }


def _train_steps(
    learner: Learner, state: TrainState, workload: Workload, lanes: int, steps: int
) -> list[dict[str, Any]]:
    """The seconds and the counts of each step."""
    rng = random.Random(0)
    records = []
    engine = LocalEngine(
        learner.config,
        slots=workload.conversation_count,
        lanes=lanes,
        max_length=workload.length,
        prefill_rows=workload.conversation_count // lanes,
    )
    try:
        engine.load(learner.weights(state, 0))
        with concurrent.futures.ThreadPoolExecutor(workload.conversation_count) as pool:
            for step_index in range(steps):
                questions = workload.draw_prompts(rng, learner.config.vocab_size)
                started_at = time.perf_counter()
                groups = _generate_groups(engine, pool, step_index, questions, workload)
                generation_end = time.perf_counter()
                state, metrics = learner.update(state, groups)
                update_end = time.perf_counter()
                engine.load(learner.weights(state, step_index + 1))
                sync_end = time.perf_counter()
                records.append(_make_record(groups, metrics, (started_at, generation_end, update_end, sync_end)))
    finally:
        engine.close()
    return records


def _make_record(
    groups: Sequence[Group], metrics: Metrics, moments: tuple[float, float, float, float]
) -> dict[str, Any]:
    """A step's seconds between its moments, the tokens of its groups, and metrics of its update."""
    started_at, generation_end, update_end, sync_end = moments
    turns = [turn for group in groups for trajectory in group.trajectories for turn in trajectory.turns]
    return {
        "step_seconds": sync_end - started_at,
        "generation_seconds": generation_end - started_at,
        "update_seconds": update_end - generation_end,
        "sync_seconds": sync_end - update_end,
        "prompt_tokens": sum(len(turn.prompt_tokens) for turn in turns),
        "completion_tokens": sum(len(turn.action_tokens) for turn in turns),
        "updates": int(metrics["updates"]),
        "tokens_trained": int(metrics["tokens_trained"]),
        "kl": metrics["kl"],
        "logprob_mismatch": metrics["logprob_mismatch"],
    }


def _generate_groups(
    engine: LocalEngine,
    pool: concurrent.futures.Executor,
    step_index: int,
    questions: Sequence[tuple[int, ...]],
    workload: Workload,
) -> list[Group]:
    """A group of sampled and rewarded conversations for each question."""
    sampling = Sampling(temperature=TEMPERATURE, max_tokens=workload.completion_length)

    def complete(index: int) -> Completion:
        session = f"{step_index}-{index}"
        completion = engine.generate(
            questions[index // workload.sample_count], sampling, session=session, seed=(step_index, index)
        )
        engine.release(session)
        return completion

    completions = list(pool.map(complete, range(workload.conversation_count)))
    groups = []
    for question_index, question in enumerate(questions):
        task = Task("bench", f"question {step_index}-{question_index}", {})
        group_completions = completions[
            question_index * workload.sample_count : (question_index + 1) * workload.sample_count
        ]
        groups.append(
            Group(task, tuple(_make_trajectory(task, question, completion) for completion in group_completions))
        )
    return groups


def _make_trajectory(task: Task, question: tuple[int, ...], completion: Completion) -> Trajectory:
    """Rewarded by (number of different tokens mod 7) / 6, which varies within a group."""
    turn = Turn(
        Action(),
        prompt_tokens=question,
        action_tokens=completion.tokens,
        action_logprobs=completion.logprobs,
        weights_version=completion.weights_version,
    )
    return Trajectory(task, turns=(turn,), reward=len(set(completion.tokens)) % 7 / 6)


def _summarise(records: Sequence[dict[str, Any]]) -> Row:
    """Spreads over the warm steps; tokens of one step, updates of all, figures of the last.

    Raises RuntimeError if the number of tokens differs between steps.
    """
    first_record, *warm_records = records
    for figure_name in ("prompt_tokens", "completion_tokens"):
        if len(token_counts := {record[figure_name] for record in records}) > 1:
            raise RuntimeError(
                f"steps differ in {figure_name}: {sorted(token_counts)}; expected the same workload in every step"
            )
    seconds = {
        name: Spread(tuple(record[name] for record in warm_records))
        for name in first_record
        if name.endswith("_seconds")
    }
    return {
        **seconds,
        "compile_seconds": compute_compile_s(first_record["step_seconds"], seconds["step_seconds"]),
        "first_step_seconds": first_record["step_seconds"],
        "steps": len(records),
        "updates": sum(record["updates"] for record in records),
        **{
            name: warm_records[-1][name] for name in first_record if not name.endswith("_seconds") and name != "updates"
        },
    }

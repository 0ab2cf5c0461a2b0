"""Suites `decode` and `prefill`: the local engine against this machine's memory bandwidth and matrix products.

Both use the engine's public calls. A conversation's first call, for one token, is nearly all prefill. In its second
call everything but the last token is cached, so that it is all decode.
"""

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks import machine
from benchmarks.models import Model, choose_model
from benchmarks.results import Row, Spread, compute_compile_s
from benchmarks.shapes import decode_bytes, decode_flops, parameter_bytes
from cojax.compile.programs import count_forward_flops, count_parameters
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine


def decode(
    *,
    shape: str | None = None,
    folder: str | None = None,
    layers: int | None = None,
    override: Sequence[str] = (),
    dtype: str | None = None,
    batch: int = 64,
    lanes: int | None = None,
    prompt_length: int = 128,
    completion_length: int = 128,
    max_length: int = 0,
    prefill_rows: int = 16,
    prefill_chunk: int = 64,
    repeats: int = 3,
) -> list[Row]:
    """`batch` conversations sample `completion_length` tokens each after a prompt that is already cached.

    A `max_length` above 512 cuts the cache into pages, and `milliseconds_per_step` says what a token of all
    conversations costs with them and without.
    `bandwidth_share` is the time that reading `decode_bytes` takes at the machine's bandwidth over the time that decode
    took. It is meaningful only for a model far larger than the processor's caches. `share_of_bound` is the same for the
    longer of reading and computing, and `share_of_nominal` that at the vendor's rates (`machine.compute_shares`).
    """
    model, lanes = choose_model(shape, folder, layers, override, dtype), machine.choose_lanes(batch, lanes)
    job = _Job(model, batch, lanes, prompt_length, completion_length, prefill_rows, prefill_chunk, max_length)
    return [_make_decode_row(job, _play_job(job, repeats))]


def prefill(
    *,
    shape: str | None = None,
    folder: str | None = None,
    layers: int | None = None,
    override: Sequence[str] = (),
    dtype: str | None = None,
    batch: int = 64,
    lanes: int | None = None,
    prompt_length: int = 512,
    prefill_rows: int = 16,
    prefill_chunk: int = 128,
    repeats: int = 3,
) -> list[Row]:
    """`batch` new conversations of `prompt_length` tokens, up to their first sampled token.

    MFU is `count_forward_flops` a second, with logits for the last token alone, over the rate of a large matrix
    product. `share_of_bound` also counts the time that reading all parameters once takes (`machine.compute_shares`).
    """
    model, lanes = choose_model(shape, folder, layers, override, dtype), machine.choose_lanes(batch, lanes)
    job = _Job(model, batch, lanes, prompt_length, 0, prefill_rows, prefill_chunk)
    return [_make_prefill_row(job, _play_job(job, repeats))]


def measure_conversations(
    shape: str,
    layers: int | None,
    batch: int,
    prompt_length: int,
    completion_length: int,
    repeats: int,
    reserved: int = 0,
) -> list[Row]:
    """The rows of `prefill` and of `decode`, of the same conversations in bfloat16; `reserved` is that of `_Job`."""
    model, lanes = choose_model(shape, None, layers, (), "bfloat16"), machine.choose_lanes(batch, None)
    job = _Job(model, batch, lanes, prompt_length, completion_length, 16, min(128, prompt_length), reserved)
    timings = _play_job(job, repeats)
    return [_make_prefill_row(job, timings), _make_decode_row(job, timings)]


@dataclasses.dataclass(frozen=True)
class _Job:
    """`batch` conversations with an engine of these settings; with a `completion_length` of 0 only prefill is timed.

    The engine's cache has `reserved` positions a conversation, or as many as its tokens take if these are more.
    """

    model: Model
    batch: int
    lanes: int
    prompt_length: int
    completion_length: int
    prefill_rows: int
    prefill_chunk: int
    reserved: int = 0

    @property
    def max_length(self) -> int:
        return max(self.reserved, self.prompt_length + 1 + self.completion_length)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def facts(self) -> Row:
        return {
            "shape": self.model.name,
            "layers": self.config.num_hidden_layers,
            "parameters": count_parameters(self.config),
            "dtype": self.config.dtype,
            "batch": self.batch,
            "prompt_length": self.prompt_length,
            "lanes": self.lanes,
            "prefill_rows": self.prefill_rows,
            "prefill_chunk": self.prefill_chunk,
            "max_length": self.max_length,
        }


@dataclasses.dataclass
class _Timings:
    """Seconds of each repetition, the first of which warms up: `opening_seconds` up to the first sampled token,
    `decoding_seconds` the others; `busy_shares` of decoding in which the engine computed. `memory` are the peaks at
    the end."""

    opening_seconds: list[float] = dataclasses.field(default_factory=list)
    decoding_seconds: list[float] = dataclasses.field(default_factory=list)
    busy_shares: list[float] = dataclasses.field(default_factory=list)
    memory: Row = dataclasses.field(default_factory=dict)


def _play_job(job: _Job, repeats: int) -> _Timings:
    timings = _Timings()
    with _open_conversations(job) as conversations:
        for repetition in range(repeats + 1):
            started_at = time.perf_counter()
            texts = conversations.generate(repetition, conversations.draw_prompts(job.prompt_length, repetition), 1)
            opening_end, busy_before = time.perf_counter(), conversations.engine.busy_seconds
            timings.opening_seconds.append(opening_end - started_at)
            if job.completion_length:
                conversations.generate(repetition, texts, job.completion_length)
                timings.decoding_seconds.append(time.perf_counter() - opening_end)
                timings.busy_shares.append(
                    (conversations.engine.busy_seconds - busy_before) / timings.decoding_seconds[-1]
                )
            conversations.release(repetition)
        timings.memory = machine.read_peak_memory()
    return timings


def _make_decode_row(job: _Job, timings: _Timings) -> Row:
    bandwidth, rate = machine.measure_memory_bandwidth(), machine.measure_matmul_rate(job.config.dtype)
    # The mean context: while sampling, a conversation grows from prompt and one token to all tokens but the last.
    context, completion_length = job.prompt_length + (1 + job.completion_length) / 2, job.completion_length
    read_bytes = decode_bytes(job.config, job.batch, context) * completion_length
    operations = decode_flops(job.config, job.batch, context) * completion_length
    seconds = Spread(tuple(timings.decoding_seconds[1:]))
    return {
        **job.facts,
        "completion_tokens": job.batch * completion_length,
        "decode_seconds": seconds,
        "tokens_per_second": seconds.map(lambda value: job.batch * completion_length / value),
        "milliseconds_per_step": seconds.map(lambda value: 1e3 * value / completion_length),
        "engine_busy_share": Spread(tuple(timings.busy_shares[1:])),
        "read_gb_per_token": read_bytes / completion_length / job.batch / 1e9,
        "bandwidth_gb_per_second": bandwidth / 1e9,
        "bandwidth_share": seconds.map(lambda value: read_bytes / bandwidth / value),
        "matmul_tflops_per_second": rate / 1e12,
        **machine.compute_shares(seconds, operations, read_bytes, job.config.dtype),
        "compile_seconds": compute_compile_s(timings.opening_seconds[0], Spread(tuple(timings.opening_seconds[1:]))),
        **timings.memory,
    }


def _make_prefill_row(job: _Job, timings: _Timings) -> Row:
    rate = machine.measure_matmul_rate(job.config.dtype)
    flops = count_forward_flops(job.config, [job.prompt_length] * job.batch, scored_tokens=job.batch)
    seconds = Spread(tuple(timings.opening_seconds[1:]))
    return {
        **job.facts,
        "prefill_seconds": seconds,
        "tokens_per_second": seconds.map(lambda value: job.batch * job.prompt_length / value),
        "tflops_per_second": seconds.map(lambda value: flops / value / 1e12),
        "matmul_tflops_per_second": rate / 1e12,
        "mfu": seconds.map(lambda value: flops / value / rate),
        **machine.compute_shares(seconds, flops, parameter_bytes(job.config), job.config.dtype),
        "compile_seconds": compute_compile_s(timings.opening_seconds[0], seconds),
        **timings.memory,
    }


@dataclasses.dataclass
class _Conversations:
    """Conversations with one engine at once, one thread each."""

    engine: LocalEngine
    pool: concurrent.futures.Executor
    vocabulary: int
    batch: int

    def draw_prompts(self, length: int, seed: int) -> list[list[int]]:
        """A random prompt for each."""
        return np.random.default_rng(seed).integers(0, self.vocabulary, (self.batch, length)).tolist()

    def generate(self, repetition: int, texts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        """Continues each text by exactly `max_tokens` tokens; returns the texts so far."""
        sampling = Sampling(max_tokens=max_tokens)

        def continue_one(index: int) -> list[int]:
            seed = (repetition, index, len(texts[index]))
            completion = self.engine.generate(texts[index], sampling, session=f"{repetition}-{index}", seed=seed)
            return [*texts[index], *completion.tokens]

        return list(self.pool.map(continue_one, range(self.batch)))

    def release(self, repetition: int) -> None:
        for index in range(self.batch):
            self.engine.release(f"{repetition}-{index}")


@contextlib.contextmanager
def _open_conversations(job: _Job) -> Iterator[_Conversations]:
    """An engine that holds the job's conversations, until the block ends."""
    engine = LocalEngine(
        job.config,
        slots=job.batch,
        lanes=job.lanes,
        max_length=job.max_length,
        # A lane never prefills more conversations than it holds.
        prefill_rows=min(job.prefill_rows, job.batch // job.lanes),
        prefill_chunks=(job.prefill_chunk,),
    )
    try:
        _load_weights(engine, job.model)
        with concurrent.futures.ThreadPoolExecutor(job.batch) as pool:
            yield _Conversations(engine, pool, job.config.vocab_size, job.batch)
    finally:
        engine.close()


def _load_weights(engine: LocalEngine, model: Model) -> None:
    """Loads the weights; in a function of its own, so that only the engine holds them afterwards."""
    params = model.make_params()
    engine.load(Weights(0, lambda: to_hf(model.config, params)))

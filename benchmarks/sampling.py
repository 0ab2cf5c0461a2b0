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
from cojax.compile.programs import forward_flops, parameter_count
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
    prefill_rows: int = 16,
    prefill_chunk: int = 64,
    repeats: int = 3,
) -> list[Row]:
    """`batch` conversations sample `completion_length` tokens each after a prompt that is already cached.

    `bandwidth_share` is the time that reading `decode_bytes` takes at the machine's bandwidth over the time that decode
    took. It is meaningful only for a model far larger than the processor's caches. `share_of_bound` is the same for the
    longer of reading and computing (`machine.bound_seconds`).
    """
    model, lanes = choose_model(shape, folder, layers, override, dtype), machine.choose_lanes(batch, lanes)
    job = _Job(model, batch, lanes, prompt_length, completion_length, prefill_rows, prefill_chunk)
    return [_decode_row(job, _play(job, repeats))]


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

    MFU is `forward_flops` a second, with logits for the last token alone, over the rate of a large matrix product.
    `share_of_bound` also counts the time that reading all parameters once takes (`machine.bound_seconds`).
    """
    model, lanes = choose_model(shape, folder, layers, override, dtype), machine.choose_lanes(batch, lanes)
    job = _Job(model, batch, lanes, prompt_length, 0, prefill_rows, prefill_chunk)
    return [_prefill_row(job, _play(job, repeats))]


def conversations_of(
    shape: str, layers: int | None, dtype: str, batch: int, prompt_length: int, completion_length: int, repeats: int
) -> list[Row]:
    """The rows of `prefill` and of `decode`, of the same conversations."""
    model = choose_model(shape, None, layers, (), dtype)
    job = _Job(
        model, batch, machine.choose_lanes(batch, None), prompt_length, completion_length, 16, min(128, prompt_length)
    )
    times = _play(job, repeats)
    return [_prefill_row(job, times), _decode_row(job, times)]


@dataclasses.dataclass(frozen=True)
class _Job:
    """`batch` conversations with an engine of these settings; with a `completion_length` of 0 only prefill is timed."""

    model: Model
    batch: int
    lanes: int
    prompt_length: int
    completion_length: int
    prefill_rows: int
    prefill_chunk: int

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def about(self) -> Row:
        return {
            "shape": self.model.name,
            "layers": self.config.num_hidden_layers,
            "parameters": parameter_count(self.config),
            "dtype": self.config.dtype,
            "batch": self.batch,
            "prompt_length": self.prompt_length,
            "lanes": self.lanes,
            "prefill_rows": self.prefill_rows,
            "prefill_chunk": self.prefill_chunk,
        }


@dataclasses.dataclass
class _Played:
    """Seconds of each repetition, the first of which warms up: `opening` up to the first sampled token, `decoding` the
    others; `busy` is the share of decoding in which the engine computed. `memory` are the peaks at the end."""

    opening: list[float] = dataclasses.field(default_factory=list)
    decoding: list[float] = dataclasses.field(default_factory=list)
    busy: list[float] = dataclasses.field(default_factory=list)
    memory: Row = dataclasses.field(default_factory=dict)


def _play(job: _Job, repeats: int) -> _Played:
    times = _Played()
    with _conversations(job) as conversations:
        for number in range(repeats + 1):
            began = time.perf_counter()
            texts = conversations.generate(number, conversations.prompts(job.prompt_length, number), 1)
            opening_end, at_work = time.perf_counter(), conversations.engine.busy_seconds
            times.opening.append(opening_end - began)
            if job.completion_length:
                conversations.generate(number, texts, job.completion_length)
                times.decoding.append(time.perf_counter() - opening_end)
                times.busy.append((conversations.engine.busy_seconds - at_work) / times.decoding[-1])
            conversations.release(number)
        times.memory = machine.read_peak_memory()
    return times


def _decode_row(job: _Job, played: _Played) -> Row:
    bandwidth, rate = machine.measure_memory_bandwidth(), machine.measure_matmul_rate(job.config.dtype)
    # The mean context: while sampling, a conversation grows from prompt and one token to all tokens but the last.
    context, count = job.prompt_length + (1 + job.completion_length) / 2, job.completion_length
    read = decode_bytes(job.config, job.batch, context) * count
    bound = machine.compute_bound_s(decode_flops(job.config, job.batch, context) * count, read, rate, bandwidth)
    seconds = Spread(tuple(played.decoding[1:]))
    return {
        **job.about,
        "completion_tokens": job.batch * count,
        "decode_seconds": seconds,
        "tokens_per_second": seconds.map(lambda value: job.batch * count / value),
        "engine_busy_share": Spread(tuple(played.busy[1:])),
        "read_gb_per_token": read / count / job.batch / 1e9,
        "bandwidth_gb_per_second": bandwidth / 1e9,
        "bandwidth_share": seconds.map(lambda value: read / bandwidth / value),
        "matmul_tflops_per_second": rate / 1e12,
        "share_of_bound": seconds.map(lambda value: bound / value),
        "compile_seconds": compute_compile_s(played.opening[0], Spread(tuple(played.opening[1:]))),
        **played.memory,
    }


def _prefill_row(job: _Job, played: _Played) -> Row:
    rate, bandwidth = machine.measure_matmul_rate(job.config.dtype), machine.measure_memory_bandwidth()
    flops = forward_flops(job.config, [job.prompt_length] * job.batch, scored_tokens=job.batch)
    bound = machine.compute_bound_s(flops, parameter_bytes(job.config), rate, bandwidth)
    seconds = Spread(tuple(played.opening[1:]))
    return {
        **job.about,
        "prefill_seconds": seconds,
        "tokens_per_second": seconds.map(lambda value: job.batch * job.prompt_length / value),
        "tflops_per_second": seconds.map(lambda value: flops / value / 1e12),
        "matmul_tflops_per_second": rate / 1e12,
        "mfu": seconds.map(lambda value: flops / value / rate),
        "share_of_bound": seconds.map(lambda value: bound / value),
        "compile_seconds": compute_compile_s(played.opening[0], seconds),
        **played.memory,
    }


@dataclasses.dataclass
class _Conversations:
    """Conversations with one engine at once, one thread each."""

    engine: LocalEngine
    pool: concurrent.futures.Executor
    vocabulary: int
    batch: int

    def prompts(self, length: int, seed: int) -> list[list[int]]:
        """A random prompt for each."""
        return np.random.default_rng(seed).integers(0, self.vocabulary, (self.batch, length)).tolist()

    def generate(self, number: int, texts: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
        """Continues each text by exactly `max_tokens` tokens; returns the texts so far. `number` is the repetition."""
        sampling = Sampling(max_tokens=max_tokens)

        def one(index: int) -> list[int]:
            seed = (number, index, len(texts[index]))
            completion = self.engine.generate(texts[index], sampling, session=f"{number}-{index}", seed=seed)
            return [*texts[index], *completion.tokens]

        return list(self.pool.map(one, range(self.batch)))

    def release(self, number: int) -> None:
        for index in range(self.batch):
            self.engine.release(f"{number}-{index}")


@contextlib.contextmanager
def _conversations(job: _Job) -> Iterator[_Conversations]:
    """An engine that holds the job's conversations, until the block ends."""
    engine = LocalEngine(
        job.config,
        slots=job.batch,
        lanes=job.lanes,
        max_length=job.prompt_length + 1 + job.completion_length,
        # A lane never prefills more conversations than it holds.
        prefill_rows=min(job.prefill_rows, job.batch // job.lanes),
        prefill_chunks=(job.prefill_chunk,),
    )
    try:
        _load(engine, job.model)
        with concurrent.futures.ThreadPoolExecutor(job.batch) as pool:
            yield _Conversations(engine, pool, job.config.vocab_size, job.batch)
    finally:
        engine.close()


def _load(engine: LocalEngine, model: Model) -> None:
    """Loads the weights; in a function of its own, so that only the engine holds them afterwards."""
    params = model.make()
    engine.load(Weights(0, lambda: to_hf(model.config, params)))

"""Suites `decode` and `prefill`: the local engine against this machine's memory bandwidth and matrix products.

Both use the engine's public calls. A conversation's first call, for one token, is nearly all prefill. In its second
call everything but the last token is cached, so that it is all decode.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from cojax.policy.parameters import to_hf
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine
from experiments.bench import machine
from experiments.bench.arithmetic import decode_bytes, decode_flops, forward_flops, parameter_bytes, parameter_count
from experiments.bench.models import Model, choose_model
from experiments.bench.results import Row, Spread, compile_seconds


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
    model, lanes = choose_model(shape, folder, layers, override, dtype), machine.lanes(batch, lanes)
    config = model.config
    with _conversations(
        model, batch, prompt_length + 1 + completion_length, lanes, prefill_rows, prefill_chunk
    ) as conversations:
        opening, decoding, busy = [], [], []
        for number in range(repeats + 1):
            began = time.perf_counter()
            texts = conversations.generate(number, conversations.prompts(prompt_length, number), 1)
            opened, at_work = time.perf_counter(), conversations.engine.busy_seconds
            conversations.generate(number, texts, completion_length)
            ended = time.perf_counter()
            opening.append(opened - began)
            decoding.append(ended - opened)
            busy.append((conversations.engine.busy_seconds - at_work) / decoding[-1])
            conversations.release(number)
    bandwidth, rate = machine.memory_bandwidth(), machine.matmul_rate(config.dtype)
    # The mean context: while sampling, a conversation grows from prompt and one token to all tokens but the last.
    context = prompt_length + (1 + completion_length) / 2
    read = decode_bytes(config, batch, context) * completion_length
    bound = machine.bound_seconds(decode_flops(config, batch, context) * completion_length, read, rate, bandwidth)
    seconds = Spread(tuple(decoding[1:]))
    return [
        {
            **_of(model, batch, prompt_length),
            "lanes": lanes,
            "completion_tokens": batch * completion_length,
            "decode_seconds": seconds,
            "tokens_per_second": seconds.map(lambda value: batch * completion_length / value),
            "engine_busy_share": Spread(tuple(busy[1:])),
            "read_gb_per_token": read / completion_length / batch / 1e9,
            "bandwidth_gb_per_second": bandwidth / 1e9,
            "bandwidth_share": seconds.map(lambda value: read / bandwidth / value),
            "matmul_tflops_per_second": rate / 1e12,
            "share_of_bound": seconds.map(lambda value: bound / value),
            "compile_seconds": compile_seconds(opening[0], Spread(tuple(opening[1:]))),
            **conversations.memory,
        }
    ]


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
    model, lanes = choose_model(shape, folder, layers, override, dtype), machine.lanes(batch, lanes)
    config = model.config
    with _conversations(model, batch, prompt_length + 1, lanes, prefill_rows, prefill_chunk) as conversations:
        opening = []
        for number in range(repeats + 1):
            began = time.perf_counter()
            conversations.generate(number, conversations.prompts(prompt_length, number), 1)
            opening.append(time.perf_counter() - began)
            conversations.release(number)
    rate, bandwidth = machine.matmul_rate(config.dtype), machine.memory_bandwidth()
    flops = forward_flops(config, [prompt_length] * batch, scored=batch)
    bound = machine.bound_seconds(flops, parameter_bytes(config), rate, bandwidth)
    seconds = Spread(tuple(opening[1:]))
    return [
        {
            **_of(model, batch, prompt_length),
            "lanes": lanes,
            "prefill_rows": prefill_rows,
            "prefill_chunk": prefill_chunk,
            "prefill_seconds": seconds,
            "tokens_per_second": seconds.map(lambda value: batch * prompt_length / value),
            "tflops_per_second": seconds.map(lambda value: flops / value / 1e12),
            "matmul_tflops_per_second": rate / 1e12,
            "mfu": seconds.map(lambda value: flops / value / rate),
            "share_of_bound": seconds.map(lambda value: bound / value),
            "compile_seconds": compile_seconds(opening[0], seconds),
            **conversations.memory,
        }
    ]


def _of(model: Model, batch: int, prompt_length: int) -> Row:
    config = model.config
    return {
        "shape": model.name,
        "layers": config.num_hidden_layers,
        "parameters": parameter_count(config),
        "dtype": config.dtype,
        "batch": batch,
        "prompt_length": prompt_length,
    }


@dataclasses.dataclass
class _Conversations:
    """Conversations with one engine at once, one thread each. `memory` is filled when they end."""

    engine: LocalEngine
    pool: concurrent.futures.Executor
    vocabulary: int
    batch: int
    memory: dict[str, float] = dataclasses.field(default_factory=dict)

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
def _conversations(
    model: Model, batch: int, length: int, lanes: int, prefill_rows: int, prefill_chunk: int
) -> Iterator[_Conversations]:
    """An engine with the model that holds `batch` conversations of `length` tokens, until the block ends."""
    engine = LocalEngine(
        model.config,
        slots=batch,
        lanes=lanes,
        max_length=length,
        # A lane never prefills more conversations than it holds.
        prefill_rows=min(prefill_rows, batch // lanes),
        prefill_chunks=(prefill_chunk,),
    )
    try:
        _load(engine, model)
        with concurrent.futures.ThreadPoolExecutor(batch) as pool:
            conversations = _Conversations(engine, pool, model.config.vocab_size, batch)
            yield conversations
            conversations.memory = machine.memory()
    finally:
        engine.close()


def _load(engine: LocalEngine, model: Model) -> None:
    """Loads the weights; in a function of its own, so that only the engine holds them afterwards."""
    params = model.make()
    engine.load(Weights(0, lambda: to_hf(model.config, params)))

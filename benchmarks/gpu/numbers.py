"""The numbers that a card computes, against those that a CPU computed: of small models, in float32 and bfloat16.

Weights and tokens are drawn by NumPy from fixed seeds, so that they are the same bits everywhere, and only what is
computed from them is stored.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.results import Row
from cojax.learner.batch import RowShape, TrainBatch, pack_sequences
from cojax.learner.learner import Learner, StepBatches
from cojax.learner.optimizer import adamw
from cojax.policy.config import ModelConfig
from cojax.policy.logprobs import token_logprobs
from cojax.policy.parameters import Params, to_hf
from cojax.policy.transformer import hidden_states, initialize, logits
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine

_SHAPE = ModelConfig(512, 128, 256, 2, 4, 4, 64, max_position_embeddings=256)
MODELS: Mapping[str, ModelConfig] = {
    "dense": _SHAPE,
    "grouped-query": dataclasses.replace(_SHAPE, num_key_value_heads=2),
    "sparse": dataclasses.replace(
        _SHAPE, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
        model_type="qwen3_moe", norm_topk_prob=True,
    ),
}  # fmt: skip
CASES = tuple((name, dtype) for name in MODELS for dtype in ("float32", "bfloat16"))
# Texts that are packed into rows: alone, together, and with padding behind them.
_TEXTS, _ROW = (128, 40, 61, 27, 90, 60, 50), 128
_PROMPT, _SAMPLED = 50, 24  # tokens of a prompt, of which there are as many as texts, and sampled behind it
_RATE = 1e-3


def computed(cases: Iterable[tuple[str, str]] = CASES) -> dict[str, np.ndarray]:
    """What this process's device computes of these models and dtypes, by "model dtype name"."""
    found = {}
    for name, dtype in cases:
        values = _values(dataclasses.replace(MODELS[name], dtype=dtype))
        found.update({f"{name} {dtype} {key}": value for key, value in values.items()})
    return found


def numbers(expected: Path) -> list[Row]:
    """A row for each model and dtype that a CPU's values (`computed`) in `expected` are of, after one that says how
    exact this device's products of float32 are.

    A difference is that of norms: ‖card − CPU‖ / ‖CPU‖. In bfloat16 each is also given against the CPU's float32, with
    the CPU's own beside it: rounding makes both of them.
    """
    with np.load(expected, allow_pickle=False) as file:
        cpu = dict(file)
    cases = [(name, dtype) for name, dtype in CASES if f"{name} {dtype} loss" in cpu]
    card = computed(cases)
    return [
        _products(),
        *({"model": name, "dtype": dtype, **_compared(name, dtype, card, cpu)} for name, dtype in cases),
    ]


def _compared(name: str, dtype: str, card: Mapping[str, np.ndarray], cpu: Mapping[str, np.ndarray]) -> Row:
    row: dict[str, object] = {}
    for key in ("logits", "logprobs", "loss", "grad_norm", "step"):
        mine, theirs = card[f"{name} {dtype} {key}"], cpu[f"{name} {dtype} {key}"]
        row[f"{key}_difference"] = _difference(mine, theirs)
        exact = cpu.get(f"{name} float32 {key}")
        if dtype != "float32" and exact is not None:
            row[f"{key}_from_float32"] = _difference(mine, exact)
            row[f"{key}_from_float32_on_cpu"] = _difference(theirs, exact)
    tokens, wanted = card[f"{name} {dtype} tokens"], cpu[f"{name} {dtype} tokens"]
    # A text is the same up to the first token that differs; what follows has another context.
    same = np.logical_and.accumulate(tokens == wanted, axis=1)
    apart = np.abs(card[f"{name} {dtype} sampled"] - cpu[f"{name} {dtype} sampled"])[same]
    row["tokens_the_same"] = f"{int(same.sum())} of {same.size}"
    row["sampled_logprobs_apart"] = float(apart.max(initial=0.0))
    row["engine_and_learner_apart"] = card[f"{name} {dtype} apart"].item()
    return row


def _difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def _products() -> Row:
    """The error of a float32 product as this process computes it, and with the precision asked for."""
    draw = np.random.default_rng(0)
    left, right = (draw.standard_normal((512, 512), np.float32) for _ in range(2))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    product = jax.jit(jnp.matmul, static_argnames="precision")
    return {
        "default_matmul_precision": str(jax.config.values["jax_default_matmul_precision"]),
        "float32_product_error": _difference(np.asarray(product(left, right), np.float64), exact),
        "float32_product_error_at_highest": _difference(
            np.asarray(product(left, right, precision="highest"), np.float64), exact
        ),
    }


def _values(config: ModelConfig) -> dict[str, np.ndarray]:
    params, batch = _params(config), _batch(config)
    score = jax.jit(functools.partial(_scored, config))
    scores, logprobs = score(params, batch.tokens, batch.positions, batch.segment_ids)
    before = np.asarray(params["layers"]["attention"]["query"]["kernel"])
    learner = Learner(config=config, optimizer=adamw(_RATE), row_length=_ROW, micro_rows=1)
    state, metrics = learner.update(learner.init(params), StepBatches([batch]))
    after = np.asarray(state.params["layers"]["attention"]["query"]["kernel"])
    return {
        "logits": np.asarray(scores, np.float32),
        "logprobs": np.asarray(logprobs, np.float32),
        "loss": np.array(metrics["loss"], np.float32),
        "grad_norm": np.array(metrics["grad_norm"], np.float32),
        "step": (after - before) / np.float32(_RATE),
        **_sampled(config, params, score),
    }


def _scored(config: ModelConfig, params: Params, *rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits of every eighth token, float32[B, T / 8, V], and log-probs of all, float32[B, T]."""
    hidden = hidden_states(config, params, *rows)
    return logits(config, params, hidden[:, ::8]), token_logprobs(config, params, *rows)


def _sampled(config: ModelConfig, params: Params, score: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Tokens that the engine samples and their log-probs, [B, tokens], and the most that the learner's differ by."""
    rows = len(_TEXTS)
    prompts = np.random.default_rng(2).integers(0, config.vocab_size, (rows, _PROMPT)).tolist()
    engine = LocalEngine(config, slots=rows, max_length=_ROW, prefill_rows=1, prefill_chunks=(16,))
    try:
        engine.load(Weights(0, lambda: to_hf(config, params)))
        said = [
            engine.generate(prompt, Sampling(max_tokens=_SAMPLED), session=str(number), seed=(number,))
            for number, prompt in enumerate(prompts)
        ]
    finally:
        engine.close()
    tokens = np.array([completion.tokens for completion in said])
    sampled = np.array([completion.logprobs for completion in said], np.float32)
    texts = np.zeros((rows, _ROW), np.int32)
    texts[:, : _PROMPT + _SAMPLED] = np.concatenate([prompts, tokens], axis=1)
    positions = np.broadcast_to(np.arange(_ROW, dtype=np.int32), texts.shape)
    segments = np.broadcast_to((positions[0] < _PROMPT + _SAMPLED).astype(np.int32), texts.shape)
    learners = np.asarray(score(params, texts, positions, segments)[1])[:, _PROMPT : _PROMPT + _SAMPLED]
    return {"tokens": tokens, "sampled": sampled, "apart": np.abs(learners - sampled).max(keepdims=True)}


def _params(config: ModelConfig) -> Params:
    """Weights by NumPy: norms near 1, all else of variance 1 / D."""
    draw, scale = np.random.default_rng(0), np.float32(config.hidden_size**-0.5)

    def drawn(path: jax.tree_util.KeyPath, outline: jax.ShapeDtypeStruct) -> jax.Array:
        values = draw.standard_normal(outline.shape, np.float32)
        norm = jax.tree_util.keystr(path[-1:], simple=True) == "scale"
        return jnp.asarray(1 + values / 10 if norm else values * scale)

    return jax.tree_util.tree_map_with_path(drawn, jax.eval_shape(lambda: initialize(config, 0)))


def _batch(config: ModelConfig) -> TrainBatch:
    draw = np.random.default_rng(1)
    texts = [(draw.integers(0, config.vocab_size, length).tolist(), [True] * length) for length in _TEXTS]
    batch = pack_sequences(texts, RowShape(_ROW))
    return dataclasses.replace(
        batch,
        advantages=np.where(batch.segment_ids % 2 == 0, np.float32(-1), np.float32(1)),
        sampler_logprobs=np.full(batch.tokens.shape, -np.log(config.vocab_size), np.float32),
    )

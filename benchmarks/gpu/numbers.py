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
from cojax.policy.parameters import Params, jit_policy, to_hf
from cojax.policy.transformer import compute_hidden, compute_logits, initialize
from cojax.rollout.engine import Sampling, Weights
from cojax.rollout.local import LocalEngine

_DENSE_CONFIG = ModelConfig(512, 128, 256, 2, 4, 4, 64, max_position_embeddings=256)
MODELS: Mapping[str, ModelConfig] = {
    "dense": _DENSE_CONFIG,
    "grouped-query": dataclasses.replace(_DENSE_CONFIG, num_key_value_heads=2),
    "sparse": dataclasses.replace(
        _DENSE_CONFIG, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=64,
        model_type="qwen3_moe", norm_topk_prob=True,
    ),
}  # fmt: skip
CASES = tuple((name, dtype) for name in MODELS for dtype in ("float32", "bfloat16"))
# Texts that are packed into rows: alone, together, and with padding behind them.
_TEXT_LENGTHS, _ROW_LENGTH = (128, 40, 61, 27, 90, 60, 50), 128
_PROMPT_LENGTH, _SAMPLED_LENGTH = (
    50,
    24,
)  # tokens of a prompt, of which there are as many as texts, and sampled behind it
_LEARNING_RATE = 1e-3


def compute_values(cases: Iterable[tuple[str, str]] = CASES) -> dict[str, np.ndarray]:
    """What this process's device computes of these models and dtypes, by "model dtype name"."""
    value_by_name = {}
    for model_name, dtype in cases:
        values = _compute_case(dataclasses.replace(MODELS[model_name], dtype=dtype))
        value_by_name.update({f"{model_name} {dtype} {key}": value for key, value in values.items()})
    return value_by_name


def compare_with_cpu(expected_path: Path) -> list[Row]:
    """A row for each model and dtype that a CPU's values (`compute_values`) in `expected_path` are of, after one that
    says how exact this device's products of float32 are.

    A difference is that of norms: ‖card − CPU‖ / ‖CPU‖. In bfloat16 each is also given against the CPU's float32, with
    the CPU's own beside it: rounding makes both of them.
    """
    with np.load(expected_path, allow_pickle=False) as file:
        cpu_values = dict(file)
    cases = [(model_name, dtype) for model_name, dtype in CASES if f"{model_name} {dtype} loss" in cpu_values]
    card_values = compute_values(cases)
    return [
        _measure_products(),
        *(
            {"model": model_name, "dtype": dtype, **_compare_case(model_name, dtype, card_values, cpu_values)}
            for model_name, dtype in cases
        ),
    ]


def _compare_case(
    model_name: str, dtype: str, card_values: Mapping[str, np.ndarray], cpu_values: Mapping[str, np.ndarray]
) -> Row:
    row: dict[str, object] = {}
    for key in ("logits", "logprobs", "loss", "grad_norm", "step"):
        card_value, cpu_value = card_values[f"{model_name} {dtype} {key}"], cpu_values[f"{model_name} {dtype} {key}"]
        row[f"{key}_difference"] = relative_difference(card_value, cpu_value)
        exact_value = cpu_values.get(f"{model_name} float32 {key}")
        if dtype != "float32" and exact_value is not None:
            row[f"{key}_from_float32"] = relative_difference(card_value, exact_value)
            row[f"{key}_from_float32_on_cpu"] = relative_difference(cpu_value, exact_value)
    tokens, cpu_tokens = card_values[f"{model_name} {dtype} tokens"], cpu_values[f"{model_name} {dtype} tokens"]
    # A text is the same up to the first token that differs; what follows has another context.
    is_same = np.logical_and.accumulate(tokens == cpu_tokens, axis=1)
    differences = np.abs(card_values[f"{model_name} {dtype} sampled"] - cpu_values[f"{model_name} {dtype} sampled"])[
        is_same
    ]
    row["tokens_the_same"] = f"{int(is_same.sum())} of {is_same.size}"
    row["sampled_logprobs_apart"] = float(differences.max(initial=0.0))
    row["engine_and_learner_apart"] = card_values[f"{model_name} {dtype} apart"].item()
    return row


def relative_difference(value: np.ndarray, reference: np.ndarray) -> float:
    """‖value − reference‖ / ‖reference‖."""
    return float(np.linalg.norm(value - reference) / np.linalg.norm(reference))


def _measure_products() -> Row:
    """The error of a float32 product as this process computes it, and with the precision asked for."""
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((512, 512), np.float32) for _ in range(2))
    exact_product = left.astype(np.float64) @ right.astype(np.float64)
    compute_product = jax.jit(jnp.matmul, static_argnames="precision")
    return {
        "default_matmul_precision": str(jax.config.values["jax_default_matmul_precision"]),
        "float32_product_error": relative_difference(
            np.asarray(compute_product(left, right), np.float64), exact_product
        ),
        "float32_product_error_at_highest": relative_difference(
            np.asarray(compute_product(left, right, precision="highest"), np.float64), exact_product
        ),
    }


def _compute_case(config: ModelConfig) -> dict[str, np.ndarray]:
    params, batch = _draw_params(config), _draw_batch(config)
    score = jit_policy(functools.partial(_score, config), config)
    scores, logprobs = score(params, batch.tokens, batch.positions, batch.segment_ids)
    kernel_before = np.asarray(params["layers"]["attention"]["query"]["kernel"])
    learner = Learner(config=config, optimizer=adamw(_LEARNING_RATE), row_length=_ROW_LENGTH, micro_rows=1)
    state, metrics = learner.update(learner.init(params), StepBatches([batch]))
    kernel_after = np.asarray(state.params["layers"]["attention"]["query"]["kernel"])
    return {
        "logits": np.asarray(scores, np.float32),
        "logprobs": np.asarray(logprobs, np.float32),
        "loss": np.array(metrics["loss"], np.float32),
        "grad_norm": np.array(metrics["grad_norm"], np.float32),
        "step": (kernel_after - kernel_before) / np.float32(_LEARNING_RATE),
        **_sample(config, params, score),
    }


def _score(config: ModelConfig, params: Params, *rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits of every eighth token, float32[B, T / 8, V], and log-probs of all, float32[B, T]."""
    hidden = compute_hidden(config, params, *rows)
    return compute_logits(config, params, hidden[:, ::8]), token_logprobs(config, params, *rows)


def _sample(config: ModelConfig, params: Params, score: Callable[..., Any]) -> dict[str, np.ndarray]:
    """Tokens that the engine samples and their log-probs, [B, tokens], and the most that the learner's differ by."""
    row_count = len(_TEXT_LENGTHS)
    prompts = np.random.default_rng(2).integers(0, config.vocab_size, (row_count, _PROMPT_LENGTH)).tolist()
    engine = LocalEngine(config, slots=row_count, max_length=_ROW_LENGTH, prefill_rows=1, prefill_chunks=(16,))
    try:
        engine.load(Weights(0, lambda: to_hf(config, params)))
        completions = [
            engine.generate(
                prompt, Sampling(max_tokens=_SAMPLED_LENGTH), session=str(prompt_index), seed=(prompt_index,)
            )
            for prompt_index, prompt in enumerate(prompts)
        ]
    finally:
        engine.close()
    tokens = np.array([completion.tokens for completion in completions])
    sampled_logprobs = np.array([completion.logprobs for completion in completions], np.float32)
    rows_of_tokens = np.zeros((row_count, _ROW_LENGTH), np.int32)
    rows_of_tokens[:, : _PROMPT_LENGTH + _SAMPLED_LENGTH] = np.concatenate([prompts, tokens], axis=1)
    positions = np.broadcast_to(np.arange(_ROW_LENGTH, dtype=np.int32), rows_of_tokens.shape)
    segments = np.broadcast_to((positions[0] < _PROMPT_LENGTH + _SAMPLED_LENGTH).astype(np.int32), rows_of_tokens.shape)
    learner_logprobs = np.asarray(score(params, rows_of_tokens, positions, segments)[1])[
        :, _PROMPT_LENGTH : _PROMPT_LENGTH + _SAMPLED_LENGTH
    ]
    return {
        "tokens": tokens,
        "sampled": sampled_logprobs,
        "apart": np.abs(learner_logprobs - sampled_logprobs).max(keepdims=True),
    }


def _draw_params(config: ModelConfig) -> Params:
    """Weights by NumPy: norms near 1, all else of variance 1 / D."""
    rng, scale = np.random.default_rng(0), np.float32(config.hidden_size**-0.5)

    def draw_array(path: jax.tree_util.KeyPath, outline: jax.ShapeDtypeStruct) -> jax.Array:
        values = rng.standard_normal(outline.shape, np.float32)
        is_norm = jax.tree_util.keystr(path[-1:], simple=True) == "scale"
        return jnp.asarray(1 + values / 10 if is_norm else values * scale)

    return jax.tree_util.tree_map_with_path(draw_array, jax.eval_shape(lambda: initialize(config, 0)))


def _draw_batch(config: ModelConfig) -> TrainBatch:
    rng = np.random.default_rng(1)
    texts = [(rng.integers(0, config.vocab_size, length).tolist(), [True] * length) for length in _TEXT_LENGTHS]
    batch = pack_sequences(texts, RowShape(_ROW_LENGTH))
    return dataclasses.replace(
        batch,
        advantages=np.where(batch.segment_ids % 2 == 0, np.float32(-1), np.float32(1)),
        sampler_logprobs=np.full(batch.tokens.shape, -np.log(config.vocab_size), np.float32),
    )

"""Suite `update`: the learner's update alone, on rows without padding, against this machine's matrix products."""

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from benchmarks import machine
from benchmarks.models import Model, choose_model
from benchmarks.results import Row, Spread, compute_compile_s, time_calls
from benchmarks.shapes import parameter_bytes, update_flops
from cojax.compile.programs import count_parameters
from cojax.learner.batch import RowShape, TrainBatch, pack_sequences
from cojax.learner.learner import Learner, StepBatches
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import AUTO_REMAT, choose_fastest
from cojax.learner.update import TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params

KL_COEFFICIENT = 1e-3


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of an update: `row_count` rows of `length` tokens, `texts_per_row`; `micro_rows` at a time."""

    row_count: int
    length: int
    texts_per_row: int
    micro_rows: int

    def __post_init__(self) -> None:
        if self.length % self.texts_per_row or self.length // self.texts_per_row < 2:
            raise ValueError(
                f"--row-length={self.length} does not hold --segments={self.texts_per_row} texts of equal length, "
                "2 or more tokens each; make it a multiple of them"
            )
        if self.row_count % self.micro_rows:
            raise ValueError(f"--rows={self.row_count} is no multiple of --micro-rows={self.micro_rows}; make it one")

    @property
    def lengths(self) -> list[int]:
        """Tokens of each text."""
        return [self.length // self.texts_per_row] * (self.row_count * self.texts_per_row)


def update(
    *,
    shape: str | None = None,
    folder: str | None = None,
    layers: int | None = None,
    depths: Sequence[int] = (),
    override: Sequence[str] = (),
    dtype: str | None = None,
    param_dtype: str = "float32",
    moments_dtype: str = "",
    remat: str = "none",
    rows: int = 8,
    row_length: int = 1024,
    segments: int = 1,
    micro_rows: int = 1,
    reference: bool = False,
    repeats: int = 3,
) -> list[Row]:
    """One row, or with `depths` one for each of these numbers of layers.

    `param_dtype` is that of stored and updated parameters, `dtype` that of computation. With `reference` the update
    includes a second forward pass, of frozen parameters in `dtype`. MFU is `update_flops` a second over the rate of a
    large matrix product in `dtype`. `share_of_bound` also counts the time that reading all parameters
    once takes (`machine.compute_bound_s`).
    """
    if depths and layers is not None:
        raise ValueError("--depths and --layers both set the number of layers; give one of them")
    layout = Rows(rows, row_length, segments, micro_rows)
    models = [choose_model(shape, folder, depth, override, dtype, param_dtype) for depth in depths or (layers,)]
    if row_length > (max_positions := min(model.config.max_position_embeddings for model in models)):
        raise ValueError(
            f"--row-length={row_length} exceeds the {max_positions} positions of {models[0].name}; lower it"
        )
    figures_by_model = [
        _measure_update(model, layout, adamw(1e-6, moments_dtype=moments_dtype), remat, reference, repeats)
        for model in models
    ]
    rate, bandwidth = machine.measure_matmul_rate(models[0].config.dtype), machine.measure_memory_bandwidth()
    return [
        {
            "shape": model.name,
            "layers": model.config.num_hidden_layers,
            "parameters": count_parameters(model.config),
            "dtype": model.config.dtype,
            "param_dtype": param_dtype,
            "moments_dtype": moments_dtype or param_dtype,
            "rows": rows,
            "row_length": row_length,
            **_add_rates(figures, layout, model.config, rate, bandwidth),
        }
        for model, figures in zip(models, figures_by_model, strict=True)
    ]


def _measure_update(
    model: Model, rows: Rows, optimizer: optax.GradientTransformation, remat: str, reference: bool, repeats: int
) -> dict[str, Any]:
    """Seconds of the update, warm and for compilation, the size of its program, and memory."""
    config = model.config
    learner = make_learner(config, rows, optimizer, remat, _make_reference(model) if reference else None)
    # The parameters are given away, so that no second copy of them ever exists. Uncommitted, the state would make the
    # second update compile again.
    state: TrainState = jax.device_put(jax.jit(learner.init, donate_argnums=0)(model.make_params()), jax.devices()[0])
    if remat == AUTO_REMAT:
        learner = choose_fastest(learner, state, [1] * rows.row_count)
    batch = _draw_batch(config, rows)

    def run_update() -> None:
        nonlocal state
        state, _ = learner.update(state, StepBatches([batch]))
        jax.block_until_ready(state)

    with _dump_programs() as folder:
        first_s, seconds = time_calls(run_update, repeats)
        program_bytes = max((path.stat().st_size for path in folder.iterdir()), default=0)
    return {
        "reference": reference,
        "remat": learner.remat,
        "update_seconds": seconds,
        "compile_seconds": compute_compile_s(first_s, seconds),
        "program_kb": program_bytes / 1e3,
        **machine.read_peak_memory(),
    }


def make_learner(
    config: ModelConfig,
    rows: Rows,
    optimizer: optax.GradientTransformation,
    remat: str,
    reference: Params | None = None,
    mesh: Mesh | None = None,
) -> Learner:
    return Learner(
        config=config,
        optimizer=optimizer,
        loss_settings={} if reference is None else {"kl_coefficient": KL_COEFFICIENT},
        row_length=rows.length,
        micro_rows=rows.micro_rows,
        remat="layers" if remat == AUTO_REMAT else remat,
        reference=reference,
        mesh=mesh,
    )


def _make_reference(model: Model) -> Params:
    """π_ref in the dtype of computation."""
    return jax.tree.map(lambda leaf: leaf.astype(model.config.dtype), model.make_params())


def _draw_batch(config: ModelConfig, rows: Rows) -> TrainBatch:
    """Random texts that fill every row; all tokens but the first of each text are learned from."""
    rng = np.random.default_rng(0)
    texts = [(rng.integers(0, config.vocab_size, length).tolist(), [True] * length) for length in rows.lengths]
    batch = pack_sequences(texts, RowShape(rows.length, rows.micro_rows))
    return dataclasses.replace(
        batch,
        advantages=np.where(batch.segment_ids % 2 == 0, np.float32(-1), np.float32(1)),
        sampler_logprobs=np.full(batch.tokens.shape, -np.log(config.vocab_size), np.float32),
    )


@contextlib.contextmanager
def _dump_programs() -> Iterator[Path]:
    """A folder into which JAX writes, as text, every program that it compiles within the block."""
    old_folder = jax.config.values["jax_dump_ir_to"]
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_dump_ir_to", folder)
        try:
            yield Path(folder)
        finally:
            jax.config.update("jax_dump_ir_to", old_folder)


def _add_rates(figures: Row, rows: Rows, config: ModelConfig, matmul_rate: float, bandwidth: float) -> Row:
    """The measured figures, with tokens and operations a second."""
    seconds: Spread = figures["update_seconds"]
    token_count = rows.row_count * rows.length
    flops = update_flops(config, rows.lengths, reference=figures["reference"])
    bound_s = machine.compute_bound_s(flops, parameter_bytes(config), matmul_rate, bandwidth)
    return {
        **figures,
        "tokens": token_count,
        "tokens_per_second": seconds.map(lambda value: token_count / value),
        "update_tflop": flops / 1e12,
        "tflops_per_second": seconds.map(lambda value: flops / value / 1e12),
        "matmul_tflops_per_second": matmul_rate / 1e12,
        "mfu": seconds.map(lambda value: flops / value / matmul_rate),
        "share_of_bound": seconds.map(lambda value: bound_s / value),
    }

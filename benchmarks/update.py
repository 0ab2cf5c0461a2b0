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
from cojax.learner.batch import DTYPES, Segment, TrainBatch, pack_segments
from cojax.learner.learner import Learner, StepBatches
from cojax.learner.optimizer import adamw
from cojax.learner.rehearsal import AUTO_REMAT, GIB, DeviceMemoryError, choose_fastest, measure_available_bytes
from cojax.learner.update import TrainState
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params

KL_COEFFICIENT = 1e-3


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of an update: `row_count` rows of `length` tokens, `texts_per_row`; `micro_rows` at a time.

    The texts of a row are answers of `completion_length` tokens to one prompt of `prompt_length`; without them, texts
    that have nothing in common.
    """

    row_count: int
    length: int
    texts_per_row: int
    micro_rows: int
    prompt_length: int = 0
    completion_length: int = 0

    def __post_init__(self) -> None:
        if not self.prompt_length and (self.length % self.texts_per_row or self.length // self.texts_per_row < 2):
            raise ValueError(
                f"--row-length={self.length} does not hold --segments={self.texts_per_row} texts of equal length, "
                "2 or more tokens each; make it a multiple of them"
            )
        if self.row_count % self.micro_rows:
            raise ValueError(f"--rows={self.row_count} is no multiple of --micro-rows={self.micro_rows}; make it one")

    @property
    def text_length(self) -> int:
        """Tokens of each text, with its prompt."""
        return self.prompt_length + self.completion_length or self.length // self.texts_per_row


def count_row_tokens(config: ModelConfig, prompt_length: int, completion_length: int, samples: int) -> int:
    """Tokens of a row of `samples` answers to one prompt, which the learner computes once where its rows share it.

    What they share ends before the prompt's last token, whose result predicts the first token of each answer.
    """
    shared_length = prompt_length - 1 if Learner(config=config, optimizer=adamw(1e-6)).shape.shares else 0
    return shared_length + samples * (prompt_length - shared_length + completion_length)


def refuse_row_length(row_length: int | None, flags: str) -> None:
    """Raises ValueError where --row-length is given beside flags that it follows from."""
    if row_length is not None:
        raise ValueError(f"--row-length={row_length} beside {flags}: a row's length follows from these; leave it out")


def refuse_beyond_memory(token_count: int) -> None:
    """Raises DeviceMemoryError if a batch of so many tokens does not fit into this host's memory."""
    needed, available = 4 * len(DTYPES) * token_count, measure_available_bytes()
    if available is not None and needed > available:
        raise DeviceMemoryError(f"{token_count:,} tokens take {needed / GIB:.1f} GiB of {available / GIB:.1f}")


def refuse_float16(config: ModelConfig) -> None:
    """Raises ValueError for a dtype in which the learner does not compute."""
    if config.dtype == "float16":
        raise ValueError("--dtype is float16, in which gradients of single tokens vanish; give bfloat16 or float32")


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
    row_length: int | None = None,
    segments: int = 1,
    prompt_length: int | None = None,
    completion_length: int | None = None,
    micro_rows: int = 1,
    reference: bool = False,
    repeats: int = 3,
) -> list[Row]:
    """One row, or with `depths` one for each of these numbers of layers.

    Each row has `row_length` tokens (None: 1024) in `segments` texts, or `segments` answers of `completion_length`
    tokens to one prompt of `prompt_length`, and only answers are learned. `param_dtype` is that of stored and updated
    parameters, `dtype` that of computation. With `reference` the update includes a second forward pass, of frozen
    parameters in `dtype`. MFU is `update_flops` a second over the rate of a large matrix product in `dtype`.
    `share_of_bound` also counts the time that reading all parameters once takes (`machine.compute_shares`).
    """
    if depths and layers is not None:
        raise ValueError("--depths and --layers both set the number of layers; give one of them")
    models = [choose_model(shape, folder, depth, override, dtype, param_dtype) for depth in depths or (layers,)]
    layout = _lay_out(models[0], rows, row_length, segments, micro_rows, prompt_length, completion_length)
    figures_by_model = [
        _measure_update(model, layout, adamw(1e-6, moments_dtype=moments_dtype), remat, reference, repeats)
        for model in models
    ]
    return [
        {
            "shape": model.name,
            "layers": model.config.num_hidden_layers,
            "parameters": count_parameters(model.config),
            "dtype": model.config.dtype,
            "param_dtype": param_dtype,
            "moments_dtype": moments_dtype or param_dtype,
            "rows": rows,
            "row_length": layout.length,
            "segments": segments,
            "prompt_length": layout.prompt_length,
            "completion_length": layout.completion_length,
            **_add_rates(figures, layout, model.config),
        }
        for model, figures in zip(models, figures_by_model, strict=True)
    ]


def _lay_out(
    model: Model, rows: int, row_length: int | None, segments: int, micro_rows: int, *text_lengths: int | None
) -> Rows:
    """The rows that the flags describe; `text_lengths` are those of prompt and answer.

    Raises ValueError for flags that do not fit together, and for long texts; DeviceMemoryError for too many.
    """
    prompt_length, completion_length = text_lengths
    refuse_float16(model.config)
    if prompt_length is not None and completion_length is not None:
        refuse_row_length(row_length, "--prompt, --answer and --segments")
        token_count = count_row_tokens(model.config, prompt_length, completion_length, segments)
        layout = Rows(rows, token_count, segments, micro_rows, prompt_length, completion_length)
    elif prompt_length is None and completion_length is None:
        layout = Rows(rows, row_length or 1024, segments, micro_rows)
    else:
        lone_flag, missing_flag = ("--prompt", "--answer") if prompt_length else ("--answer", "--prompt")
        raise ValueError(f"{lone_flag} without {missing_flag}: a row holds answers to a prompt; give both, or neither")
    refuse_beyond_memory(layout.row_count * layout.length)
    if layout.text_length > (max_positions := model.config.max_position_embeddings):
        raise ValueError(
            f"a text of {layout.text_length} tokens exceeds the {max_positions} positions of {model.name}; shorten it"
        )
    return layout


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
    batch = draw_batch(learner, rows)

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
        "micro_rows": learner.micro_rows,
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


def draw_batch(learner: Learner, rows: Rows) -> TrainBatch:
    """Random texts that fill every row, packed as the learner packs groups; what follows the prompt is learned from,
    without one all tokens but a text's first."""
    rng, vocabulary, text_length = np.random.default_rng(0), learner.config.vocab_size, rows.text_length
    is_learned = np.arange(text_length) >= max(1, rows.prompt_length)
    weights = is_learned / (is_learned.sum() * rows.row_count * rows.texts_per_row)
    segments: list[Segment] = []
    for row in range(rows.row_count):
        prompt = rng.integers(0, vocabulary, rows.prompt_length).tolist()
        for text in range(rows.texts_per_row):
            number = len(segments)
            columns = {
                "sequences": number, "tasks": row, "groups": row, "group_sizes": rows.texts_per_row, "turns": 0,
                "lengths": int(is_learned.sum()), "advantages": (1.0, -1.0)[text % 2],
                "sampler_logprobs": -np.log(vocabulary),
            }  # fmt: skip
            tokens = [*prompt, *rng.integers(0, vocabulary, text_length - rows.prompt_length).tolist()]
            segments.append(Segment(f"text {number}", tokens, weights, columns, number))
    return pack_segments(segments, learner.shape, len(segments))


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


def _add_rates(figures: Row, rows: Rows, config: ModelConfig) -> Row:
    """The measured figures, with tokens and operations a second."""
    seconds: Spread = figures["update_seconds"]
    matmul_rate = machine.measure_matmul_rate(config.dtype)
    token_count = rows.row_count * rows.length
    row_texts, reference = [rows.text_length] * rows.texts_per_row, figures["reference"]
    flops = rows.row_count * update_flops(config, row_texts, reference=reference, prompt_length=rows.prompt_length)
    return {
        **figures,
        "tokens": token_count,
        "tokens_per_second": seconds.map(lambda value: token_count / value),
        "update_tflop": flops / 1e12,
        "tflops_per_second": seconds.map(lambda value: flops / value / 1e12),
        "matmul_tflops_per_second": matmul_rate / 1e12,
        "mfu": seconds.map(lambda value: flops / value / matmul_rate),
        **machine.compute_shares(seconds, flops, parameter_bytes(config), config.dtype),
    }

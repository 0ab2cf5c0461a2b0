"""Families of models: the parts of their layers, and the names of these in Hugging Face files.

To add a family, write a file that makes a `Family` from these rows and its own, and list it in `FAMILIES` in config.py.
"""

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

Row = tuple[str, str, str, int | None]  # the fields of a `Parameter`, path and axes as text

FULL, SLIDING = "full_attention", "sliding_attention"  # kinds of layers, as in layer_types of a config.json


def row(path: str, axes: str, hf_name: str, input_axes: int | None = None) -> Row:
    """A row of a table; inside a layer, the Hugging Face name begins with the layer's."""
    return path, axes, ("model.layers.{layer}." if axes.startswith("layers") else "") + hf_name, input_axes


TABLES: Mapping[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
CORE, DENSE, SPARSE, HEAD, QK_NORM, BIAS = (
    tuple(row(*fields) for fields in TABLES[name]) for name in ("CORE", "DENSE", "SPARSE", "HEAD", "QK_NORM", "BIAS")
)


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one Hugging Face class.

    `rows` is the table of their parameters: a model has a bias, a norm of queries and keys, or experts if the table has
    rows for them. `activation` is the function of the feed-forward parts, which config.json calls `hidden_act`: its
    "gelu" is `functools.partial(jax.nn.gelu, approximate=False)`. `layers` lists the kinds of the layers in turn and is
    repeated over all of them; in a SLIDING layer a token sees the last `sliding_window` tokens, and itself.
    `rope_theta` holds for a file that names none, and `defaults` gives the other fields of `ModelConfig` that a file
    leaves out. `requirements` are fields that change the arithmetic, each with its only supported value. `extras` are
    fields that our files hold besides the shape.
    """

    model_type: str
    architecture: str
    rows: tuple[Row, ...]
    hidden_act: str = "silu"
    activation: Callable[[jax.Array], jax.Array] = jax.nn.silu
    layers: tuple[str, ...] = (FULL,)
    rope_theta: float = 10_000.0
    requirements: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    defaults: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda hf: {}

    def __post_init__(self) -> None:
        if not self.layers or set(self.layers) - {FULL, SLIDING}:
            raise ValueError(f"{self.model_type} has layers {self.layers}; expected one or more of {FULL}, {SLIDING}")
        if self.sparse and self.activation is not jax.nn.silu:
            raise ValueError(f"{self.model_type} has experts with {self.hidden_act}; they compute with silu alone")

    def has_parameter(self, parameter_path: str) -> bool:
        """Whether models of the family have the parameter at this path."""
        return any(parameter_path == row_path for row_path, *_ in self.rows)

    @property
    def sparse(self) -> bool:
        """Whether the feed-forward parts are mixtures of experts."""
        return self.has_parameter("layers/feed_forward/router")

    @property
    def attention_bias(self) -> bool:
        """Whether queries, keys and values have a bias."""
        return self.has_parameter("layers/attention/query/bias")


LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    (*CORE, *DENSE, *HEAD),
    requirements={"pretraining_tp": 1},
    # Without names its class takes tokens 1 and 2 for the ends of a text.
    extras={"mlp_bias": False, "bos_token_id": None, "eos_token_id": None},
    # The earliest files do not name these.
    defaults=lambda hf: {"max_position_embeddings": 2_048, "num_key_value_heads": hf.get("num_attention_heads")},
)
QWEN2 = Family("qwen2", "Qwen2ForCausalLM", (*CORE, *DENSE, *HEAD, *BIAS))
# In other families head_dim is hidden_size / heads.
QWEN3 = Family("qwen3", "Qwen3ForCausalLM", (*CORE, *DENSE, *HEAD, *QK_NORM), defaults=lambda hf: {"head_dim": 128})
_ALL_SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": []}
QWEN3_MOE = Family(
    "qwen3_moe", "Qwen3MoeForCausalLM", (*CORE, *SPARSE, *HEAD, *QK_NORM), requirements=_ALL_SPARSE, extras=_ALL_SPARSE
)

"""One table of parameters: where each lies in our tree, what its axes mean, and how Hugging Face names and shapes it.

Loading, export, shapes and sharding all read this table and nothing else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One leaf. `axes` are logical; "layers" leads where the leaf is stacked, and then `hf` holds a {layer}.

    `inputs` counts the axes, after "layers", that a matrix product sums over: Hugging Face stores (out, in) matrices,
    so those axes are flattened and moved last. None means stored as it is, 0 a flattened vector.
    """

    path: tuple[str, ...]
    axes: tuple[str, ...]
    hf: str
    inputs: int | None = None

    @property
    def stacked(self) -> bool:
        return self.axes[0] == "layers"

    @property
    def name(self) -> str:
        return "/".join(self.path)

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        sizes = axis_sizes(config)
        return tuple(sizes[axis] for axis in self.axes)

    def hf_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Shape in a Hugging Face file, of one layer where stacked."""
        shape = self.shape(config)[1:] if self.stacked else self.shape(config)
        if self.inputs is None:
            return shape
        summed, kept = math.prod(shape[: self.inputs]), math.prod(shape[self.inputs :])
        return (kept, summed) if self.inputs else (kept,)

    def to_hf(self, array: np.ndarray, config: ModelConfig) -> np.ndarray:
        """One layer's array in Hugging Face layout: a C-contiguous copy, since a view might alias a donated buffer."""
        shape = self.hf_shape(config)
        return np.array(array.reshape(shape[::-1]).T if self.inputs else array.reshape(shape), order="C")

    def from_hf(self, array: np.ndarray, config: ModelConfig) -> np.ndarray:
        """Inverse of `to_hf`; raises ValueError for another shape."""
        if array.shape != self.hf_shape(config):
            raise ValueError(f"has shape {tuple(array.shape)}, expected {self.hf_shape(config)}")
        return (array.T if self.inputs else array).reshape(self.shape(config)[1 if self.stacked else 0 :])


def _p(path: str, axes: str, hf: str, inputs: int | None = None) -> Parameter:
    prefix = "model.layers.{layer}." if axes.startswith("layers") else ""
    return Parameter(tuple(path.split("/")), tuple(axes.split()), prefix + hf, inputs)


# fmt: off
#   path                                 logical axes                      Hugging Face name, inputs
_CORE = (
    _p("embed/embedding",                "vocabulary embed",               "model.embed_tokens.weight"),
    _p("layers/attention_norm/scale",    "layers embed",                   "input_layernorm.weight"),
    _p("layers/attention/query/kernel",  "layers embed heads head_dim",    "self_attn.q_proj.weight", 1),
    _p("layers/attention/key/kernel",    "layers embed kv_heads head_dim", "self_attn.k_proj.weight", 1),
    _p("layers/attention/value/kernel",  "layers embed kv_heads head_dim", "self_attn.v_proj.weight", 1),
    _p("layers/attention/output/kernel", "layers heads head_dim embed",    "self_attn.o_proj.weight", 2),
    _p("layers/feed_forward_norm/scale", "layers embed",                   "post_attention_layernorm.weight"),
    _p("layers/feed_forward/gate/kernel", "layers embed mlp",              "mlp.gate_proj.weight", 1),
    _p("layers/feed_forward/up/kernel",  "layers embed mlp",               "mlp.up_proj.weight", 1),
    _p("layers/feed_forward/down/kernel", "layers mlp embed",              "mlp.down_proj.weight", 1),
    _p("final_norm/scale",               "embed",                          "model.norm.weight"),
)
_HEAD = (
    _p("head/kernel",                    "embed vocabulary",               "lm_head.weight", 1),
)
_QK_NORM = (
    _p("layers/attention/query_norm/scale", "layers head_dim",             "self_attn.q_norm.weight"),
    _p("layers/attention/key_norm/scale", "layers head_dim",               "self_attn.k_norm.weight"),
)
_BIAS = (
    _p("layers/attention/query/bias",    "layers heads head_dim",          "self_attn.q_proj.bias", 0),
    _p("layers/attention/key/bias",      "layers kv_heads head_dim",       "self_attn.k_proj.bias", 0),
    _p("layers/attention/value/bias",    "layers kv_heads head_dim",       "self_attn.v_proj.bias", 0),
)
# fmt: on


def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """The table's rows that a model of this config has."""
    return (
        *_CORE,
        *(() if config.tie_word_embeddings else _HEAD),
        *(_QK_NORM if config.qk_norm else ()),
        *(_BIAS if config.attention_bias else ()),
    )


def axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Size of every logical axis."""
    return {
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
        "embed": config.hidden_size,
        "mlp": config.intermediate_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
    }


def to_hf(config: ModelConfig, params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Every array under its Hugging Face name and in its layout, one layer at a time, in the table's order.

    Each leaf is fetched to the host when its turn comes; bfloat16 stays bfloat16 (ml_dtypes).
    """
    for row in parameters(config):
        leaf = np.asarray(jax.device_get(leaf_of(params, row)))
        if row.stacked:
            for layer in range(config.num_hidden_layers):
                yield row.hf.format(layer=layer), row.to_hf(leaf[layer], config)
        else:
            yield row.hf, row.to_hf(leaf, config)


def from_hf(config: ModelConfig, arrays: Mapping[str, np.ndarray] | Iterable[tuple[str, np.ndarray]]) -> Params:
    """Parameters from Hugging Face arrays, cast to `config.param_dtype`.

    Raises ValueError that names every missing, unexpected and misshapen array. A tied `lm_head.weight` is ignored.
    """
    given = dict(arrays)
    if config.tie_word_embeddings:
        given.pop("lm_head.weight", None)
    faults: list[str] = []
    params: Params = {}
    for row in parameters(config):
        layers = range(config.num_hidden_layers) if row.stacked else range(1)
        pieces = []
        for name in (row.hf.format(layer=layer) for layer in layers):
            try:
                pieces.append(row.from_hf(np.asarray(given.pop(name)), config))
            except KeyError:
                faults.append(f"{name} is missing")
            except ValueError as fault:
                faults.append(f"{name} {fault}")
        if not faults:
            leaf = np.stack(pieces) if row.stacked else pieces[0]
            # A copy: on CPU jnp.asarray may alias the given buffer, which its owner is free to change.
            params = with_leaf(params, row, jnp.array(leaf, jnp.dtype(config.param_dtype)))
    faults += [f"{name} is not part of this model" for name in given]
    if faults:
        shown = "; ".join(faults[:20]) + (f"; and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise ValueError(f"weights do not fit the model's config: {shown}")
    return params


def leaf_of(params: Params, row: Parameter) -> jax.Array:
    """The leaf at the row's path."""
    node = params
    for key in row.path:
        node = node[key]
    return node  # type: ignore[return-value]


def with_leaf(params: Params, row: Parameter, leaf: jax.Array) -> Params:
    """The same tree with the leaf at the row's path."""
    return _with(params, row.path, leaf)


def _with(node: Params, path: tuple[str, ...], leaf: jax.Array) -> Params:
    key, *rest = path
    return {**node, key: _with(node.get(key, {}), tuple(rest), leaf) if rest else leaf}

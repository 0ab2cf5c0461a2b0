"""The table of parameters: for each its path in our tree, its logical axes, and its Hugging Face name and layout.

Loading, export, shapes and sharding all read this table and nothing else.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cojax.policy.config import ModelConfig

Params = dict[str, Any]  # a nested dict of arrays, layer leaves stacked [L, ...] and experts' [L, E, ...]


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One leaf. `axes` are logical; leading "layers" and "experts" are stacked: Hugging Face has one array for each.

    `hf_name` then holds a {layer} and an {expert}. `input_axes` counts the axes, after the stacked ones, that a matrix
    product sums over: Hugging Face stores (out, in) matrices, so those axes are flattened and moved last. None means
    stored unchanged, 0 a flattened vector.
    """

    path: tuple[str, ...]
    axes: tuple[str, ...]
    hf_name: str
    input_axes: int | None = None

    @property
    def lead_axes(self) -> tuple[str, ...]:
        """The leading axes that Hugging Face does not have."""
        return tuple(itertools.takewhile(lambda axis: axis in ("layers", "experts"), self.axes))

    @property
    def name(self) -> str:
        return "/".join(self.path)

    def shape(self, config: ModelConfig) -> tuple[int, ...]:
        sizes = list_axis_sizes(config)
        return tuple(sizes[axis] for axis in self.axes)

    def hf_names(self, config: ModelConfig) -> Iterator[tuple[tuple[int, ...], str]]:
        """(index into the stacked axes, Hugging Face name) of every array that makes up the leaf."""
        lead_axes = self.lead_axes
        for stack_index in np.ndindex(*self.shape(config)[: len(lead_axes)]):
            indices = dict(zip(lead_axes, stack_index, strict=True))
            yield stack_index, self.hf_name.format(layer=indices.get("layers"), expert=indices.get("experts"))

    def hf_shape(self, config: ModelConfig) -> tuple[int, ...]:
        """Shape of one such array in a Hugging Face file."""
        shape = self.shape(config)[len(self.lead_axes) :]
        if self.input_axes is None:
            return shape
        fan_in, fan_out = math.prod(shape[: self.input_axes]), math.prod(shape[self.input_axes :])
        return (fan_out, fan_in) if self.input_axes else (fan_out,)

    def to_hf(self, array: np.ndarray, config: ModelConfig) -> np.ndarray:
        """One array in Hugging Face layout: a C-contiguous copy, since a view might alias a donated buffer."""
        shape = self.hf_shape(config)
        return np.array(array.reshape(shape[::-1]).T if self.input_axes else array.reshape(shape), order="C")

    def from_hf(self, array: np.ndarray, config: ModelConfig) -> np.ndarray:
        """Inverse of `to_hf`, a view; raises ValueError for another shape."""
        if array.shape != self.hf_shape(config):
            raise ValueError(f"has shape {tuple(array.shape)}, expected {self.hf_shape(config)}")
        return (array.T if self.input_axes else array).reshape(self.shape(config)[len(self.lead_axes) :])


def parameters(config: ModelConfig) -> tuple[Parameter, ...]:
    """The rows of its family that a model of this config has."""
    return tuple(
        Parameter(tuple(path.split("/")), tuple(axes.split()), hf_name, input_ndim)
        for path, axes, hf_name, input_ndim in config.family.rows
        if not (path == "head/kernel" and config.tie_word_embeddings)
    )


def list_axis_sizes(config: ModelConfig) -> dict[str, int]:
    """Size of every logical axis."""
    return {
        "layers": config.num_hidden_layers,
        "vocabulary": config.vocab_size,
        "embed": config.hidden_size,
        "mlp": config.moe_intermediate_size if config.sparse else config.intermediate_size,
        "experts": config.num_experts,
        "router": config.num_experts,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
    }


def to_hf(config: ModelConfig, params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every array with its Hugging Face name, in that layout and in the table's order.

    Arrays on an accelerator or a mesh are fetched to the host one at a time; bfloat16 stays bfloat16 (ml_dtypes).
    """
    for parameter in parameters(config):
        leaf = get_leaf(params, parameter)
        # On one CPU device this is a view, which is much cheaper to index than a JAX array.
        is_on_cpu = len(leaf.devices()) == 1 and next(iter(leaf.devices())).platform == "cpu"
        stack = np.asarray(leaf) if is_on_cpu or not parameter.lead_axes else leaf
        for index, hf_name in parameter.hf_names(config):
            yield hf_name, parameter.to_hf(np.asarray(stack[index]), config)


def from_hf(
    config: ModelConfig,
    arrays: Mapping[str, np.ndarray] | Iterable[tuple[str, np.ndarray]],
    dtype_of: Callable[[ModelConfig, Parameter], str] = lambda config, parameter: config.param_dtype,
    make_leaf: Callable[[Parameter, np.ndarray], Any] = lambda parameter, leaf: jnp.asarray(leaf),
) -> Params:
    """Parameters from Hugging Face arrays, each cast to the dtype that `dtype_of` gives.

    `make_leaf` makes a parameter's leaf from its array on the host, which it may keep. Apart from finished leaves,
    memory holds only those still being filled. A tied `lm_head.weight` is ignored. Raises ValueError that names every
    missing, unexpected and misshapen array.
    """
    destination_by_name = {name: (row, index) for row in parameters(config) for index, name in row.hf_names(config)}
    remaining_counts = Counter(parameter.path for parameter, _ in destination_by_name.values())
    stacks: dict[tuple[str, ...], np.ndarray] = {}
    faults: list[str] = []
    params: Params = {}
    for name, array in arrays.items() if isinstance(arrays, Mapping) else arrays:
        if name == TIED_HEAD and config.tie_word_embeddings:
            continue
        if name not in destination_by_name:
            faults.append(f"{name} is not part of this model")
            continue
        parameter, index = destination_by_name.pop(name)
        # A leaf of its own: on CPU jnp.asarray may alias the given array, which its owner is free to change.
        if parameter.path not in stacks:
            stacks[parameter.path] = np.empty(parameter.shape(config), jnp.dtype(dtype_of(config, parameter)))
        try:
            stacks[parameter.path][index] = parameter.from_hf(np.asarray(array), config)
        except ValueError as error:
            faults.append(f"{name} {error}")
        remaining_counts[parameter.path] -= 1
        if not remaining_counts[parameter.path] and not faults:
            params = with_leaf(params, parameter, make_leaf(parameter, stacks.pop(parameter.path)))
    raise_faults([f"{name} is missing" for name in destination_by_name] + faults)
    return params


TIED_HEAD = "lm_head.weight"  # some files of tied models hold the embedding once more under this name


def raise_faults(faults: list[str]) -> None:
    """Raises ValueError that lists the first twenty faults of a set of arrays, if it has any."""
    if faults:
        listing = "; ".join(faults[:20]) + (f"; and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise ValueError(f"weights do not fit the model's config: {listing}")


def get_leaf(params: Params, parameter: Parameter) -> jax.Array:
    """The leaf at the parameter's path."""
    return functools.reduce(operator.getitem, parameter.path, params)  # type: ignore[arg-type, return-value]


def with_leaf(params: Params, parameter: Parameter, leaf: jax.Array) -> Params:
    """The same tree with the leaf at the parameter's path."""
    return _put_leaf(params, parameter.path, leaf)


def _put_leaf(tree: Params, path: tuple[str, ...], leaf: jax.Array) -> Params:
    key, *inner_keys = path
    return {**tree, key: _put_leaf(tree.get(key, {}), tuple(inner_keys), leaf) if inner_keys else leaf}


_UINT_BY_SIZE = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


def hash_leaves(tree: Any) -> str:
    """32 hexadecimal digits from the bits, shapes and dtypes of all leaves in order, computed on their devices.

    Two trees of one shape that differ in any bit have the same fingerprint with a probability of about 2⁻⁶⁴. It does
    not protect against someone who looks for such a pair.
    """
    leaves = jax.tree.leaves(tree)
    sha = hashlib.sha256(repr([(leaf.shape, str(leaf.dtype)) for leaf in leaves]).encode())
    sha.update(np.asarray(_hash_sums(leaves)).tobytes())
    return sha.hexdigest()[:32]


@jax.jit
def _hash_sums(leaves: list[jax.Array]) -> jax.Array:
    """uint32[leaves, 2]: two different sums over the numbers of a leaf, each number mixed with its index."""
    leaf_sums = []
    for leaf in leaves:
        bits = jax.lax.bitcast_convert_type(leaf, _UINT_BY_SIZE[leaf.dtype.itemsize]).astype(jnp.uint32)
        # The index is computed axis by axis: flattening an array that is spread over devices would gather it.
        position = jnp.zeros(leaf.shape, jnp.uint32)
        for axis, size in enumerate(leaf.shape):
            position = position * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, leaf.shape, axis)
        hashes = _mix_bits(bits + _mix_bits(position))
        leaf_sums.append(jnp.stack([hashes.sum(dtype=jnp.uint32), _mix_bits(hashes ^ position).sum(dtype=jnp.uint32)]))
    return jnp.stack(leaf_sums)


def _mix_bits(bits: jax.Array) -> jax.Array:
    """A bijection of 32 bits after which each bit depends on all (the constants are lowbias32's)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def evaluate(function: Callable[[Any], Any], tree: Any) -> Any:
    """Calls function(tree); of a tree of ShapeDtypeStruct it returns the result's ShapeDtypeStructs."""
    is_abstract = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree))
    return jax.eval_shape(function, tree) if is_abstract else function(tree)


def jit_policy(function: Callable[..., Any], config: ModelConfig | None = None, **options: Any) -> Any:
    """`jax.jit` of a function of a policy, whose first argument is the `config` unless that is given here.

    It rounds where the function does; XLA otherwise drops a rounding to bfloat16 before float32. Products of a float32
    policy are of float32, unless JAX is set to a precision; the default of GPUs is TF32, that of TPUs bfloat16.
    """

    @functools.wraps(function)
    def compute(*arguments: Any, **settings: Any) -> Any:
        precision = "highest" if (config or arguments[0]).dtype == "float32" else None
        with jax.default_matmul_precision(jax.config.values["jax_default_matmul_precision"] or precision):
            return function(*arguments, **settings)

    return jax.jit(compute, compiler_options={"xla_allow_excess_precision": False}, **options)


def choose_dtype(config: ModelConfig, parameter: Parameter) -> str:
    """The dtype in which a parameter takes part in products; a router's product is float32."""
    is_matrix = parameter.path[0] == "embed" or (bool(parameter.input_axes) and "router" not in parameter.axes)
    return config.dtype if is_matrix else config.param_dtype


def cast_for_compute(config: ModelConfig, params: Params) -> Params:
    """The same policy, bit for bit, with matrices as `config.dtype`; small vectors and routers keep their dtype.

    Leaves that already have that dtype are not copied, and layouts over a mesh stay. ShapeDtypeStructs stay such,
    without a layout.
    """

    def cast(params: Params) -> Params:
        for parameter in parameters(config):
            params = with_leaf(params, parameter, get_leaf(params, parameter).astype(choose_dtype(config, parameter)))
        return params

    return evaluate(cast, params)

"""The shape of a decoder, in the fields of a Hugging Face config.json (Llama, Qwen2, Qwen2.5, Qwen3, Qwen3-MoE).

Rotary frequencies are plain, scaled linearly, by YaRN or as in Llama 3.1.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from cojax.durable import open_regular_file
from cojax.policy.family import FULL, LLAMA, QWEN2, QWEN3, QWEN3_MOE, SLIDING, Family

# Names that an entry of each type may hold; an unknown name could change the arithmetic unnoticed.
_ROPE_FIELDS: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "yarn": frozenset(
        {
            "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow",
            "mscale", "mscale_all_dim", "truncate",
        }
    ),
    "llama3": frozenset({"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"}),
}  # fmt: skip
_COMMON_ROPE_FIELDS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How frequencies are stretched for positions beyond those of pretraining.

    `kind` "linear" divides all of them by `factor`. "yarn" (arXiv 2309.00071, §3) keeps those that turn more than
    `beta_fast` times within `original_max_position_embeddings` positions, divides those that turn less than `beta_slow`
    times, interpolates between the two, and multiplies cos and sin by `attention_factor`. "llama3" (Llama 3.1) does so
    between `high_freq_factor` and `low_freq_factor`; it interpolates linearly in the turns and does not scale cos and
    sin.
    """

    kind: str
    factor: float
    original_max_position_embeddings: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "yarn", "llama3"):
            raise ValueError(f"rope scaling {self.kind!r} is not supported; available: linear, yarn, llama3")
        for key in ("factor", "beta_fast", "beta_slow", "high_freq_factor"):
            if not 0 < getattr(self, key) < math.inf:
                raise ValueError(f"rope scaling has {key} {getattr(self, key)}; expected a positive number")
        if self.factor < 1:
            raise ValueError(f"rope scaling has factor {self.factor}; expected at least 1")
        if self.kind != "linear" and self.original_max_position_embeddings < 1:
            raise ValueError(f"{self.kind} needs original_max_position_embeddings, the positions seen in pretraining")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope scaling has low_freq_factor {self.low_freq_factor} and high_freq_factor "
                f"{self.high_freq_factor}; expected the first above 0 and below the second"
            )


def compute_frequencies(theta: float, head_dim: int, scaling: RopeScaling | None) -> tuple[np.ndarray, float]:
    """The angle per position of each pair, float32[head_dim / 2], and the factor on cos and sin.

    It rounds to float32 where Hugging Face does: at position 30,000 one bit of difference is an angle of 0.002.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    periods = np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)
    rates = np.float32(1) / periods
    if scaling is None:
        return rates, 1.0
    if scaling.kind == "linear":
        return rates / np.float32(scaling.factor), 1.0
    if scaling.kind == "llama3":
        turn_counts = np.float32(scaling.original_max_position_embeddings) / (np.float32(2 * math.pi) / rates)
        low_turns, high_turns = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
        unscaled_share = np.clip((turn_counts - low_turns) / (high_turns - low_turns), 0, 1)
        return (np.float32(1) - unscaled_share) * rates / np.float32(scaling.factor) + unscaled_share * rates, 1.0
    scaled_rates = np.float32(1) / (np.float32(scaling.factor) * periods)
    unscaled_share = np.float32(1) - _compute_stretched_share(theta, head_dim, scaling)
    return scaled_rates * (np.float32(1) - unscaled_share) + rates * unscaled_share, scaling.attention_factor


def _compute_stretched_share(theta: float, head_dim: int, scaling: RopeScaling) -> np.ndarray:
    """float32[head_dim / 2]: 0 where a pair turns often enough to stay as it is, 1 where it is stretched."""

    def find_pair_index(n: float) -> float:
        """The index of the pair that makes `n` turns within the original positions."""
        return head_dim * math.log(scaling.original_max_position_embeddings / (n * 2 * math.pi)) / (2 * math.log(theta))

    first_pair, last_pair = find_pair_index(scaling.beta_fast), find_pair_index(scaling.beta_slow)
    if scaling.truncate:
        first_pair, last_pair = math.floor(first_pair), math.ceil(last_pair)
    first_pair, last_pair = max(first_pair, 0), min(last_pair, head_dim - 1)
    ramp_width = last_pair - first_pair or 0.001
    return np.clip((np.arange(head_dim // 2, dtype=np.float32) - np.float32(first_pair)) / np.float32(ramp_width), 0, 1)


def read_rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """rope_theta and scaling of a config.json.

    Newer files hold both in `rope_parameters`, older ones `rope_theta` at the top and the rest in `rope_scaling`.
    Raises ValueError, naming field and value, for a scaling that `compute_frequencies` does not compute.
    """
    key = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    rope = hf.get(key) or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"config.json has {key}={rope!r:.80}; expected an object")
    # Files written while the format was changing have both; the entry's theta wins.
    theta = rope.get("rope_theta") or (hf.get("rope_parameters") or {}).get("rope_theta") or hf.get("rope_theta")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in _ROPE_FIELDS:
        raise ValueError(f"config.json has {key} of type {kind!r:.80}; available: {', '.join(_ROPE_FIELDS)}")
    if unknown_names := sorted(set(rope) - _ROPE_FIELDS[kind] - _COMMON_ROPE_FIELDS):
        raise ValueError(
            f"config.json has {key}.{unknown_names[0]:.80}={rope[unknown_names[0]]!r:.80}, unknown for type {kind!r}"
        )
    partial_factor = rope.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1
    if partial_factor != 1:
        raise ValueError(f"config.json has partial_rotary_factor={partial_factor!r:.80}; only 1 is supported")
    return float(theta or 10_000.0), None if kind == "default" else _read_scaling(kind, rope, key, hf)


def _read_scaling(kind: str, rope: Mapping[str, Any], key: str, hf: Mapping[str, Any]) -> RopeScaling:
    max_length = hf.get("max_position_embeddings") or 0
    positions = hf.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or max_length
    if kind == "yarn" and positions and rope.get("factor") is None:
        rope = {**rope, "factor": max_length / positions}
    # transformers has no defaults for these.
    for factor_name in ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",):
        if not isinstance(rope.get(factor_name), (int, float)):
            raise ValueError(f"config.json has {key}.{factor_name}={rope.get(factor_name)!r:.80}; expected a number")
    factor = float(rope["factor"])
    if kind == "linear":
        return RopeScaling(kind, factor)
    if kind == "llama3":
        low_factor, high_factor = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        return RopeScaling(kind, factor, int(positions), low_freq_factor=low_factor, high_freq_factor=high_factor)
    att_factor = _read_attention_factor(factor, rope)
    if not 0 < att_factor < math.inf:
        raise ValueError(f"config.json has {key} with attention factor {att_factor}; expected a positive number")
    beta_fast, beta_slow = float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1)
    return RopeScaling(kind, factor, int(positions), att_factor, beta_fast, beta_slow, bool(rope.get("truncate", True)))


def _read_attention_factor(factor: float, rope: Mapping[str, Any]) -> float:
    """`attention_factor` if the entry has one; else 0.1 · ln(factor) + 1 (YaRN, eq. 22), or the ratio of two such
    values if the entry has both `mscale`."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])

    def compute_factor(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0

    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return compute_factor(rope["mscale"]) / compute_factor(rope["mscale_all_dim"])
    return compute_factor(1.0)


def write_rope(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The fields that `read_rope` reads, both as `rope_parameters` and as `rope_theta` with `rope_scaling`."""
    if scaling is None:
        return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    field_names = _ROPE_FIELDS[scaling.kind]
    scaling_fields = {key: value for key, value in dataclasses.asdict(scaling).items() if key in field_names}
    rope = {"rope_type": scaling.kind, **scaling_fields}
    return {"rope_theta": theta, "rope_scaling": rope, "rope_parameters": {**rope, "rope_theta": theta}}


_DTYPES = ("float32", "bfloat16", "float16")
_SPARSE_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
_MAX_NUMBER = 2**31 - 1  # the largest size
MAX_HEADER_BYTES = 100_000_000  # bytes of JSON; more is a damaged length, not a header
# Limits for what is created one by one.
_MAX_COUNT_BY_FIELD: Mapping[str, int] = {"num_hidden_layers": 1_000, "num_experts": 1_024}


class DamagedFile(ValueError):
    """A file was altered or cut, or does not have this format."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder. Raises DamagedFile for any other content, OSError without a file."""
    with open(path, "rb", opener=open_regular_file) as file:
        content = file.read(MAX_HEADER_BYTES + 1)
    try:
        if len(content) > MAX_HEADER_BYTES:
            raise ValueError(f"it has more than {MAX_HEADER_BYTES} bytes")
        json_value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}; expected a JSON object") from error
    if not isinstance(json_value, dict):
        raise DamagedFile(f"{path} holds {type(json_value).__name__}, expected an object")
    return json_value


FAMILIES: Mapping[str, Family] = {"llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "qwen3_moe": QWEN3_MOE}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder. `dtype` is that of computation, `param_dtype` that of stored parameters; head_dim 0 means
    hidden_size / heads.

    `model_type` names the family, an entry of FAMILIES. In a family with experts, every layer sends each token through
    `num_experts_per_tok` of `num_experts` experts of width `moe_intermediate_size`, and intermediate_size is unused;
    `norm_topk_prob` makes the chosen experts' weights sum to 1. `rope_scaling` None is plain rotary embedding.
    `sliding_window` is the reach of the family's sliding layers; 0 is no window.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 0
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 32_768
    dtype: str = "float32"
    param_dtype: str = "float32"
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    norm_topk_prob: bool = False
    rope_scaling: RopeScaling | None = None
    sliding_window: int = 0
    model_type: str = "qwen3"

    @property
    def family(self) -> Family:
        """The family named by `model_type`."""
        return FAMILIES[self.model_type]

    @property
    def sparse(self) -> bool:
        """Whether the feed-forward parts are mixtures of experts."""
        return self.num_experts > 0

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The kind of every layer; all of them are FULL without a window."""
        layer_kinds = self.family.layers if self.sliding_window else (FULL,)
        return tuple(itertools.islice(itertools.cycle(layer_kinds), self.num_hidden_layers))

    @property
    def layer_windows(self) -> tuple[int, ...] | None:
        """The window of every layer, the largest number where it has none; None where no layer has one."""
        windows = tuple(self.sliding_window if kind == SLIDING else _MAX_NUMBER for kind in self.layer_types)
        return windows if self.sliding_window else None

    def __post_init__(self) -> None:
        if self.model_type not in FAMILIES:
            raise ValueError(f"model_type {self.model_type!r:.80} is not supported; available: {', '.join(FAMILIES)}")
        if isinstance(self.rope_scaling, Mapping):  # read from JSON
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))
        _check_numbers(self)
        if self.sparse != self.family.sparse:
            raise ValueError(
                f"num_experts is {self.num_experts}, but layers of {self.model_type} have "
                f"{'some' if self.family.sparse else 'none'}; change it or model_type ({', '.join(FAMILIES)})"
            )
        if self.sliding_window and SLIDING not in self.family.layers:
            raise ValueError(
                f"sliding_window is {self.sliding_window}, but no layer of {self.model_type} is {SLIDING}; expected 0"
            )
        if not (self.tie_word_embeddings or self.family.has_parameter("head/kernel")):
            raise ValueError(f"tie_word_embeddings is False, but {self.model_type} has no head; expected True")
        if not self.head_dim:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                    f"{self.num_attention_heads}; give head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}; every key head serves equally many query heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding turns pairs, give an even one")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok {self.num_experts_per_tok} exceeds num_experts {self.num_experts}; "
                "a token cannot visit more experts than there are"
            )
        if self.rope_scaling is not None and self.rope_theta <= 1:
            raise ValueError(f"rope_theta is {self.rope_theta}; expected more than 1 with rope scaling")
        for dtype_name in (self.dtype, self.param_dtype):
            if dtype_name not in _DTYPES:
                raise ValueError(f"dtype {dtype_name!r:.80} is not supported; available: {', '.join(_DTYPES)}")

    @classmethod
    def from_hf(cls, source: Mapping[str, Any] | str | Path, **overrides: Any) -> "ModelConfig":
        """The config of a Hugging Face model: its config.json as a mapping, or the folder that holds one.

        `overrides` replace fields of the result, e.g. `dtype="bfloat16"`. Raises ValueError for a field whose value
        this decoder does not support, FileNotFoundError where the folder has no config.json.
        """
        hf_config = source if isinstance(source, Mapping) else read_object(Path(source) / "config.json")
        try:
            return cls(**{**_read_fields(hf_config), **overrides})
        # A field is missing or of another kind, a number overflows, or a value is too deep to print.
        except (TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"config.json is damaged or incomplete: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """A config.json that transformers reads as the class of the family."""
        family = self.family
        omitted_names = {"param_dtype", "rope_theta", "rope_scaling", "sliding_window"}
        omitted_names |= set() if self.sparse else set(_SPARSE_FIELDS)
        window_fields = {"sliding_window": self.sliding_window, "layer_types": list(self.layer_types)}
        return {
            "architectures": [family.architecture],
            **{name: value for name, value in dataclasses.asdict(self).items() if name not in omitted_names},
            "attention_bias": family.attention_bias,
            "dtype": self.param_dtype,
            "torch_dtype": self.param_dtype,
            **write_rope(self.rope_theta, self.rope_scaling),
            "hidden_act": family.hidden_act,
            "use_sliding_window": self.sliding_window > 0,
            **(window_fields if self.sliding_window else {}),
            **family.extras,
        }


def _read_fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Reads the fields of a `ModelConfig` from a config.json. Raises ValueError for a value that is not supported."""
    family = FAMILIES.get(hf.get("model_type"))  # type: ignore[arg-type]
    if family is None:
        raise ValueError(f"model_type {hf.get('model_type')!r:.80} is not supported; available: {', '.join(FAMILIES)}")
    field_names = {field.name for field in dataclasses.fields(ModelConfig)}
    # Some families' files name a window although no layer has one.
    field_names -= set() if SLIDING in family.layers else {"sliding_window"}
    field_values = family.defaults(hf) | {name: hf[name] for name in field_names if hf.get(name) is not None}
    _refuse_unsupported(hf, family, family.layers if field_values.get("sliding_window") else (FULL,))
    field_values["rope_theta"], field_values["rope_scaling"] = read_rope(
        {**hf, "rope_theta": hf.get("rope_theta") or family.rope_theta}
    )
    field_values["tie_word_embeddings"] = bool(field_values.get("tie_word_embeddings"))
    field_values["dtype"] = field_values["param_dtype"] = hf.get("dtype") or hf.get("torch_dtype") or "float32"
    if family.sparse:
        return field_values | _read_sparse_fields(hf)
    return {name: value for name, value in field_values.items() if name not in _SPARSE_FIELDS}


def _check_numbers(config: ModelConfig) -> None:
    """Raises ValueError for a size that is not a whole number, and for a number that no model can have."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        is_whole, is_real = (isinstance(value, cls) and not isinstance(value, bool) for cls in (Integral, Real))
        max_value = _MAX_COUNT_BY_FIELD.get(field.name, _MAX_NUMBER)
        if field.type is int and not (is_whole and value <= max_value):
            raise ValueError(f"{field.name} is {value!r:.80}; expected a whole number of at most {max_value:,}")
        if field.type is float and not (is_real and math.isfinite(value)):
            raise ValueError(f"{field.name} is {value!r:.80}; expected a finite number")
        may_be_0 = field.name in ("head_dim", "sliding_window") or (field.name in _SPARSE_FIELDS and not config.sparse)
        if (is_whole or is_real) and value <= 0 and not (value == 0 and may_be_0):
            raise ValueError(f"{field.name} is {value}; expected a positive number")


def _refuse_unsupported(hf_config: Mapping[str, Any], family: Family, layer_kinds: tuple[str, ...]) -> None:
    """Raises ValueError, naming the field, for a value that changes the arithmetic and is not supported."""
    requirements = {"hidden_act": family.hidden_act, "use_sliding_window": SLIDING in layer_kinds, "mlp_bias": False}
    requirements["attention_bias"] = family.attention_bias
    for field_name, requirement in {**requirements, **family.requirements}.items():
        value = hf_config.get(field_name)
        if value is not None and value != requirement:
            scope_text = f"for {family.model_type} only" if field_name == "attention_bias" else "only"
            raise ValueError(f"config.json has {field_name}={value!r:.80}; {scope_text} {requirement!r} is supported")
    for value, requirement in zip(hf_config.get("layer_types") or (), itertools.cycle(layer_kinds), strict=False):
        if value != requirement:
            raise ValueError(f"config.json has layer_types with {value!r:.80}; only {requirement!r} is supported there")
    if hf_config.get("quantization_config"):
        raise ValueError("config.json has quantization_config; only unquantised weights are supported")


def _read_sparse_fields(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """The experts' fields. Raises ValueError for one that is missing."""
    # transformers 5 writes the number of experts under another name.
    hf_fields = {**hf_config, "num_experts": hf_config.get("num_experts") or hf_config.get("num_local_experts")}
    hf_fields["norm_topk_prob"] = bool(hf_config.get("norm_topk_prob"))
    if missing_names := [name for name in _SPARSE_FIELDS if hf_fields.get(name) is None]:
        raise ValueError(f"config.json is incomplete: {missing_names[0]} is missing; qwen3_moe needs it")
    return {name: hf_fields[name] for name in _SPARSE_FIELDS}

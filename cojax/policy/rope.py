"""Rotary frequencies: plain, linearly scaled, by YaRN or as in Llama 3.1, by a Hugging Face config.json."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

# Names that an entry of each type may hold; an unknown name could change the arithmetic unnoticed.
_KNOWN: Mapping[str, frozenset[str]] = {
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
_NAMES = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How frequencies are stretched for positions beyond those of pretraining.

    `kind` "linear" divides all of them by `factor`. "yarn" (arXiv 2309.00071, §3) keeps those that turn more than
    `beta_fast` times within `original_max_position_embeddings` positions, divides those that turn less than `beta_slow`
    times, interpolates between the two, and multiplies cos and sin by `attention_factor`. "llama3" (Llama 3.1) does the
    same with the bounds `high_freq_factor` and `low_freq_factor`, interpolates linearly in the turns and leaves cos and
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
        for name in ("factor", "beta_fast", "beta_slow", "high_freq_factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"rope scaling has {name} {getattr(self, name)}; expected a positive number")
        if self.factor < 1:
            raise ValueError(f"rope scaling has factor {self.factor}; expected at least 1")
        if self.kind != "linear" and self.original_max_position_embeddings < 1:
            raise ValueError(f"{self.kind} needs original_max_position_embeddings, the positions seen in pretraining")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope scaling has low_freq_factor {self.low_freq_factor} and high_freq_factor "
                f"{self.high_freq_factor}; expected the first above 0 and below the second"
            )


def frequencies(theta: float, size: int, scaling: RopeScaling | None) -> tuple[np.ndarray, float]:
    """Angle per position of each pair, float32[size / 2], and the factor on cos and sin.

    It rounds to float32 where Hugging Face does: at position 30,000 a difference in the last bit is an angle of 0.002.
    """
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    periods = np.power(float(theta), exponents.astype(np.float64)).astype(np.float32)
    plain = np.float32(1) / periods
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / np.float32(scaling.factor), 1.0
    if scaling.kind == "llama3":
        turns = np.float32(scaling.original_max_position_embeddings) / (np.float32(2 * math.pi) / plain)
        low, high = np.float32(scaling.low_freq_factor), np.float32(scaling.high_freq_factor)
        share = np.clip((turns - low) / (high - low), 0, 1)
        return (np.float32(1) - share) * plain / np.float32(scaling.factor) + share * plain, 1.0
    stretched = np.float32(1) / (np.float32(scaling.factor) * periods)
    kept = np.float32(1) - _ramp(theta, size, scaling)
    return stretched * (np.float32(1) - kept) + plain * kept, scaling.attention_factor


def _ramp(theta: float, size: int, scaling: RopeScaling) -> np.ndarray:
    """float32[size / 2]: 0 where a pair turns often enough to be kept, 1 where it is stretched."""

    def pair(turns: float) -> float:
        """The pair that makes so many turns within the original positions."""
        return size * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    return np.clip((np.arange(size // 2, dtype=np.float32) - np.float32(low)) / np.float32(width), 0, 1)


def read_rope(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """rope_theta and scaling of a config.json.

    Newer files hold both in `rope_parameters`, older ones `rope_theta` at the top and the rest in `rope_scaling`.
    Raises ValueError, naming field and value, for a scaling that `frequencies` does not compute.
    """
    name = "rope_scaling" if hf.get("rope_scaling") else "rope_parameters"
    entry = hf.get(name) or {}
    if not isinstance(entry, Mapping):
        raise ValueError(f"config.json has {name}={entry!r:.80}; expected an object")
    # The theta within the entry wins; files written while the format changed have both.
    theta = entry.get("rope_theta") or (hf.get("rope_parameters") or {}).get("rope_theta") or hf.get("rope_theta")
    kind = entry.get("rope_type") or entry.get("type") or "default"
    if kind not in _KNOWN:
        raise ValueError(f"config.json has {name} of type {kind!r:.80}; available: {', '.join(_KNOWN)}")
    if unknown := sorted(set(entry) - _KNOWN[kind] - _NAMES):
        raise ValueError(
            f"config.json has {name}.{unknown[0]:.80}={entry[unknown[0]]!r:.80}, unknown for type {kind!r}"
        )
    partial = entry.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1
    if partial != 1:
        raise ValueError(f"config.json has partial_rotary_factor={partial!r:.80}; only 1 is supported")
    return float(theta or 10_000.0), None if kind == "default" else _scaling(kind, entry, name, hf)


def _scaling(kind: str, entry: Mapping[str, Any], name: str, hf: Mapping[str, Any]) -> RopeScaling:
    reach = hf.get("max_position_embeddings") or 0
    original = hf.get("original_max_position_embeddings") or entry.get("original_max_position_embeddings") or reach
    if kind == "yarn" and original and entry.get("factor") is None:
        entry = {**entry, "factor": reach / original}
    # transformers has no defaults for these.
    for field in ("factor", "low_freq_factor", "high_freq_factor") if kind == "llama3" else ("factor",):
        if not isinstance(entry.get(field), (int, float)):
            raise ValueError(f"config.json has {name}.{field}={entry.get(field)!r:.80}; expected a number")
    factor = float(entry["factor"])
    if kind == "linear":
        return RopeScaling(kind, factor)
    if kind == "llama3":
        low, high = float(entry["low_freq_factor"]), float(entry["high_freq_factor"])
        return RopeScaling(kind, factor, int(original), low_freq_factor=low, high_freq_factor=high)
    attention_factor = _attention_factor(factor, entry)
    if not 0 < attention_factor < math.inf:
        raise ValueError(f"config.json has {name} with attention factor {attention_factor}; expected a positive number")
    fast, slow = float(entry.get("beta_fast") or 32), float(entry.get("beta_slow") or 1)
    return RopeScaling(kind, factor, int(original), attention_factor, fast, slow, bool(entry.get("truncate", True)))


def _attention_factor(factor: float, entry: Mapping[str, Any]) -> float:
    """`attention_factor` where it is given; else 0.1 · ln(factor) + 1 (YaRN, eq. 22), or a ratio of two such values
    where both `mscale` are given."""
    if entry.get("attention_factor") is not None:
        return float(entry["attention_factor"])

    def scale_factor(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0

    if entry.get("mscale") and entry.get("mscale_all_dim"):
        return scale_factor(entry["mscale"]) / scale_factor(entry["mscale_all_dim"])
    return scale_factor(1.0)


def write_rope(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The fields that `read_rope` reads, both as `rope_parameters` and as `rope_theta` with `rope_scaling`."""
    if scaling is None:
        return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    known = _KNOWN[scaling.kind]
    values = {field: value for field, value in dataclasses.asdict(scaling).items() if field in known}
    entry = {"rope_type": scaling.kind, **values}
    return {"rope_theta": theta, "rope_scaling": entry, "rope_parameters": {**entry, "rope_theta": theta}}

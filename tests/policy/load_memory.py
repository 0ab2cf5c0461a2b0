"""Writes a random model, or loads one and prints the peak of this process's memory: `load_memory.py write|load …`.

    python tests/policy/load_memory.py write dense FOLDER WIDTH     writes a bfloat16 model; its size in MB
    python tests/policy/load_memory.py load FOLDER                  one JSON object: MB and seconds

A width of 1792 (dense, 22 layers) or 1024 (moe, 10 layers of 32 experts) gives about 2 GB; the embedding is the largest
tensor.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np


def shape(kind: str, width: int) -> dict[str, object]:
    """config.json of a model whose size grows with the square of its width."""
    common = {
        "vocab_size": 50_000, "hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": width // 128,
        "num_key_value_heads": width // 256, "head_dim": 128, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    }  # fmt: skip
    if kind == "dense":
        return {**common, "model_type": "qwen3", "num_hidden_layers": 22}
    experts = {"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": width, "norm_topk_prob": True}
    return {**common, **experts, "model_type": "qwen3_moe", "num_hidden_layers": 10}


def write(kind: str, folder: Path, width: int) -> None:
    from cojax.policy.config import ModelConfig
    from cojax.policy.parameters import parameters
    from cojax.policy.pretrained import write_tensors

    hf = shape(kind, width)
    config = ModelConfig.from_hf(hf)
    draw = np.random.default_rng(0)
    outlines = {n: ("BF16", r.hf_shape(config)) for r in parameters(config) for _, n in r.hf_names(config)}

    def arrays() -> Iterator[tuple[str, np.ndarray]]:
        for name, (_, size) in outlines.items():
            values = 0.02 * draw.standard_normal(size, dtype=np.float32)
            yield name, values.astype(ml_dtypes.bfloat16)

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf))
    write_tensors(folder / "model.safetensors", outlines, arrays())
    print(sum(2 * math.prod(size) for _, size in outlines.values()) / 1e6)


def measure(folder: Path) -> dict[str, float]:
    import jax

    import cojax

    began = time.perf_counter()
    policy = cojax.load(folder)
    seconds = time.perf_counter() - began
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    sizes = [leaf.nbytes for leaf in jax.tree.leaves(policy.params)]
    largest = policy.params["embed"]["embedding"].nbytes
    return {
        "seconds": seconds,
        "resident": sum(sizes) / 1e6,
        "largest": largest / 1e6,
        "peak": int(peak[1]) * 1024 / 1e6,
    }


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
    else:
        print(json.dumps(measure(Path(sys.argv[2]))))

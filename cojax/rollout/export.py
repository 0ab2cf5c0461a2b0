"""Model folders in HF format: what leaves cojax for a server or a hub, and what comes in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from cojax.policy.config import ModelConfig
from cojax.policy.parameters import from_hf, to_hf
from cojax.policy.transformer import Params


def save_model(folder: Path, config: ModelConfig, params: Params, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes a model folder that `transformers` loads: config.json, model.safetensors, tokenizer files."""
    save_file(
        {name: np.ascontiguousarray(array) for name, array in to_hf(config, params)}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config.to_hf(), indent=1))
    tokenizer.save_pretrained(folder)


def load_params(folder: Path, config: ModelConfig) -> Params:
    """The parameters of a model folder. Raises FileNotFoundError when it holds no model.safetensors, ValueError
    for a damaged one."""
    path = folder / "model.safetensors"
    if not path.exists():
        raise FileNotFoundError(f"no model.safetensors in {folder}; expected a model folder in HF format")
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}. Delete {folder} and make it again.") from error
    return from_hf(config, arrays.items())

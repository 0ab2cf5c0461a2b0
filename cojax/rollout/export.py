"""Model folders in HF format: what leaves cojax for a server or a hub, and what comes in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jax.sharding import Mesh

from cojax.policy.config import ModelConfig
from cojax.policy.model_folder import read_params, write_model
from cojax.policy.parameters import Params
from cojax.policy.tensor_files import DamagedFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def save_model(folder: Path, config: ModelConfig, params: Params, tokenizer: PreTrainedTokenizerBase) -> None:
    """Writes a model folder that `transformers` loads: config.json, weights, tokenizer files."""
    write_model(folder, config, params)
    tokenizer.save_pretrained(folder)


def load_params(folder: Path, config: ModelConfig, mesh: Mesh | None = None) -> Params:
    """The parameters of a model folder, one tensor at a time into place; over the mesh where one is given.

    Raises FileNotFoundError when the folder holds no weights, ValueError for damaged ones and for those of another
    model.
    """
    try:
        return read_params(folder, config, mesh)
    except DamagedFile as error:
        raise DamagedFile(f"{error} Delete {folder} and make it again.") from error

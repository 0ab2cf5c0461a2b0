"""Tokenizer, shape and base model beside a run's checkpoints: written again where they are lost, and then verified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from cojax.policy.config import ModelConfig
from cojax.policy.transformer import Params
from cojax.storage.run_directory import RunDirectory
from cojax.storage.verify import Verified
from experiments import policies, trained


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: RunDirectory, found: Verified | None) -> None:
    """Saves the tokenizer of a run. A run that goes on from `found` saves it only where it is lost or was never noted.

    Raises ValueError where the run began with another tokenizer, StorageError where a file comes out different.
    """
    folder = directory.folder / "tokenizer"
    lost = found is None or not found.checked or directory.files.lacks(folder.name)
    policies.keep_tokenizer(tokenizer, folder, begun=found is not None, lost=lost)
    if found is not None:
        directory.files.prove(folder.name)


def keep_model(
    model: ModelConfig, params: Params, config: Mapping[str, Any], directory: RunDirectory, found: Verified | None
) -> None:
    """Writes model.json and base/ of a run as `keep_tokenizer` does. A base that was never noted stays as it is."""
    places = ("model.json", "base")
    noted = found is not None and (found.checked or bool(config["learner"]["lora"]["rank"]))
    begun = noted and not any(map(directory.files.lacks, places))
    trained.keep(directory.folder, model, params, config, begun)
    if found is not None:
        for name in places:
            directory.files.prove(name)

"""`load` and `Policy`: a model's config and parameters, from a model folder or the Hugging Face hub."""

import dataclasses
import functools
import re
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import ArrayLike

from cojax.policy import logprobs, model_folder, transformer
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.sharding import ROWS, batch_sharding, devices_along


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """π_θ. `params` is the pytree that training and export use, spread over `mesh`; None is one device."""

    config: ModelConfig
    params: Params
    mesh: Mesh | None = None

    def logits(self, tokens: ArrayLike) -> jax.Array:
        """float32[B, T, V]: scores of the token after each one, for rows int32[B, T] of one text each.

        Compiled once per shape. Raises ValueError for tokens of another shape or outside the vocabulary.
        """
        return self._rows(_logits, tokens)

    def logprobs(self, tokens: ArrayLike) -> jax.Array:
        """float32[B, T]: log π of each token given those before it, 0 for the first; no [B, T, V] array is made."""
        return self._rows(_logprobs, tokens)

    def save(self, folder: str | Path) -> None:
        """Writes the model in HF format, as `transformers` loads it; tokenizer files are the caller's to add."""
        model_folder.write_model(Path(folder), self.config, self.params)

    def _rows(self, compute: Callable[..., jax.Array], tokens: ArrayLike) -> jax.Array:
        given = np.asarray(tokens)
        if given.ndim != 2 or not given.size or not np.issubdtype(given.dtype, np.integer):
            raise ValueError(f"tokens are {given.dtype}{list(given.shape)}; expected int32[B, T]")
        if given.min() < 0 or given.max() >= self.config.vocab_size:
            raise ValueError(
                f"tokens span {given.min()}–{given.max()}; the vocabulary has 0–{self.config.vocab_size - 1}"
            )
        rows, length = given.shape
        # Devices get equally many rows, so padding rows may be needed.
        parts = devices_along(self.mesh, *ROWS)
        padded = np.pad(given.astype(np.int32), ((0, -rows % parts), (0, 0)))
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), padded.shape)
        batch = (padded, positions, np.ones_like(padded))
        if self.mesh is not None:
            batch = jax.device_put(batch, batch_sharding(self.mesh))
        return compute(self.config, self.params, *batch, mesh=self.mesh)[:rows]


def load(folder_or_hub_id: str | Path, mesh: Mesh | None = None, dtype: str | None = None) -> Policy:
    """The policy of a model folder in HF format, or of a hub id such as "Qwen/Qwen3-0.6B", which is downloaded once.

    With a `mesh` every tensor goes straight to its devices. `dtype` ("float32", "bfloat16", "float16") is that of
    parameters and computation; None means the model's own. No tokenizer is needed. Raises FileNotFoundError for a name
    that is neither a folder nor on the hub, ValueError for an unsupported config and for weights that do not fit it.
    """
    folder = resolve(folder_or_hub_id)
    overrides = {} if dtype is None else {"dtype": jnp.dtype(dtype).name, "param_dtype": jnp.dtype(dtype).name}
    config = ModelConfig.from_hf(model_folder.read_config_json(folder), **overrides)
    return Policy(config, model_folder.read_params(folder, config, mesh), mesh)


def resolve(folder_or_hub_id: str | Path) -> Path:
    """The local folder of a model, downloaded where it is a hub id. Raises FileNotFoundError."""
    folder = Path(folder_or_hub_id)
    if folder.is_dir():
        return folder
    name = str(folder_or_hub_id)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith((".", "/")):
        raise FileNotFoundError(f"{name!r} is no folder; expected a model folder in HF format, or a hub id OWNER/NAME")
    # Imported here: a local folder needs no network library.
    from huggingface_hub import snapshot_download

    try:
        patterns = ["config.json", "model*.safetensors", "model.safetensors.index.json"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:
        raise FileNotFoundError(
            f"{name!r} is no folder, and the hub did not give it: {type(error).__name__}: {error}. "
            "Check the name and the network, or download the model elsewhere and give its folder."
        ) from error


@functools.partial(jax.jit, static_argnums=0, static_argnames="mesh")
def _logits(config: ModelConfig, params: Params, *rows: jax.Array, mesh: Mesh | None) -> jax.Array:
    return transformer.logits(config, params, transformer.hidden_states(config, params, *rows, mesh=mesh))


_logprobs = jax.jit(logprobs.token_logprobs, static_argnums=0, static_argnames="mesh")

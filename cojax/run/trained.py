"""Reads a policy from disk: the shape, tokenizer and parameters of a checkpoint or of a model folder.

A run keeps these files for its checkpoints:

    WORKDIR/tokenizer/     tokenizer and chat template
    WORKDIR/model.json     the decoder's shape, the dtype it computes in, a name for the base, and `origin`
    WORKDIR/base/          the policy before the first step, as a model folder, where a checkpoint needs it and no other
                           folder has it: as the base of adapters, or as the reference of a warm-started model folder

`origin`, also in summary.json and result.json, says what the policy began as, what it was shown before its first
step, and how it was trained since:

    folder           the model folder it began as, "" for a policy from scratch
    weights          SHA-256 of that folder's weights, where demonstrations were shown
    shown            how many different demonstrations it learned from; missing in runs of older releases
    demonstrations   how many were played, and how many of these were `dropped` because they are longer than a row
    batches, epochs  batches of demonstrations, and how often each one that was shown was learned on average
    lora_rank        rank of the adapters that learned them, 0 where all weights did
    checks           the scores on the way, of a policy from a model folder
    steps, evolve    steps of training since, and how the task set grew; in summary.json and result.json
"""

import dataclasses
import types
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from transformers import PreTrainedTokenizerBase

from cojax.durable import crc32, open_regular_file
from cojax.policy.adapters import Lora, initialize_adapters, merge
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params, cast_for_compute, hash_leaves, parameters, to_hf
from cojax.policy.pretrained import read_config_json
from cojax.rollout.engine import Weights
from cojax.rollout.export import load_params, load_tokenizer
from cojax.run.machine import choose_compute_dtype
from cojax.run.processes import ALONE, Together, read_params, write_params
from cojax.settings.compatibility import read_run_settings
from cojax.storage.checkpoint import Checkpointer, CheckpointError
from cojax.storage.files import read_json, write_json

_MODEL_FILE, _TOKENIZER_FOLDER, _BASE_FOLDER = "model.json", "tokenizer", "base"
_FIX_HINT = "Restore it from a copy"


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """A policy read from disk; `step` is 0 for a model folder, `content` is a checksum of its files.

    Parameters have the dtype `model.param_dtype`, except matrices with merged adapters, which have `model.dtype`.
    """

    model: ModelConfig
    tokenizer: PreTrainedTokenizerBase
    params: Params
    step: int
    content: str

    def weights(self) -> Weights:
        """Returns the weights for an engine, in the dtype in which updates compute."""
        return Weights(self.step, lambda: to_hf(self.model, cast_for_compute(self.model, self.params)))


def keep(
    workdir: Path,
    model: ModelConfig,
    params: Params,
    config: Mapping[str, Any],
    has_begun: bool,
    origin: Mapping[str, Any] = types.MappingProxyType({}),
    reads_initial: bool = False,
    together: Together = ALONE,
) -> None:
    """Writes the files that a reader of the policy needs beside a checkpoint. A run that has begun keeps its own.

    `origin` is that of the initial policy. `reads_initial` says whether the run's loss reads the initial policy.
    """
    if has_begun and (workdir / _MODEL_FILE).exists():
        return
    has_lora = bool(config["learner"]["lora"]["rank"])
    needs_base = (tunes_model(config) and (has_lora or reads_initial)) or (has_lora and not config["model"]["path"])
    if needs_base:
        write_params(workdir / _BASE_FOLDER, model, params, together)
    record: dict[str, Any] = {}
    if needs_base or has_lora:
        with together.hosts.operation("fingerprint", params) as finish:
            record["base"] = finish(hash_leaves(params))
    if origin:
        record["origin"] = dict(origin)
    write_json(workdir / _MODEL_FILE, {"config": model.to_hf(), "dtype": model.dtype, **record})


def kept_base(workdir: Path, model: ModelConfig, mesh: Mesh | None = None, together: Together = ALONE) -> Params | None:
    """Reads the parameters in base/ of a run; None if there are none, or if their fingerprint was not recorded.

    Raises CheckpointError if they have changed since.
    """
    folder = workdir / _BASE_FOLDER
    recorded_digest = _read_record(workdir).get("base")
    if recorded_digest is None or not folder.is_dir():
        return None
    params = read_params(together, str(folder), model, 0, mesh)
    with together.hosts.operation("fingerprint", params) as finish:
        digest = finish(hash_leaves(params))
    if recorded_digest != digest:
        raise CheckpointError(f"{folder} is not what {workdir} began with: its weights were changed since. {_FIX_HINT}")
    return params


def _read_record(workdir: Path) -> dict[str, Any]:
    """Reads model.json of a run; {} if it has none. Raises CheckpointError for a damaged one."""
    path = workdir / _MODEL_FILE
    try:
        return read_json(path) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. {_FIX_HINT}") from error


def tunes_model(config: Mapping[str, Any]) -> bool:
    """Whether the policy begins as a model folder that is then shown demonstrations."""
    return bool(config["model"]["path"] and config["warm_start"]["steps"])


def of_run(workdir: Path, step: int | None = None, base: str | Path = "") -> TrainedPolicy:
    """Reads the policy of a run's checkpoint: that of `step`, or the newest sound one.

    Adapters are summed into their base; `base` is the folder of the base if that has moved. No file is changed. Raises
    CheckpointError for files that are missing, damaged or do not fit.
    """
    config = read_run_settings(workdir)
    tokenizer = _read_tokenizer(workdir / _TOKENIZER_FOLDER, "keeps its tokenizer there; restore it from a copy")
    model = find_shape(workdir, config, tokenizer, base)
    lora_section = config["learner"]["lora"]
    lora = Lora(**{**lora_section, "targets": tuple(lora_section["targets"])}) if lora_section["rank"] else None
    if lora:
        new_adapters = jax.eval_shape(lambda: initialize_adapters(model, lora, 0))
        shape_by_name = {name: leaf.shape for name, leaf in _flatten(new_adapters).items()}
    else:
        shape_by_name = {spec.name: spec.shape(model) for spec in parameters(model)}
    # A forged shape is refused before it takes memory.
    checkpointer = Checkpointer(workdir / "checkpoints")
    step, arrays, checksum = checkpointer.part("params", step, lambda tree: _check_shapes(tree, shape_by_name, workdir))
    if not lora:
        dtype = str(next(iter(_flatten(arrays).values())).dtype)
        model = dataclasses.replace(model, param_dtype=dtype)
        return TrainedPolicy(model, tokenizer, jax.device_put(arrays, _find_host_device()), step, checksum)
    base_params = cast_for_compute(model, _read_base(workdir, config, model, base))
    params = merge(model, lora, base_params, jax.tree.map(jnp.asarray, arrays))
    return TrainedPolicy(model, tokenizer, params, step, checksum)


def read_folder_policy(folder: Path, model: ModelConfig) -> TrainedPolicy:
    """Reads the policy of a model folder in HF format, with its tokenizer. Raises ValueError or OSError."""
    tokenizer = _read_tokenizer(folder, "must hold its tokenizer and chat template too")
    return TrainedPolicy(model, tokenizer, load_params(folder, model), 0, hash_content(folder))


def cast(policy: TrainedPolicy, dtype: str) -> TrainedPolicy:
    """Returns the policy with all its parameters stored as `dtype`."""
    params = jax.tree.map(lambda array: array.astype(jnp.dtype(dtype)), policy.params)
    return dataclasses.replace(policy, model=dataclasses.replace(policy.model, param_dtype=dtype), params=params)


def find_shape(
    workdir: Path, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, base: str | Path = ""
) -> ModelConfig:
    """Finds the shape and dtype of a run's policy: from model.json, or without it as the run itself derives them.

    Raises CheckpointError.
    """
    model_path, model_section = workdir / _MODEL_FILE, config["model"]
    try:
        if model_path.exists():
            return kept_shape(workdir)
        if model_section["path"]:
            return read_folder_shape(config, _find_model_folder(workdir, model_section["path"], base))
        return make_scratch_shape(model_section, tokenizer)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the shape of the policy of {workdir} cannot be read: {error}") from error


def kept_shape(workdir: Path) -> ModelConfig:
    """Reads the shape in a run's model.json. Raises OSError if it is missing, ValueError or KeyError if damaged."""
    record = read_json(workdir / _MODEL_FILE)
    return ModelConfig.from_hf(record["config"], dtype=record["dtype"])


def read_folder_shape(config: Mapping[str, Any], folder: Path) -> ModelConfig:
    """Reads the shape of a model folder, with the dtypes of the configuration."""
    folder_config, section = ModelConfig.from_hf(read_config_json(folder)), config["model"]
    dtype = _resolve_dtype(section["dtype"], folder_config.dtype)
    # Adapters leave the model frozen: it is only computed with.
    param_dtype = dtype if config["learner"]["lora"]["rank"] else section["param_dtype"] or folder_config.param_dtype
    return dataclasses.replace(folder_config, dtype=dtype, param_dtype=param_dtype)


def make_scratch_shape(model_section: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> ModelConfig:
    """Returns the shape of a policy from scratch, by the section `model` of a configuration."""
    dtype, param_dtype = _resolve_dtype(model_section["dtype"], "float32"), model_section["param_dtype"] or "float32"
    shape_settings: dict[str, Any] = {**model_section["shape"], "dtype": dtype, "param_dtype": param_dtype}
    # Matrix products are faster where sizes are multiples of 16.
    return ModelConfig(vocab_size=-(-len(tokenizer) // 16) * 16, **shape_settings)


def _resolve_dtype(dtype_setting: str, default: str) -> str:
    return choose_compute_dtype() if dtype_setting == "auto" else dtype_setting or default


def find_run_dtype(workdir: Path) -> str | None:
    """The model.dtype that a run recorded, "" where it left the dtype to the model folder; None where no run is."""
    return str(read_run_settings(workdir)["model"]["dtype"]) if (workdir / "config.json").exists() else None


def hash_content(folder: Path) -> str:
    """Returns a checksum of the files of a model folder, which names its content."""
    checksum = 0
    for file_path in sorted(folder.iterdir()):
        if file_path.suffix in (".safetensors", ".json", ".jinja", ".txt") and file_path.is_file():
            checksum = zlib.crc32(f"{file_path.name} {file_path.stat().st_size} ".encode(), checksum)
            with open(file_path, "rb", opener=open_regular_file) as model_file:
                checksum = crc32(model_file, checksum)
    return f"{checksum:08x}"


def _read_base(workdir: Path, config: Mapping[str, Any], model: ModelConfig, base: str | Path) -> Params:
    """Reads the base of a run's adapters, and verifies it if the run recorded its fingerprint."""
    model_path = config["model"]["path"]
    own_folder, is_taught = workdir / _BASE_FOLDER, tunes_model(config)
    if is_taught and own_folder.is_dir():
        base = own_folder  # wherever the model folder of a warm start is now, its weights are not the base
    folder = own_folder if not base and (is_taught or not model_path) else _find_model_folder(workdir, model_path, base)
    if not folder.is_dir():
        raise CheckpointError(
            f"{workdir} holds adapters (learner.lora.rank={config['learner']['lora']['rank']}), and their base "
            f"{folder} is gone; restore that folder from a copy"
        )
    try:
        params = load_params(folder, model)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the base of the adapters of {workdir} cannot be read: {error}") from error
    if _read_record(workdir).get("base", digest := hash_leaves(params)) != digest:
        raise CheckpointError(
            f"{folder} is not what the adapters of {workdir} were trained beside: its weights were changed since. "
            f"{_FIX_HINT}"
        )
    return params


def _find_model_folder(workdir: Path, model_path: str, base: str | Path) -> Path:
    """Returns the model folder that a run began from, or `base` if given. Raises CheckpointError if it is missing."""
    folder = Path(base or model_path)
    if not folder.is_dir():
        raise CheckpointError(
            f"{workdir} began from the model folder {model_path}, which it still needs, and {folder} is not a folder. "
            "Put it back, or name its new place, by --base=FOLDER of the export or --config.model.path=FOLDER of the "
            "evaluation"
        )
    return folder


def _read_tokenizer(folder: Path, need_text: str) -> PreTrainedTokenizerBase:
    try:
        return load_tokenizer(folder)
    except ValueError as error:
        raise CheckpointError(f"no tokenizer in {folder}: a policy {need_text} ({error})") from error


def _check_shapes(arrays: Any, layout: Mapping[str, tuple[int, ...]], workdir: Path) -> None:
    """Raises CheckpointError if the arrays do not fit the run's own settings."""
    shapes = {name: leaf.shape for name, leaf in _flatten(arrays).items()}
    if mismatches := sorted(name for name in shapes.keys() | layout.keys() if shapes.get(name) != layout.get(name)):
        name = mismatches[0]
        raise CheckpointError(
            f"the checkpoint in {workdir} does not fit its own settings: {len(mismatches)} arrays differ, first "
            f"{name}: found {shapes.get(name, 'none')}, expected {layout.get(name, 'none')}. Its config.json or "
            "model.json was changed: restore them from a copy"
        )


def _find_host_device() -> jax.Device:
    """Returns the CPU if JAX has it as a device: float32 parameters trained on many devices may not fit on one."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return jax.local_devices()[0]


def _flatten(tree: Any) -> dict[str, Any]:
    """Flattens a tree to path → leaf."""
    return {"/".join(str(key.key) for key in path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def make_origin(folder: str, weights_hash: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the origin of a warm-started policy, from `warm_start.read_record`; `folder` is "" from scratch."""
    warm_start_settings, checks = record["key"]["settings"], record["checks"]
    batch_count = checks[-1]["step"]
    return {
        "folder": folder,
        **({"weights": weights_hash} if folder else {}),
        **{count_name: record[count_name] for count_name in ("demonstrations", "dropped", "shown")},
        "batches": batch_count,
        "epochs": round(batch_count * warm_start_settings["batch_size"] / record["shown"], 2),
        "lora_rank": warm_start_settings["lora"]["rank"] if folder else 0,
        **({"checks": checks} if folder else {}),
    }


def read_origin(workdir: Path, step: int | None = None) -> dict[str, Any]:
    """Reads the origin of a run's policy: before its first step, or after `step`. Raises OSError or ValueError."""
    settings, record_path = read_run_settings(workdir), workdir / "model.json"
    origin = read_json(record_path).get("origin", {}) if record_path.exists() else {}
    if not origin:
        # A run of an older release: a model folder was recorded only where it was shown demonstrations.
        lacks_demonstrations = settings["model"]["path"] or not settings["warm_start"]["steps"]
        origin = {"folder": settings["model"]["path"], **({"shown": 0} if lacks_demonstrations else {})}
    return origin if step is None else {**origin, "steps": step, "evolve": settings["evolve"]}

"""The model that a suite measures: a named shape with random weights, or a model folder with its own."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.shapes import model_config
from cojax.policy.config import ModelConfig
from cojax.policy.parameters import Params
from cojax.policy.pretrained import read_config_json, read_params
from cojax.policy.transformer import initialize

DEFAULT_SHAPE, DEFAULT_DTYPE = "nano", "float32"


@dataclasses.dataclass(frozen=True)
class Model:
    """`name` is that of the shape or the folder; `make_params` makes new ones, in `config.param_dtype`."""

    name: str
    config: ModelConfig
    make_params: Callable[[], Params]


def choose_model(
    shape: str | None,
    folder: str | None,
    layers: int | None,
    override: Sequence[str],
    dtype: str | None,
    param_dtype: str | None = None,
) -> Model:
    """The model of `folder`, or of `shape` (None: nano) with `layers` and `override` as in `model_config`.

    `dtype` is that of computation (None: the folder's own, or float32), `param_dtype` that of parameters (None: that of
    computation). Raises ValueError for both a shape and a folder, for `layers` or `override` with a folder, and for
    what is no model folder.
    """
    if folder is None:
        config = model_config(shape or DEFAULT_SHAPE, layers, override, dtype or DEFAULT_DTYPE, param_dtype)
        return Model(shape or DEFAULT_SHAPE, config, lambda: initialize(config, 0))
    if shape is not None:
        raise ValueError("--folder and --shape both name the model; give one of them")
    if layers is not None or override:
        raise ValueError("--layers, --depths and --override change a --shape; a --folder is measured as it is")
    path = Path(folder)
    try:
        file_config = ModelConfig.from_hf(read_config_json(path))
    except FileNotFoundError as error:
        raise ValueError(f"--folder={folder}: {error}; make smollm2 makes one") from error
    except ValueError as error:
        raise ValueError(f"--folder={folder}: {error}") from error
    compute_dtype = dtype or file_config.dtype
    config = dataclasses.replace(file_config, dtype=compute_dtype, param_dtype=param_dtype or compute_dtype)
    return Model(path.resolve().name, config, lambda: read_params(path, config))

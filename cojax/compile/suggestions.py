"""Which settings would make a learner fit that does not: estimated from exact sizes, not compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from cojax.compile.report import device_bytes
from cojax.compile.targets import Chip
from cojax.learner.learner import Learner
from cojax.learner.update import TrainState
from cojax.run import methods
from cojax.settings.base import put

_SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_LARGEST_SHARE = 0.92
_SHORTEST_ROW = 1024
_RANK = 16
Settings = dict[str, Any]
Outlined = Callable[[ConfigDict], tuple[Learner, TrainState]]


def suggestion(config: ConfigDict, found: Mapping[str, Any], chip: Chip, outlined: Outlined) -> dict[str, Any]:
    """The first setting with which the learner is estimated to fit, or the fewest of them in order.

    Arguments are exact. Of the temporaries the gradients are exact, and the rest is taken to be proportional to the
    tokens that go through the model at a time. So an estimate needs a compilation to confirm it. `settings` is empty
    where none is estimated to fit.
    """
    before = outlined(config)
    single = list(changes(config, before[0], chip))
    together = [_merged(single[: count + 1]) for count in range(1, len(single))]
    for settings in (*single, *together):
        share = float(settings.get(_SHARE, 0.0))
        limit = int(chip.memory * share) if share else chip.limit
        if (peak := estimated_peak(config, found, before, settings, outlined)) <= limit:
            return {"settings": settings, "bytes_peak_estimated": peak, "bytes_limit": limit}
    return {"settings": {}}


def changes(config: ConfigDict, learner: Learner, chip: Chip) -> Iterator[Settings]:
    """Changes that make an update smaller: first those that change no result, then less precision, then what is
    learned from, last what learns."""
    if chip.platform == "cuda" and chip.limit < int(chip.memory * _LARGEST_SHARE):
        yield {_SHARE: _LARGEST_SHARE}
    if learner.remat != "layers":
        yield {"learner.remat": "layers"}
    if learner.micro_rows > (shards := learner.placement.row_shards):
        yield {"learner.micro_rows": shards}
    if config.mesh.data > 1:
        yield {"mesh.data": 1, "mesh.fsdp": config.mesh.data * config.mesh.fsdp}
    full = learner.lora is None
    if full and not config.optimizer.moments_dtype and learner.config.param_dtype == "float32":
        yield {"optimizer.moments_dtype": "bfloat16"}
    if full and learner.config.param_dtype == "float32":
        yield {"model.param_dtype": "bfloat16"}
    if learner.config.dtype == "float32":
        yield {"model.dtype": "bfloat16"}
    length = learner.row_length // 2
    while length >= _SHORTEST_ROW:
        yield {"learner.row_length": length, "engine.max_length": min(length, config.engine.max_length)}
        length //= 2
    if full:
        yield {"learner.lora.rank": _RANK}


def estimated_peak(
    config: ConfigDict,
    found: Mapping[str, Any],
    before: tuple[Learner, TrainState],
    settings: Mapping[str, Any],
    outlined: Outlined,
) -> int:
    """Bytes of a device at the peak with these settings, estimated from the report without them."""
    changed = config.copy_and_resolve_references()
    with changed.unlocked(), changed.ignore_type():
        for name, value in settings.items():
            if name != _SHARE:
                put(changed, name, value)
    after = outlined(changed)
    update = found["programs"]["update"]
    tokens = [learner.micro_rows // learner.placement.row_shards * learner.row_length for learner, _ in (before, after)]
    gradients = [device_bytes(state.params) for _, state in (before, after)]
    activations = max(0, update["bytes_peak"] - update["bytes_argument"] - gradients[0])
    held = methods.agents(config) * device_bytes(after[1]) + device_bytes(after[0].reference)
    return held + gradients[1] + activations * tokens[1] // tokens[0]


def _merged(several: list[Settings]) -> Settings:
    return {name: value for settings in several for name, value in settings.items()}

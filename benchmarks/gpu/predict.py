"""The memory of the suite's updates as the compiler for an H100 says: python -m benchmarks.gpu.predict FILE

It runs where that compiler is installed; kit.py calls it.
"""

import sys
from pathlib import Path

from cojax.compile.command import prepare_environment

if __name__ == "__main__":
    prepare_environment()

import jax

from benchmarks.gpu.parts import UPDATE_SETTINGS
from benchmarks.shapes import model_config
from benchmarks.update import Rows, make_learner
from cojax.compile import targets
from cojax.compile.programs import report
from cojax.learner.optimizer import adamw
from cojax.policy.sharding import make_mesh
from cojax.policy.transformer import initialize
from cojax.storage.files import write_json

_TARGET_NAME = "h100x1"


def predict(shape: str, rows: Rows) -> dict[str, float]:
    """GB that the update's program takes at most, of arguments and in all."""
    target = targets.find_target(_TARGET_NAME)
    config = model_config(shape, None, (), UPDATE_SETTINGS["dtype"], "float32")
    mesh = make_mesh(devices=targets.make_devices(target))
    learner = make_learner(config, rows, adamw(1e-6), UPDATE_SETTINGS["remat"], mesh=mesh)
    state = learner.init(jax.eval_shape(lambda: initialize(config, 0)))
    memory_report = report(learner, state, [1] * rows.row_count, target.chip)
    return {"predicted_gb": memory_report["bytes_peak"] / 1e9}


def main() -> None:
    rows = Rows(UPDATE_SETTINGS["rows"], UPDATE_SETTINGS["row_length"], 1, UPDATE_SETTINGS["micro_rows"])
    prediction_by_shape = {shape: predict(shape, rows) for shape in ("1.7b", "4b")}
    write_json(Path(sys.argv[1]), prediction_by_shape)


if __name__ == "__main__":
    main()

"""Your own tools, with the default settings: train on tasks that are found in your environment and proved by execution.

    python -m experiments.run --config=experiments/tools.py --config.environment.name=mypackage.module \\
        --config.model.path=models/Qwen3-4B

docs/tools.md says how to make an environment of a few functions. Its settings are --config.environment.KEY. It needs no
evaluation tasks: where it has none, a fifth of the initial tasks is held out.

The same command with a small policy from scratch, on two CPU cores, in a few minutes:

    python -m experiments.run --config=experiments/tools.py --config.environment.name=mypackage.module \\
        --config.policy=tiny --config.steps=2

Hardware: depends on the model. Expected: not measured, because it depends on the environment.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/tools"
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    config.engine.max_length = 16_384
    config.learner.row_length = 16_384
    config.learner.micro_rows = 1
    config.evaluation.tasks = 200
    return config

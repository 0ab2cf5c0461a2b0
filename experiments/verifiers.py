"""A taskset of the package `verifiers`, with the default settings.

    python -m environments.install verifiers
    python -m experiments.run --config=experiments/verifiers.py --config.environment.module=my_taskset \\
        --config.environment.path=FOLDER --config.model.path=models/Qwen3-4B

docs/verifiers-and-openenv.md describes the settings. A taskset with tools and a State of its own trains on tasks that
are found with its tools and proved by execution, and is evaluated on its own. Any other trains on its own tasks and
synthesizes nothing: --config.evolve=none says so, and without it the run ends in its first seconds.

The same command with a small policy from scratch, on two CPU cores, in a few minutes; if the tasks bring no solutions
to learn from, it needs --config.warm_start.steps=0:

    python -m experiments.run --config=experiments/verifiers.py --config.environment.module=my_taskset \\
        --config.environment.path=FOLDER --config.policy=tiny --config.steps=2

Hardware: depends on the model. Expected: not measured, because it depends on the taskset.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/verifiers"
    config.environment.name = "verifiers"
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    config.engine.max_length = 16_384
    config.learner.row_length = 16_384
    config.learner.micro_rows = 1
    config.explorer.ending = ""  # a reply without a call ends the episode, as in the package
    config.explorer.width = 4  # every episode is a process
    config.evaluation.tasks = 200
    return config

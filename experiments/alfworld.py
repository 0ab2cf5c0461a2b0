"""ALFWorld: train on synthesized tasks alone, evaluate on the games in unseen rooms.

    python -m environments.install alfworld                # games that are generated here
    make sglang  # its servers run on the CPU; others by --config.sglang.python=V/bin/python or --config.sglang.urls
    hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B
    python -m experiments.run --config=experiments/alfworld.py

Hardware and results of such a policy: not measured here.

The benchmark's own games, once they are downloaded into FOLDER:

    ALFWORLD_DATA=FOLDER python -m environments.install alfworld --data=official
    python -m experiments.run --config=experiments/alfworld.py --config.environment.data=official

The same command with a policy of 0.9 million parameters, from scratch and at random, on two CPU cores. Every part is
real; it wins none of the games:

    python -m experiments.run --config=experiments/alfworld.py --config.policy=tiny --config.steps=2

The development split consists of games in the training rooms. See docs/text-worlds.md.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/alfworld"
    config.environment.name = "alfworld"
    config.environment.data = "tiny"  # tiny | official
    config.environment.instructions = "full"  # full | brief
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    config.engine.max_length = 8_192
    config.learner.row_length = 8_192
    config.learner.micro_rows = 1
    config.limits.max_turns = 50
    config.explorer.width = 4  # every episode is a process
    config.evaluation.tasks = 134
    config.evaluation.dev_tasks = 140
    return config

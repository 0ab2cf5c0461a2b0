"""ScienceWorld: train on synthesized tasks alone, evaluate on official variations of the thirty tasks.

    python -m environments.install scienceworld
    make sglang  # its servers run on the CPU; others by --config.sglang.python=V/bin/python or --config.sglang.urls
    hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B
    python -m experiments.run --config=experiments/scienceworld.py

Hardware and results of such a policy: not measured here.

The same command with a policy of 0.9 million parameters, from scratch and at random, on two CPU cores. Every part is
real; it solves none of the official tasks:

    python -m experiments.run --config=experiments/scienceworld.py --config.policy=tiny --config.steps=2

The development split is the official one. See docs/text-worlds.md.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/scienceworld"
    config.environment.name = "scienceworld"
    config.environment.data = "three"  # three | ten
    config.environment.instructions = "full"  # full | brief
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    # A description of a room takes 300 tokens, and an episode has up to 120 commands.
    config.engine.max_length = 20_480
    config.learner.row_length = 20_480
    config.learner.micro_rows = 1
    config.limits.max_turns = 120
    config.explorer.width = 4  # every episode is a process with a JVM
    config.evaluation.tasks = 90
    config.evaluation.dev_tasks = 90
    return config

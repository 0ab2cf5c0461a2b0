"""ALFWorld: train on synthesized tasks alone, evaluate on the official unseen rooms.

    python -m environments.install alfworld              # or --data=tiny: games generated here
    make sglang  # its servers run on the CPU; others by --config.sglang.python=V/bin/python or --config.sglang.urls
    hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B
    python -m experiments.run --config=experiments/alfworld.py

Hardware and results of such a policy: not measured here.

The same command with a policy of 0.9 million parameters, from scratch and at random, on two CPU cores. Every part is
real; it wins no official game:

    python -m environments.install alfworld --data=tiny
    python -m experiments.run --config=experiments/alfworld.py --config.policy=tiny --config.steps=2

The development split is that of seen rooms. See docs/alfworld.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/alfworld"
    config.environment.name = "alfworld"
    config.environment.data = "installed"  # installed | official | tiny
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

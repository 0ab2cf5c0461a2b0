"""BFCL multi-turn with the default settings: train on synthesized tasks alone, evaluate on all 200 tasks of base.

    python -m environments.install bfcl
    make sglang  # its servers run on the CPU; others by --config.sglang.python=V/bin/python or --config.sglang.urls
    hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B
    python -m experiments.run --config=experiments/bfcl.py

Hardware: the paper used eight H20 for this policy and does not say for how many hours; not measured here. Expected, as
the paper's figures and not ours: 26.5 % before training, 63.0 % after 120 steps of its own settings (paper.py).

The same command with a policy of 0.9 million parameters, from scratch and at random, on two CPU cores in two minutes.
Every part is real; it solves none of the 200 tasks:

    python -m experiments.run --config=experiments/bfcl.py --config.policy=tiny --config.steps=2

With --config.policy=tiny-warm it first learns the solutions of the development part by heart, in eleven minutes, and is
evaluated on the tasks of base that are not in it: 97 % of the former, none of the latter. It shows that success flows
from sampled text to the official verdict, but says nothing about learning.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/bfcl"
    config.environment.name = "bfcl"
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    # Full documentation of 18 to 34 tools is 14 to 26 kB, and a dialogue follows.
    config.engine.max_length = 16_384
    config.learner.row_length = 16_384
    config.learner.micro_rows = 1
    config.explorer.ending = ""  # a turn, and with the last one the episode, ends by an action without a call
    config.explorer.cut = 0.5
    config.explorer.width = 4  # every episode is a process
    config.explorer.separator = "\n\n[next turn]\n\n"
    config.evaluation.tasks = 200
    config.evaluation.dev_tasks = 100
    config.evaluation.by = "classes"
    return config

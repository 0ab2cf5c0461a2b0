"""AppWorld with the default settings: train on synthesized tasks, evaluate on all of test_normal.

    python -m environments.install appworld
    make sglang  # its servers run on the CPU; others by --config.sglang.python=V/bin/python or --config.sglang.urls
    hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B
    python -m experiments.run --config=experiments/appworld.py

Other policies of the paper: --config.policy=qwen2.5-7b (models/Qwen2.5-7B) and --config.policy=qwen3-30b-a3b
(models/Qwen3-30B-A3B). On several devices add --config.mesh.fsdp=-1.

Hardware: the paper used eight H20, sixteen for the largest, and does not say for how many hours; not measured here.
Expected, as the paper's figures and not ours, on test_normal before and after 120 steps of its own settings (paper.py):
task goal completion 16.67 and 35.71 % (Qwen3-4B), 1.19 and 27.98 % (Qwen2.5-7B), 31.55 and 54.76 % (Qwen3-30B-A3B). For
test_challenge and scenario goal completion run python -m experiments.evaluate on a checkpoint.

The same path with a policy of a million parameters, from scratch, on a small data root that the installed package
builds, on two CPU cores in minutes; it shows that every part works, but says nothing about learning:

    python -m environments.install appworld --data=tiny
    python -m experiments.run --config=experiments/appworld.py --config.policy=tiny --config.data=tiny --config.steps=2
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/appworld"
    config.environment.name = "appworld"
    config.environment.data = "official"  # official | tiny
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    # Thirty turns of code and what it prints.
    config.engine.max_length = 32_768
    config.learner.row_length = 32_768
    config.learner.micro_rows = 1
    config.limits.concurrency = 64  # worlds at once
    config.limits.environment_deadline = 180.0  # a verdict makes all calls again
    config.explorer.ending = "supervisor.complete_task"
    config.explorer.width = 4  # every episode is a process
    config.evaluation.split = "test_normal"
    config.evaluation.tasks = 168
    config.evaluation.dev_tasks = 57
    config.evaluation.challenge_split = "test_challenge"
    config.evaluation.challenge_tasks = 417
    return config

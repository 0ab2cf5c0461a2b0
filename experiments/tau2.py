"""τ² telecom in solo mode: train on synthesized tasks alone, evaluate on all 114 official tasks.

    python -m environments.install tau2
    make sglang  # its servers run on the CPU; others by --config.sglang.python=V/bin/python or --config.sglang.urls
    hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir models/Qwen3-4B
    python -m experiments.run --config=experiments/tau2.py

Hardware and results of such a policy: not measured here.

The same command with a policy of 0.9 million parameters, from scratch and at random, on two CPU cores. Every part is
real, but the policy text is left out of its prompt; it solves none of the 114 tasks:

    python -m experiments.run --config=experiments/tau2.py --config.policy=tiny --config.steps=2

The official division into 74 tasks and 40: --config.evaluation.split=test; see docs/tau2.md, also for retail and
airline, --config.environment.domain=retail and airline. There a model can play the customer:
--config.environment.user=model --config.environment.user_url=http://HOST:PORT/v1 --config.environment.user_model=NAME.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/tau2"
    config.environment.name = "tau2"
    config.environment.domain = "telecom"  # telecom | retail | airline
    config.environment.instructions = "official"  # official | workflow | brief
    config.environment.user = "written"  # written | model, in retail and airline
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    # The policy text and the documentation of 43 tools take 9,000 tokens, and an episode follows.
    config.engine.max_length = 20_480
    config.learner.row_length = 20_480
    config.learner.micro_rows = 1
    config.limits.max_turns = 50
    config.explorer.ending = "done"
    config.explorer.width = 4  # every episode is a process
    config.evaluation.tasks = 114
    config.evaluation.dev_tasks = 20
    return config

"""The whole loop with a pretrained language model on two CPU cores: shown a few demonstrations, then co-evolved.

    make demo-lm

It converts SmolLM2-135M-Instruct where that has not been done, and then runs
`python -m experiments.run --config=experiments/desk_smollm2.py`. See docs/pretrained.md.

Hardware: two CPU cores. Time: 101 minutes for the one run so far, beside other programs; 128 minutes of processor time.
Result: it fell from 68.7 % to 55.3 % of 300 held-out tasks. What is known of it stands in docs/pretrained.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from experiments import desk


def get_config() -> ConfigDict:
    config = desk.get_config()
    config.workdir = "runs/desk_smollm2"
    config.steps = 24
    config.batch_size = 8
    config.group_size = 8
    config.initial_tasks = 48
    config.evolve_every = 6
    config.checkpoint_every = 6  # a checkpoint of all weights and both moments has 1.6 GB
    config.checkpoints_kept = 1
    config.synthesis.contexts = 12
    config.synthesis.budget = 16

    config.model.path = "models/SmolLM2-135M-Instruct"
    config.model.tools = "none"  # shown by name and arguments, the tools would add 516 tokens to every episode
    config.model.dtype = "float32"
    config.model.param_dtype = "float32"
    config.warm_start.steps = 34
    config.warm_start.batch_size = 8
    config.warm_start.demonstrations = 272
    config.warm_start.epochs = True
    config.warm_start.lengthen = 0
    config.warm_start.target = 1.0
    config.warm_start.check_every = 34
    config.warm_start.check_tasks = 4  # scored once, at the end; the evaluation follows
    config.warm_start.noise_low = 0.0  # a pretrained model learns from few demonstrations: they make no mistakes
    config.warm_start.noise_high = 0.0
    config.warm_start.pretrained_learning_rate = 3e-4
    config.engine.name = "local"
    config.engine.slots = 32
    config.engine.lanes = 2
    config.engine.prefill_rows = 4  # what a tool says has about 12 tokens, and few episodes wait for it at a time
    config.limits.concurrency = 32
    config.engine.max_length = 512  # the longest demonstration has 500 tokens
    config.sampling.max_tokens = 64
    config.learner.row_length = 512
    config.learner.micro_rows = 1
    config.learner.remat = "dots"  # with rows one by one, 1.6 GB less than keeping all, and no slower
    config.optimizer.learning_rate = 2e-5  # the small policy's rate would destroy what was pretrained
    config.optimizer.decay_steps = 0
    config.evaluation.tasks = 300
    config.evaluation.dev_tasks = 24
    config.evaluation.every = 0  # 24 tasks would measure nothing
    return config

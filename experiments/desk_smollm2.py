"""A pretrained language model and its tasks co-evolve on two CPU cores: a few demonstrations, then GRPO.

    make demo-lm

It converts SmolLM2-135M-Instruct if that has not been done, and then runs
`python -m experiments.run --config=experiments/desk_smollm2.py`. See docs/pretrained.md.

The policy learns from the rewards of its own episodes, by adapters, and the task set grows around its signals.

Hardware: two CPU cores, 8 GB of memory. With one lane of the engine it took one core 30 minutes, and six more for the
demonstrations (cached afterwards). Success on 300 development tasks rose from 60.7 to 66.3 %, in one run.
docs/pretrained.md has what that shows and what not.
"""

from ml_collections import ConfigDict

from . import desk


def get_config() -> ConfigDict:
    config = desk.get_config()
    config.workdir = "runs/desk_smollm2"
    config.episodes = 1024  # of at most twelve steps: each plays until 16 groups are live, or 32 groups
    config.steps = 12
    config.batch_size = 16
    config.group_size = 4
    config.dynamic_sampling = 32  # with two or three live groups a step GRPO lost success
    config.initial_tasks = 48
    config.initial_explorer = "experiments.study.even:even"  # all tools alike
    config.evolve_every = 1
    config.checkpoint_every = 4
    config.checkpoints_kept = 1
    config.synthesis.contexts = 32
    config.synthesis.budget = 32
    config.learner.lora.rank = 16
    config.learner.lora.alpha = 32.0

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
    config.engine.prefill_rows = 4  # a tool's reply has about 12 tokens, and few episodes wait for one at a time
    config.limits.concurrency = 32
    config.engine.max_length = 512  # the longest demonstration has 500 tokens
    config.sampling.max_tokens = 64
    config.learner.row_length = 512
    config.learner.micro_rows = 1
    config.learner.remat = "dots"  # with single rows it takes 1.6 GB less than keeping all, and is no slower
    config.optimizer.learning_rate = 2e-4  # of adapters; all weights need a hundredth
    config.optimizer.warmup_steps = 1
    config.optimizer.decay_steps = 0
    config.evaluation.tasks = 300
    config.evaluation.dev_tasks = 24
    config.evaluation.every = 0  # 24 tasks would measure nothing
    return config

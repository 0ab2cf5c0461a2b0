"""The whole loop on two CPU cores: a policy trained from scratch and its task set evolve together in the desk.

    python -m experiments.run --config=experiments/desk.py

Hardware: two CPU cores, 4 GB. Time: 5 to 17 minutes, of which the warm start takes two (cached afterwards).
Expected: held-out success rises by 22 to 30 points; docs/demo.md lists five seeds.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/desk"
    config.environment.name = "desk"
    config.environment.isolated = False  # True: every episode in a process of its own; the same result, slower
    config.steps = 120
    config.fresh_fraction = 0.5

    config.model.tools = "none"  # the warm start teaches the tools; a row stays near 200 tokens
    config.model.shape.hidden_size = 128
    config.model.shape.intermediate_size = 512
    config.model.shape.num_hidden_layers = 4
    config.model.shape.num_attention_heads = 4
    config.model.shape.num_key_value_heads = 2
    config.warm_start.steps = 450
    config.warm_start.target = 0.40
    config.engine.max_length = 256
    config.engine.slots = 128
    config.engine.lanes = 2
    config.sampling.temperature = 1.0
    config.sampling.max_tokens = 24
    config.limits.max_turns = 12
    config.learner.row_length = 256
    config.learner.loss_settings.kl_coefficient = 0.0
    config.learner.micro_rows = 4
    config.optimizer.learning_rate = 5e-4
    config.optimizer.decay_steps = 120
    config.preference.learning_rate = 1e-4  # ETO's rate is for 7 billion parameters
    config.preference.epochs = 1  # a round is a step, of which there are many
    # Rarely used tools; nearly every whole sequence of calls is rare here.
    config.signal_settings.rare = ConfigDict({"pattern": 1, "percent": 2.0})
    config.explorer.stretch = (-1, -1, 0, 1)
    config.synthesis.per_context = 1
    config.synthesis.select = "even"  # the results in docs/demo.md were made with it
    config.validation.evaluation_similarity = 0.0  # the grammar words all tasks alike
    config.validation.evaluation_words = 0  # and joins any two tasks by "…, then …"
    config.validation.pool_similarity = 0.0
    return config

"""The desk, so small that four steps and an evolution take a minute: what the examples are tried on."""

from experiments import desk


def get_config():
    config = desk.get_config()
    config.workdir = "runs/small"
    config.steps = 4
    config.evolve_every = 2
    config.checkpoint_every = 2
    config.batch_size = config.group_size = 4
    config.initial_tasks = 12
    config.model.shape.hidden_size = 64
    config.model.shape.intermediate_size = 128
    config.model.shape.num_hidden_layers = 2
    config.warm_start.steps = 100
    config.warm_start.check_every = 100
    config.warm_start.check_tasks = 20
    config.warm_start.demonstrations = 1000
    config.evaluation.tasks = config.evaluation.dev_tasks = 20
    config.evaluation.every = 0
    config.engine.slots = config.limits.concurrency = 16
    config.synthesis.contexts = config.synthesis.budget = 6
    return config

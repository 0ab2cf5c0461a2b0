"""A desk of ten tools, on which a policy learns within two minutes: what the examples are tried on."""

from experiments import desk


def get_config():
    config = desk.get_config()
    config.workdir = "runs/small"
    config.environment.suites = config.environment.applications = 1
    config.environment.longest = 2
    config.steps = config.optimizer.decay_steps = 24
    config.evolve_every = config.checkpoint_every = 6
    config.batch_size = config.group_size = 8
    config.initial_tasks = 40
    config.model.shape.hidden_size = 96
    config.model.shape.intermediate_size = 256
    config.model.shape.num_hidden_layers = 2
    config.warm_start.steps = 250
    config.warm_start.lengthen = 50
    config.warm_start.target = 0.3
    config.warm_start.check_tasks = 50
    config.warm_start.demonstrations = 1000
    config.evaluation.tasks = 100
    config.evaluation.dev_tasks = 50
    config.evaluation.every = 0
    config.engine.slots = config.limits.concurrency = 64
    config.engine.max_length = config.learner.row_length = 128
    config.learner.micro_rows = 16
    config.optimizer.learning_rate = 1e-3
    config.synthesis.contexts = config.synthesis.budget = 12
    return config

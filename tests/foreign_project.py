"""A project of a user, with packages that are named as ours; its runs take seconds."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    "experiments/__init__.py": """
        from experiments.losses import CAUTION
        SEED = 7
    """,
    "experiments/losses.py": """
        CAUTION = 0.5

        def careful(logprobs, advantages, *, caution: float = CAUTION):
            import jax.numpy as jnp

            return -jnp.where(advantages < 0, caution, 1.0) * advantages * logprobs, {}
    """,
    "experiments/small.py": """
        import experiments.losses
        from experiments import SEED, desk
        from cojax.settings import base

        assert base.__file__ != desk.__file__ != experiments.losses.__file__

        def get_config():
            config = desk.get_config()
            config.seed = SEED
            config.workdir = "runs/small"
            config.steps = 2
            config.evolve_every = config.checkpoint_every = 1
            config.batch_size = config.group_size = config.synthesis.contexts = config.synthesis.budget = 2
            config.initial_tasks = config.evaluation.tasks = config.evaluation.dev_tasks = 4
            config.model.shape.hidden_size = 32
            config.model.shape.intermediate_size = 64
            config.model.shape.num_hidden_layers = 1
            config.warm_start.steps = config.evaluation.every = 0
            config.engine.slots = config.limits.concurrency = 4
            return config
    """,
    "environments/__init__.py": """
        OPENED = "by the user's package"
    """,
    "environments/shop.py": """
        '''A desk that is made in a worker, by a module that only the user has.'''
        from environments.worker import isolate

        def make():
            return isolate("environments.shop_inside")
    """,
    "environments/shop_inside.py": """
        from environments import OPENED, desk
        from environments.shop import make as outside

        def make():
            assert OPENED and outside
            return desk.make()
    """,
}


def make_project(folder: Path) -> Path:
    """Writes the project and returns its folder."""
    for name, text in _FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
        file.write_text("\n".join(line[indent:] for line in lines) + "\n")
    return folder

"""A project of a user, with a loss, a configuration whose runs take seconds, and a world in a worker."""

from __future__ import annotations

from pathlib import Path

# LAB and SHOPS are the user's packages, EXPERIMENTS and ENVIRONMENTS cojax's.
_FILES = {
    "LAB/__init__.py": """
        from LAB.losses import CAUTION
        SEED = 7
    """,
    "LAB/losses.py": """
        CAUTION = 0.5

        def careful(logprobs, advantages, *, caution: float = CAUTION):
            import jax.numpy as jnp

            return -jnp.where(advantages < 0, caution, 1.0) * advantages * logprobs, {}
    """,
    "LAB/small.py": """
        from EXPERIMENTS import desk
        from LAB import SEED

        def get_config():
            config = desk.get_config()
            config.seed = SEED
            config.workdir = "runs/small"
            config.steps = 2
            config.evolve_every = config.checkpoint_every = 1
            config.batch_size = config.group_size = config.synthesis.contexts = config.synthesis.budget = 2
            config.initial_tasks = config.evaluation.tasks = config.evaluation.dev_tasks = 4
            config.model.shape.hidden_size = 64
            config.model.shape.intermediate_size = 128
            config.model.shape.num_hidden_layers = 2
            config.warm_start.steps = config.evaluation.every = 0
            config.engine.slots = config.limits.concurrency = 16
            return config
    """,
    "SHOPS/__init__.py": """
        OPENED = "by the user's package"
    """,
    "SHOPS/shop.py": """
        '''A desk that is made in a worker, by a module that only the user has.'''
        from ENVIRONMENTS.worker import isolate

        def make():
            return isolate(f"{__package__}.shop_inside")
    """,
    "SHOPS/shop_inside.py": """
        from ENVIRONMENTS import desk
        from SHOPS import OPENED
        from SHOPS.shop import make as outside

        def make():
            assert OPENED and outside
            return desk.make()
    """,
}


def make_project(
    folder: Path,
    lab: str = "lab",
    shops: str = "shops",
    experiments: str = "experiments",
    environments: str = "environments",
) -> Path:
    """Writes the project and returns its folder. Given are the names of the user's packages, and of cojax's."""
    names = {"LAB": lab, "SHOPS": shops, "EXPERIMENTS": experiments, "ENVIRONMENTS": environments}
    for file_name, text in _FILES.items():
        for token, package_name in names.items():
            file_name, text = file_name.replace(token, package_name), text.replace(token, package_name)
        path = folder / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.strip("\n").splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
        path.write_text("\n".join(line[indent:] for line in lines) + "\n")
    return folder

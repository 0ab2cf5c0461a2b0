"""cojax: agent and task set evolve together."""

__version__ = "0.1.0"

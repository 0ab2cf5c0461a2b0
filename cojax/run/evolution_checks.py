"""Checks what a configuration asks of evolutions."""

from ml_collections import ConfigDict

from cojax.run import methods

# Evolutions that begin at signals alone.
_AT_SIGNALS = ("feedback", "displaced")


def check(config: ConfigDict) -> None:
    """Raises ValueError for what no evolution of this run would do."""
    _check_prefix_replay(config)
    _check_admission(config)
    if methods.evolves(config) and config.evolve in _AT_SIGNALS and not config.signals:
        raise ValueError(
            f"evolve is {config.evolve!r}, but signals is empty: there is nothing to follow; set --config.signals="
            "forgetting,boundary,rare, or --config.evolve=none"
        )


def _check_admission(config: ConfigDict) -> None:
    """Raises ValueError where tasks that no evolution finds would have to be admitted."""
    admit = config.synthesis.admit
    if admit == "all":
        return
    if not methods.evolves(config):
        why, mend = f"with method={config.method} the task set does not grow", "--config.preference.tasks=growing"
    elif config.evolve == "none":
        why, mend = "evolve is 'none'", "--config.evolve=uniform, say"
    else:
        return
    raise ValueError(
        f"synthesis.admit is {admit!r}, but {why}: there are no candidates; set {mend}, or --config.synthesis.admit=all"
    )


def _check_prefix_replay(config: ConfigDict) -> None:
    """Raises ValueError where no task would be replayed, or where what is replayed would be learned."""
    if not config.synthesis.prefix_replay:
        return
    finding = config.evolve if ":" in config.evolve else "frontier"
    for name, value, needed, why in (
        ("method", config.method, "coevolve", "only coevolve replays prefixes"),
        ("evolve", config.evolve, finding, "only frontier finds joined tasks"),
        ("learner.routes", config.learner.routes, "own", "the sampler reports no routes of replayed actions"),
    ):
        if value != needed:
            found = f"synthesis.prefix_replay is True, but {name} is {value!r}: {why}"
            raise ValueError(f"{found}; set --config.{name}={needed}, or --config.synthesis.prefix_replay=False")

"""The most commands of an episode, by task."""

from collections.abc import Mapping

# ETO's limits (Yifan-Song793/ETO, eval_agent/data/sciworld/max_steps.json), under the tasks' names in the wheel.
_ETO_LIMITS: Mapping[str, int] = {
    "boil": 100,
    "change-the-state-of-matter-of": 80,
    "chemistry-mix": 60,
    "chemistry-mix-paint-secondary-color": 15,
    "chemistry-mix-paint-tertiary-color": 30,
    "find-animal": 15,
    "find-living-thing": 15,
    "find-non-living-thing": 15,
    "find-plant": 15,
    "freeze": 80,
    "grow-fruit": 60,
    "grow-plant": 30,
    "identify-life-stages-1": 30,
    "identify-life-stages-2": 30,
    "lifespan-longest-lived": 10,
    "lifespan-longest-lived-then-shortest-lived": 12,
    "lifespan-shortest-lived": 10,
    "measure-melting-point-known-substance": 120,
    "melt": 80,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 30,
    "test-conductivity": 30,
    "test-conductivity-of-unknown-substances": 30,
    "use-thermometer": 30,
}
# ETO does not have these tasks; the limits are ours.
_OWN_LIMITS: Mapping[str, int] = {
    "inclined-plane-determine-angle": 120,
    "inclined-plane-friction-named-surfaces": 120,
    "inclined-plane-friction-unnamed-surfaces": 120,
    "measure-melting-point-unknown-substance": 120,
    "mendelian-genetics-known-plant": 200,
    "mendelian-genetics-unknown-plant": 200,
}
TASKS = tuple(sorted({**_ETO_LIMITS, **_OWN_LIMITS}))


def limit_of(task: str) -> int:
    """The most commands of an episode of this task. Raises ValueError for an unknown one."""
    limits = {**_ETO_LIMITS, **_OWN_LIMITS}
    if task not in limits:
        raise ValueError(f"ScienceWorld has no task {task!r:.100}; it has {', '.join(TASKS)}")
    return limits[task]

"""The scenarios, by name."""

from __future__ import annotations

from environments.appworld.tiny.scenario import Scenario
from environments.appworld.tiny.scenarios import like_genre

SCENARIOS = tuple(
    Scenario(
        name=module.__name__.rpartition(".")[2],
        module=module,
        split=module.SPLIT,
        difficulty=module.DIFFICULTY,
        instruction=module.INSTRUCTION,
        draw=module.draw,
        evaluate=module.evaluate,
        solution=module.SOLUTION,
    )
    for module in (like_genre,)
)

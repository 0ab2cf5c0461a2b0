"""Where the policy fumbles: actions fail on the way, whatever the end."""

import dataclasses

from cojax.signals import Guidance, above, tools_of
from cojax.types import Signal


@dataclasses.dataclass(frozen=True)
class Fumble:
    least: int = 1  # failed actions of an episode
    name, colour = "fumble", "#228833"
    guidance = Guidance(("use {tools} until they work",), "Actions failed here.", "Purpose: practise what failed.")

    def init(self):
        return {}

    def update(self, memory, groups):
        found = []
        for group in groups:
            for one in group.valid:
                failed = [turn.action for turn in one.turns if not turn.observation.ok]
                if len(failed) >= self.least:
                    tools = tuple(dict.fromkeys(tool for action in failed for tool in tools_of(action)))
                    found.append(Signal(self.name, group.task.id, one.episode, f"{len(failed)} actions failed", tools))
        return {}, found

    def confidence(self, signal, visits):
        return 1 - above(0.9, visits)

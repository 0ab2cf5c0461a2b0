"""Cases: what is played, what must come of it, and what is counted where something else does.

Case number n of a half derives from the seed, n and the kinds that are played, so that these reproduce it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Iterable, Mapping
from typing import Literal

from cojax.types import Action, Task

# forged: a verdict forged, erased or denied, or something in the pool that may not be there. traces: what one episode
# left for another, or on disk. lost: a record lost or changed, or a fault that nobody was told of. leaked: processes,
# descriptors, memory, files and processor time.
Count = Literal["forged", "traces", "lost", "leaked"]
COUNTS: tuple[Count, ...] = ("forged", "traces", "lost", "leaked")

# Parts of fifty hostile episodes, and of a hundred faults.
EPISODES: Mapping[str, int] = {"appworld": 3, "bfcl": 20, "desk": 20, "wild": 5, "drafts": 2}
FAULTS: Mapping[str, int] = {"kill": 5, "mutation": 32, "worker": 33, "disk": 12, "server": 18}


@dataclasses.dataclass(frozen=True)
class Violation:
    """Something that may not be: in which case, and what was found."""

    count: Count
    case: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Case:
    """One episode. `expected` is full (reward 1), less, or any; whatever it is, the episode must count.

    `trick` names how the case was made; `bounds` names what an observation may say at most, as NAME=NUMBER; `seconds`
    of the processor were taken by reading its texts.
    """

    id: str
    trick: str
    task: Task
    actions: tuple[Action, ...]
    expected: Literal["full", "less", "any"]
    bounds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def kinds(shares: Mapping[str, int], only: Iterable[str] = ()) -> tuple[str, ...]:
    """One round of kinds, each as often as its share and spread evenly; of `only` those, where there are some."""
    chosen = {name: share for name, share in shares.items() if not only or name in set(only)}
    slots = [((place + 0.5) / share, name) for name, share in chosen.items() for place in range(share)]
    return tuple(name for _, name in sorted(slots))


def draw(seed: int, id: str) -> random.Random:
    """The random numbers of one case."""
    return random.Random(f"campaign {seed} {id}")


class Canary:
    """A word for each case, which stands nowhere by chance: one that another episode sees is a trace."""

    def __init__(self, secret: str) -> None:
        self.mark = f"n{hashlib.sha256(secret.encode()).hexdigest()[:8]}x"
        self._pattern = re.compile(rf"{self.mark}(\w+?)x")

    def word(self, id: str) -> str:
        return f"{self.mark}{id}x"

    def others(self, text: str, id: str) -> list[str]:
        """Ids of other cases whose words stand in the text."""
        return sorted(set(self._pattern.findall(text)) - {id}) if self.mark in text else []

"""The types of the campaign: a case with its expected outcome, a violation, and the shares of each kind.

Case number n of a half derives from the seed, n and the kinds that are played; these reproduce it.
"""

import dataclasses
import hashlib
import random
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from cojax.types import Action, Task

ROOT = Path(__file__).parents[2]
# forged: a verdict forged, erased or denied, or a task in the pool that must not be there. traces: what one episode
# left for another, or on disk. lost: a record lost or changed, or a fault without a report. leaked: processes,
# descriptors, memory, files and processor time.
Count = Literal["forged", "traces", "lost", "leaked"]
COUNTS: tuple[Count, ...] = ("forged", "traces", "lost", "leaked")

# The share of each kind: in fifty hostile episodes, and in a hundred faults.
EPISODES: Mapping[str, int] = {"appworld": 3, "bfcl": 19, "desk": 19, "wild": 5, "drafts": 2, "mcp": 1, "tools": 1}
FAULTS: Mapping[str, int] = {"kill": 5, "mutation": 27, "worker": 28, "disk": 12, "server": 18, "foreign": 10}


@dataclasses.dataclass(frozen=True)
class Violation:
    """Something that must not happen: the case in which it did, and what was found."""

    count: Count
    case: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Case:
    """One episode. `expected` is full (reward 1), less, or any; in each case the episode must be valid.

    `trick` says how the case was made. `bounds` are the largest numbers that an observation may report as NAME=NUMBER.
    `seconds` is the processor time that reading its texts took.
    """

    id: str
    trick: str
    task: Task
    actions: tuple[Action, ...]
    expected: Literal["full", "less", "any"]
    bounds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def kinds(shares: Mapping[str, int], only: Iterable[str] = ()) -> tuple[str, ...]:
    """One round of kinds, each as often as its share and spread evenly; `only` limits them, unless it is empty."""
    chosen = {name: share for name, share in shares.items() if not only or name in set(only)}
    slots = [((index + 0.5) / share, name) for name, share in chosen.items() for index in range(share)]
    return tuple(name for _, name in sorted(slots))


def child(module: str, *arguments: str) -> list[str]:
    """The command of a process of the campaign: a module of it, by its full name. The checkout does not hold it."""
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import runpy, sys; sys.path.append({str(ROOT / 'tests')!r}); {run}", *arguments]


def draw(seed: int, id: str) -> random.Random:
    """The random numbers of one case."""
    return random.Random(f"campaign {seed} {id}")


class Canary:
    """A word for each case that appears nowhere by chance: where another episode sees it, a trace was left."""

    def __init__(self, secret: str) -> None:
        self.mark = f"n{hashlib.sha256(secret.encode()).hexdigest()[:8]}x"
        self._pattern = re.compile(rf"{self.mark}(\w+?)x")

    def word(self, id: str) -> str:
        return f"{self.mark}{id}x"

    def others(self, text: str, id: str) -> list[str]:
        """The ids of other cases whose words the text contains."""
        return sorted(set(self._pattern.findall(text)) - {id}) if self.mark in text else []

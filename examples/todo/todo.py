"""A to-do list: the world is a setup's own JSON, and four functions act on it."""

import random
from typing import Literal, get_args

from environments.tools import ToolEnvironment

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday"]
TITLES = ["bread", "cake", "fish", "jam", "lamp", "milk", "paint", "rope", "salt", "soap", "tea", "wood"]


def add(world, title: str, day: Day) -> None:
    """Add an item to the list."""
    if title in world["items"]:
        raise ValueError(f"{title} is on the list already")
    world["items"][title] = {"day": day, "done": False}


def move(world, title: str, day: Day) -> None:
    """Move an item to another day."""
    world["items"][title]["day"] = day


def tick(world, title: str) -> None:
    """Mark an item as done."""
    world["items"][title]["done"] = True


def show(world, title: str) -> dict:
    """Show the day of an item, and whether it is done."""
    return world["items"][title]


def make(*, lists: int = 40, seed: int = 0):
    rng = random.Random(seed)
    chosen = [rng.sample(TITLES, 4) for _ in range(lists)]
    items = [{title: {"day": rng.choice(get_args(Day)), "done": False} for title in titles} for titles in chosen]
    return ToolEnvironment("todo", [add, move, tick, show], open=dict, setups=[{"items": one} for one in items])

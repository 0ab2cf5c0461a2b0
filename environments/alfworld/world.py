"""One world: the commands of an episode, their limit, and the state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.types import canonical
from ..tools import commands
from .official import Game

# The official limit of commands, max_nb_steps_per_episode of its base_config.yaml.
LIMIT = 50
# Verbs of commands that only show something, of which a task cannot consist.
UNASKED = frozenset(("look", "examine", "inventory", "help"))
_TASK = "Your task is to:"


class World:
    """A world of one episode, single-use. A command of which nothing happens raises ValueError."""

    def __init__(self, games: Path, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup that names no game of the folder `games`."""
        name = setup.get("game")
        file = games / str(name) / "game.tw-pddl"
        if set(setup) != {"game"} or not isinstance(name, str) or not file.resolve().is_relative_to(games.resolve()):
            raise ValueError(f"the setup is {dict(setup)!r:.200}; expected the folder of a game")
        if not file.is_file():
            raise ValueError(f"there is no game {name!r:.200} in {games}")
        self.game = Game(file)
        self._introduction = self.game.shown.partition(_TASK)[0].strip()
        self._done = 0

    def introduction(self) -> str:
        """What there is in the room, without the task of the game."""
        return self._introduction

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the engine says to a command."""
        if name == commands.ENDING:
            return ""
        command = commands.command_of(name, arguments)
        self._done += 1
        return self.game.step(command)

    def over(self) -> bool:
        """Whether the game is won, or the episode has had its commands."""
        return self.game.won or self._done >= LIMIT

    def state(self) -> Mapping[str, Any]:
        """Where the agent and the objects are, what is open, and what was done to the objects."""
        return self.game.facts()


def offers(world: World) -> list[tuple[str, dict[str, Any]]]:
    """(tool, arguments) of commands worth trying now."""
    found = [command for command in world.game.commands() if commands.verb(command) not in UNASKED]
    return commands.offers(found, canonical(world.state()))

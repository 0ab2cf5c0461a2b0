"""The official engine of the installed packages `alfworld` and `textworld`. The only module that imports them."""

import importlib
from collections.abc import Mapping
from pathlib import Path

# Predicates that a command can change, of those that say more than that something was looked at.
_CHANGING = frozenset(
    (
        "atlocation", "opened", "inreceptacle", "objectatlocation", "holds", "isclean", "ishot", "iscool", "ison",
        "istoggled", "issliced",
    )
)  # fmt: skip
_NOTHING = "Nothing happens."


def prepare() -> None:
    """Imports the engine, so that every process forked from this one has it."""
    for name in ("textworld.envs", "alfworld.agents.environment.alfred_tw_env"):
        importlib.import_module(name)


class Game:
    """One game, played by the official engine as `AlfredTWEnv` sets it up for evaluation."""

    def __init__(self, file: Path) -> None:
        """Raises FileNotFoundError for a game that there is not."""
        textworld = importlib.import_module("textworld")
        wanted = textworld.EnvInfos(won=True, facts=True, admissible_commands=True)
        engine = importlib.import_module("textworld.envs").PddlEnv(wanted)
        wrapper = importlib.import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        self._engine = wrapper(engine, shuffle=False)
        self._engine.load(str(file))
        self._state = self._engine.reset()

    @property
    def shown(self) -> str:
        """What the engine says now."""
        return str(self._state.feedback).strip()

    @property
    def won(self) -> bool:
        return bool(self._state["won"])

    def step(self, command: str) -> str:
        """What the engine says to a command. Raises ValueError where nothing happens."""
        self._state, _, _ = self._engine.step(command)
        if self.shown == _NOTHING:
            raise ValueError(_NOTHING)
        return self.shown

    def commands(self) -> list[str]:
        """The commands that do something now."""
        return [str(command) for command in self._state["admissible_commands"]]

    def facts(self) -> Mapping[str, list[str]]:
        """Predicate → the names of which it holds, of those that commands change."""
        found: dict[str, list[str]] = {}
        for fact in self._state["facts"]:
            if fact.name in _CHANGING:
                found.setdefault(fact.name, []).append(", ".join(name.strip() for name in fact.names))
        return {name: sorted(held) for name, held in sorted(found.items())}

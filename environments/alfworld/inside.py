"""The environment, which runs in a worker in the wheels' own virtual environment. Only this file imports the wheels.

A world is a game of the official engine, with its limit of commands.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cojax.types import Action, Check, Evaluation, Task, canonical
from ..tools import ToolEnvironment, commands
from .data import SPLITS, find_games_folder, read_game_list

NAME = "alfworld"
# A world is a process of 150 MB.
_MAX_WORLDS = 16
# Predicates that a command can change, without those that only say that something was looked at.
_CHANGING_PREDICATES = frozenset(
    (
        "atlocation", "opened", "inreceptacle", "objectatlocation", "holds", "isclean", "ishot", "iscool", "ison",
        "istoggled", "issliced",
    )
)  # fmt: skip
_NO_EFFECT_REPLY = "Nothing happens."
# The official limit of commands: max_nb_steps_per_episode in the wheel's base_config.yaml.
MAX_COMMANDS = 50
# Verbs of commands that only show something; a task cannot consist of them.
UNASKED_VERBS = frozenset(("look", "examine", "inventory", "help"))
_TASK_PREFIX = "Your task is to:"


class World:
    """A single-use world of one episode: a game, set up as the official `AlfredTWEnv` does for evaluation.

    A command without an effect raises ValueError.
    """

    def __init__(self, games: Path, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup that names no game in `games`."""
        game = setup.get("game")
        path = games / str(game) / "game.tw-pddl"
        if set(setup) != {"game"} or not isinstance(game, str) or not path.resolve().is_relative_to(games.resolve()):
            raise ValueError(f"the setup is {dict(setup)!r:.200}; expected the folder of a game")
        if not path.is_file():
            raise ValueError(f"there is no game {game!r:.200} in {games}")
        requested_infos = importlib.import_module("textworld").EnvInfos(won=True, facts=True, admissible_commands=True)
        engine = importlib.import_module("textworld.envs").PddlEnv(requested_infos)
        demangler = importlib.import_module("alfworld.agents.environment.alfred_tw_env").AlfredDemangler
        self._engine = demangler(engine, shuffle=False)
        self._engine.load(str(path))
        self._state = self._engine.reset()
        self._introduction = self._read_feedback().partition(_TASK_PREFIX)[0].strip()
        self._command_count = 0

    def _read_feedback(self) -> str:
        """The engine's latest reply."""
        return str(self._state.feedback).strip()

    @property
    def is_won(self) -> bool:
        return bool(self._state["won"])

    def introduction(self) -> str:
        """The description of the room, without the game's task."""
        return self._introduction

    def call(self, tool_name: str, arguments: Mapping[str, Any]) -> str:
        """Makes the command of a call; returns the engine's reply."""
        if tool_name == commands.ENDING_TOOL:
            return ""
        command = commands.read_command(tool_name, arguments)
        self._command_count += 1
        self._state, _, _ = self._engine.step(command)
        if (reply := self._read_feedback()) == _NO_EFFECT_REPLY:
            raise ValueError(_NO_EFFECT_REPLY)
        return reply

    def over(self) -> bool:
        """Whether the game is won, or the episode has used up its commands."""
        return self.is_won or self._command_count >= MAX_COMMANDS

    def state(self) -> Mapping[str, Any]:
        """Where the agent and the objects are, what is open, and what was done to the objects."""
        facts_by_predicate: dict[str, list[str]] = {}
        for fact in self._state["facts"]:
            if fact.name in _CHANGING_PREDICATES:
                facts_by_predicate.setdefault(fact.name, []).append(", ".join(name.strip() for name in fact.names))
        return {predicate: sorted(arguments) for predicate, arguments in sorted(facts_by_predicate.items())}

    def commands(self) -> list[str]:
        """The commands that do something now."""
        return [str(command) for command in self._state["admissible_commands"]]


def propose_commands(world: World) -> list[tuple[str, dict[str, Any]]]:
    """The (tool, arguments) of commands worth trying now."""
    candidates = [command for command in world.commands() if commands.verb_of(command) not in UNASKED_VERBS]
    return commands.draw_offers(candidates, canonical(world.state()))


# The benchmark has no system message, so this one is ours.
system_message = functools.partial(commands.read_system_message, Path(__file__).with_name("commands.txt"))


def make(root: str, instructions: str = "full") -> ToolEnvironment:
    """The environment of the games in `root`. It imports the engine now, so that no child needs to."""
    for module_name in ("textworld.envs", "alfworld.agents.environment.alfred_tw_env"):
        importlib.import_module(module_name)
    games_folder, game_entries = find_games_folder(Path(root)), read_game_list(Path(root))
    splits = {split: [_make_task(entry) for entry in game_entries if entry["split"] == split] for split in SPLITS}
    return commands.make_environment(
        NAME,
        "open fridge 1",
        _MAX_WORLDS,
        {**splits, "dev": splits["valid_seen"], "eval": splits["valid_unseen"], "held_out": splits["valid_unseen"]},
        _judge,
        open=lambda setup: World(games_folder, setup),
        setups=[{"game": entry["game"]} for entry in game_entries if entry["split"] == "train"],
        affordances=propose_commands,
        phrase=lambda steps: commands.phrase(steps, UNASKED_VERBS),
        instructions=system_message(instructions),
    )


def _make_task(game_entry: Mapping[str, Any]) -> Task:
    """The official task; it has no solution if its walkthrough is longer than an episode."""
    walkthrough = game_entry["walkthrough"] if len(game_entry["walkthrough"]) <= MAX_COMMANDS else ()
    solution = tuple(Action(calls=(commands.make_call(command),)) for command in walkthrough)
    return Task(NAME, f"Your task is to: {game_entry['task']}.", {"game": game_entry["game"]}, solution)


def _judge(world: World) -> Evaluation:
    """The official verdict: whether the game is won."""
    return Evaluation(float(world.is_won), (Check("won", world.is_won),))

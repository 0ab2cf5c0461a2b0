"""ONE table of public MCP servers that pip installs as they are, with which the environment is proved."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

from ..worker.venv import Recipe, cache, interpreter
from . import starts

# The environment's own packages, in which the SDK's client runs. Servers of older versions understand it.
RECIPE = Recipe(requirements=("mcp==2.3.0",), proof="from mcp import Client", pythons=((3, 11), (3, 12), (3, 13)))


@dataclasses.dataclass(frozen=True)
class Server:
    """A public server.

    `recipe` is its virtual environment, `command` what starts it, a program that comes with it; `fill` makes the folder
    of number n in which an episode starts. `state`, `affordances` and `variables` are settings of
    `environments.mcp.make`; `known` are values of arguments that the folder does not show.
    """

    name: str
    recipe: Recipe
    command: str
    fill: Callable[[Path, int], None]
    state: str = ""
    affordances: str = ""
    variables: str = ""
    known: tuple[tuple[str, str], ...] = ()

    @property
    def home(self) -> str:
        """The name of its virtual environment."""
        return f"mcp-{self.name}"

    @property
    def folder(self) -> Path:
        """The folder of the folders in which episodes start."""
        return cache() / "environments" / f"{self.home}-starts"

    @property
    def setups(self) -> str:
        """The setups, as JSON."""
        return json.dumps([{"folder": starts.name(number), **dict(self.known)} for number in range(starts.COUNT)])

    def started(self) -> str:
        """The command that starts it. Raises InstallError where it is not installed."""
        return str(Path(interpreter(self.home, self.recipe)).with_name(self.command))


def _recipe(module: str, *requirements: str) -> Recipe:
    return Recipe(requirements=requirements, proof=f"import {module}", pythons=RECIPE.pythons)


SERVERS = {
    server.name: server
    for server in (
        Server(
            "sqlite",
            # It was written for the SDK before version 2.
            _recipe("mcp_server_sqlite", "mcp-server-sqlite==2025.4.25", "mcp<2"),
            "mcp-server-sqlite --db-path shop.db",
            starts.database,
            # Its notes are no file, but a resource.
            state='{"name": "read_resource", "arguments": {"uri": "memo://insights"}}',
            affordances=f"{__package__}.sql:offers",
        ),
        Server(
            "git",
            _recipe("mcp_server_git", "mcp-server-git==2026.10.10", "mcp<2"),
            "mcp-server-git --repository {folder}",
            starts.repository,
            # Commits made at the same time by the same person have equal names.
            variables=starts.GIT,
            known=(("repo_path", "."), ("branch_type", "local"), ("revision", "HEAD"), ("target", "HEAD")),
        ),
        Server(
            "filesystem",
            _recipe("filesystem_mcp", "filesystem-mcp==1.0.2", "mcp==2.3.0"),
            "filesystem-mcp .",
            starts.notes,
            known=(("path", "."), ("encoding", "utf-8")),
        ),
    )
}

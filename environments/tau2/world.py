"""One world: an official environment, the messages that its evaluators read, and its state as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from . import official
from .official import Domain
from .tables import Table
from .tasks import ENDING, REPLY

_TRANSFER = "transfer_to_human_agents"
# The most characters of the arguments of a call.
_ARGUMENTS = 100_000


class World:
    """A world of one episode, single-use. A call that the official tools refuse raises ValueError."""

    def __init__(self, domain: Domain, setup: Mapping[str, Any]) -> None:
        """Raises ValueError for a setup of another domain, or an initial state that cannot be had."""
        if setup.get("domain") != domain.name:
            raise ValueError(f"the setup is of the domain {setup.get('domain')!r}; this environment has {domain.name}")
        self.domain = domain
        self.environment = domain.world(setup.get("initial_state"))
        self.messages: list[Any] = []
        self.failed = 0
        self.transferred = False

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The official reply to a call. Raises ValueError with its text where it is an error."""
        if name == ENDING:
            return ""
        _examine(arguments)
        if name == REPLY:
            return self._say(arguments)
        call, message = official.tool_call(len(self.messages), name, arguments)
        reply = self.environment.get_response(call)
        self.environment.sync_tools()
        self.messages += [message, reply]
        self.failed += reply.error
        if reply.error:
            raise ValueError(reply.content.removeprefix("Error: "))
        self.transferred |= name == _TRANSFER
        return reply.content

    def hear(self, who: str, text: str) -> None:
        """Records the official message of the "agent" or the "customer" that says this text."""
        self.messages.append(official.message(who, text))

    def state(self) -> dict[str, Any]:
        """The databases, and whether the request was handed over. Of a large database it has the changed records."""
        tools, user = self.environment.tools, self.environment.user_tools
        kits = {"company": tools, **({"customer": user} if user is not None else {})}
        return {**{key: _plain(kit.db) for key, kit in kits.items()}, "transferred": self.transferred}

    def fork(self) -> "World":
        """An independent copy."""
        made = object.__new__(World)
        made.domain, made.environment = self.domain, official.fork(self.environment)
        made.messages, made.failed, made.transferred = list(self.messages), self.failed, self.transferred
        return made

    def _say(self, arguments: Mapping[str, Any]) -> str:
        text = arguments.get("message")
        if set(arguments) != {"message"} or not isinstance(text, str) or not text.strip():
            raise ValueError(f"{REPLY} takes a text that is not empty, called message")
        self.hear("agent", text)
        return "The customer has read it and does not answer."


def _examine(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError for arguments that are no JSON, or so large that copies of the world would fill memory."""
    try:
        size = len(json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, RecursionError) as error:
        raise ValueError(f"the arguments are no JSON: {error}") from error
    if size > _ARGUMENTS:
        raise ValueError(f"the arguments take {size:,} bytes; at most {_ARGUMENTS:,} are taken")


def _plain(database: Any) -> Any:
    """The database as JSON; of tables that share their records, what changed."""
    tables = {name: table.changes() for name, table in vars(database).items() if isinstance(table, Table)}
    dumped = json.dumps(
        tables or database.model_dump(mode="json"), default=lambda record: record.model_dump(mode="json")
    )
    # JSON has no infinity, which sums of large numbers can reach.
    return json.loads(dumped, parse_constant=str)

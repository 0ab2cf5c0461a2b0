"""An episode's server as environments/tools acts on it: calls and a state. The verdict is made here, away from it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, LimitExceeded
from cojax.types import Action, Call, Task, signature
from ..tools.ending import read
from ..tools.toolset import Refused
from ..worker import IsolatedEnvironment
from ..worker.served import ServedEpisode
from . import resources

NAME = "mcp"

Documents = tuple[Mapping[str, Any], ...]
Caller = Callable[[str, Mapping[str, Any]], str]
Reader = Callable[[Mapping[str, Any], Caller], Any]


def folder_alone(folder: Mapping[str, Any], call: Caller) -> Any:
    """The state of a world whose user names none: the snapshot of its folder."""
    return folder


@dataclasses.dataclass(frozen=True)
class Answers:
    """The state of a world as the answer of one call; or its folder, if it has one, and the answers of these calls.

    An answer that is refused is {"refused": why}: what a policy has done may be the reason.
    """

    calls: tuple[Call, ...]

    def __call__(self, folder: Mapping[str, Any], call: Caller) -> Any:
        answers = {}
        for one in self.calls:
            try:
                answers[signature_of(one)] = read(call(one.name, one.arguments))
            except Refused as refusal:
                answers[signature_of(one)] = {"refused": str(refusal)}
        return {**folder, "answers": answers} if folder or len(answers) > 1 else next(iter(answers.values()))


def signature_of(call: Call) -> str:
    """A call in one line."""
    return signature(Action(calls=(call,)))


@dataclasses.dataclass
class Turn:
    """The right to use a server, until it is passed on to another world."""

    passed_on: bool = False


class ServerWorld:
    """A world behind a server, which may be `lasting`, at an address.

    `leave` is called once, when it is closed, with whether the server may serve another episode.
    """

    def __init__(
        self,
        episode: ServedEpisode,
        read: Reader,
        turn: Turn,
        leave: Callable[[bool], None],
        *,
        lasting: bool = False,
    ) -> None:
        self._episode, self._read, self._turn, self._leave = episode, read, turn, leave
        self._works, self._closed, self._lasting = True, False, lasting

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """What the server answers. Raises Refused for an error, and LimitExceeded where the server has ended."""
        seen = self._asked(self._episode.step, Action(calls=(Call(name, arguments),)))
        if seen.done:
            self._works = False
            raise LimitExceeded(seen.text)
        if not seen.ok:
            raise Refused(seen.text)
        return seen.text

    def state(self) -> Any:
        return self._read(self._asked(self._episode.state), self.call)

    def retire(self) -> None:
        """Has the server serve no other episode, unless it is at an address."""
        self._works = self._works and self._lasting

    def close(self) -> None:
        """Gives the server back, or ends it with every process of its episode."""
        if not self._closed:
            self._closed = True
            self._leave(self._works)

    def _asked(self, question: Callable[..., Any], *arguments: Any) -> Any:
        if self._turn.passed_on:
            raise EnvironmentFailure("the world has passed its server on to another; expected one world at a time")
        try:
            return question(*arguments)
        except EnvironmentFailure:
            self._works = False
            raise


@dataclasses.dataclass(frozen=True)
class Offer:
    """What a server tells of itself: the documentation of its tools, the names of those that it declares to change
    nothing, whether it has resources, and what it says of its use."""

    documents: Documents
    reads: tuple[str, ...]
    has_resources: bool
    instructions: str

    @property
    def lookups(self) -> tuple[str, ...]:
        """The tools that change nothing, where the server declares such ones at all."""
        return (*self.reads, *(resources.NAMES if self.has_resources else ())) if self.reads else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools, also of those for resources."""
        return tuple(tool["function"]["name"] for tool in self.all_documents())

    def all_documents(self) -> Documents:
        """The tools, and those for resources where there are any, and no tool of the server has such a name."""
        own = {tool["function"]["name"] for tool in self.documents}
        more = resources.DOCUMENTS if self.has_resources else ()
        return (*self.documents, *(tool for tool in more if tool["function"]["name"] not in own))


def offer(worker: IsolatedEnvironment, setup: Mapping[str, Any]) -> Offer:
    """The offer of the server of an episode in that setup. Raises EnvironmentFailure where it does not start."""
    episode = worker.start(Task(NAME, "", setup))
    try:
        (message,) = episode.reset()
        told = json.loads(message.content)
        return Offer(episode.tools(), tuple(told["reads"]), told["resources"], told["instructions"])
    finally:
        episode.close()


def difference(expected: Documents, offered: Documents) -> str:
    """What a list of tools has that the other has not, in words."""
    before, after = ({tool["function"]["name"] for tool in tools} for tools in (expected, offered))
    said = [f"no longer {', '.join(sorted(before - after))}"] if before - after else []
    said += [f"now {', '.join(sorted(after - before))}"] if after - before else []
    return (
        f"the server offers {' and '.join(said) or 'the same tools with other documentation, or in another order'}; "
        "expected the tools that it offered when the environment was made"
    )


def calls_of(setting: str, given: str | Sequence[Any], known: Sequence[str]) -> tuple[Call, ...]:
    """The calls that a setting names: a tool, JSON of a call, or JSON of several. Raises ValueError."""
    try:
        found = json.loads(given) if isinstance(given, str) and given.lstrip()[:1] in ("[", "{") else given
    except ValueError as error:
        raise ValueError(f"{setting} is {given!r:.200}, which is no JSON: {error}") from error
    calls = [found] if isinstance(found, (str, Mapping)) else list(found)
    made = []
    for one in calls:
        call = {"name": one} if isinstance(one, str) else one
        if not (isinstance(call, Mapping) and isinstance(call.get("name"), str)):
            raise ValueError(f'{setting} names the call {one!r:.200}; expected {{"name": TOOL, "arguments": {{…}}}}')
        if call["name"] not in known:
            raise ValueError(f"{setting} names {call['name']!r}; the server offers {', '.join(known)}")
        if not isinstance(arguments := call.get("arguments", {}), Mapping):
            raise ValueError(f"{setting} calls {call['name']!r} with {arguments!r:.200}; expected an object")
        made.append(Call(call["name"], arguments))
    return tuple(made)

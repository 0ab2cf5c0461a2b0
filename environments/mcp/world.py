"""Worlds: each an episode's server as environments/tools acts on it. The verdict is made here, away from it.

A world has its own server or, if a call resets it, one that served another episode.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import EnvironmentFailure, LimitExceeded, SandboxLost, waiting
from cojax.types import Action, Call, Task, canonical, signature, to_json
from ..tools.environment import parse_text
from ..tools.toolset import Refused
from ..worker import IsolatedEnvironment
from ..worker.served import ServedEpisode
from . import resources

NAME = "mcp"
_LOG = logging.getLogger(__name__)
# A world waits at most _LEASE_TIMEOUT_S seconds for the only server. Messages cut a state after _CUT_AT characters.
_LEASE_TIMEOUT_S, _CUT_AT = 600.0, 300

Documents = tuple[Mapping[str, Any], ...]
CallServer = Callable[[str, Mapping[str, Any]], str]
ReadState = Callable[[Mapping[str, Any], CallServer], Any]


def read_answers(calls: Sequence[Call], folder: Mapping[str, Any], call_server: CallServer) -> Any:
    """The state of a world as the answer of one call; or its folder, if it has one, and the answers of these calls.

    An answer that is refused is {"refused": why}: what a policy has done may be the reason.
    """
    answers = {}
    for call in calls:
        try:
            answers[word_call(call)] = parse_text(call_server(call.name, call.arguments))
        except Refused as refusal:
            answers[word_call(call)] = {"refused": str(refusal)}
    return {**folder, "answers": answers} if folder or len(answers) > 1 else next(iter(answers.values()))


def word_call(call: Call) -> str:
    """A call in one line."""
    return signature(Action(calls=(call,)))


# The right to use a server, until it is passed on to another world: then it is set.
Turn = threading.Event


class Ids:
    """The ids and times that a server draws anew, as `pattern` finds them, under names that equal episodes share: #id1
    is the first one that was shown. An empty pattern finds none.

    An id goes back to the server as the number or the text that it was as a JSON value. One that was seen in prose
    alone goes back as a number if it has only digits.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(pattern) if pattern else None
        self._name_by_text: dict[str, str] = {}
        self._id_by_name: dict[str, str | float] = {}

    def hide(self, value: Any) -> Any:
        """The JSON value with names in place of ids, also in keys."""
        if self._pattern is None:
            return value
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(member) for key, member in value.items()}
        if isinstance(value, list):
            return [self.hide(member) for member in value]
        if isinstance(value, (str, int, float)) and self._pattern.fullmatch(text := str(value)):
            self._id_by_name[name := self._name(text)] = value
            return name
        return self._hide_in_prose(value) if isinstance(value, str) else value

    def hide_in_text(self, text: str) -> str:
        """The same for an answer, which may be JSON."""
        if self._pattern is None:
            return text
        value = parse_text(text)
        if isinstance(value, str):
            return self._hide_in_prose(text)
        return json.dumps(self.hide(value), ensure_ascii=False)

    def show(self, value: Any) -> Any:
        """The JSON value with ids in place of their names."""
        if isinstance(value, Mapping):
            return {self.show(key): self.show(member) for key, member in value.items()}
        if isinstance(value, list):
            return [self.show(member) for member in value]
        if not isinstance(value, str):
            return value
        if value in self._id_by_name:
            return self._id_by_name[value]
        return re.sub(r"#id\d+", lambda match: str(self._id_by_name.get(match[0], match[0])), value)

    def _hide_in_prose(self, text: str) -> str:
        assert self._pattern is not None
        return self._pattern.sub(lambda match: self._name(match[0]), text)

    def _name(self, text: str) -> str:
        name = self._name_by_text.setdefault(text, f"#id{len(self._name_by_text) + 1}")
        self._id_by_name.setdefault(name, int(text) if text.isdecimal() else text)
        return name


@dataclasses.dataclass(eq=False)
class ServerWorld:
    """A world behind a server at an address (`is_lasting`), or of a command.

    `release` is called once, when it is closed, with whether the server may serve another episode.
    """

    episode: ServedEpisode
    read_state: ReadState
    turn: Turn
    release: Callable[[bool], None]
    ids: Ids
    is_lasting: bool = False
    _is_usable: bool = dataclasses.field(default=True, init=False)
    _is_closed: bool = dataclasses.field(default=False, init=False)

    def call(self, tool_name: str, arguments: Mapping[str, Any]) -> str:
        """What the server answers. Raises Refused for an error, and LimitExceeded if the server has ended."""
        call = Call(tool_name, self.ids.show(arguments))
        observation = self._ask(self.episode.step, Action(calls=(call,)))
        if observation.done:
            self._is_usable = False
            raise LimitExceeded(observation.text)
        if not observation.ok:
            raise Refused(self.ids.hide_in_text(observation.text))
        return self.ids.hide_in_text(observation.text)

    def state(self) -> Any:
        return self.ids.hide(self.read_state(self._ask(self.episode.state), self.call))

    def retire(self) -> None:
        """Keeps the server from serving another episode, unless it is at an address."""
        self._is_usable = self._is_usable and self.is_lasting

    def close(self) -> None:
        """Gives the server back, or ends it with every process of its episode."""
        if not self._is_closed:
            self._is_closed = True
            self.release(self._is_usable)

    def _ask(self, operation: Callable[..., Any], *arguments: Any) -> Any:
        if self.turn.is_set():
            raise EnvironmentFailure("the world has passed its server on to another; expected one world at a time")
        try:
            return operation(*arguments)
        except EnvironmentFailure:
            self._is_usable = False
            raise


@dataclasses.dataclass(frozen=True)
class Offer:
    """What a server tells of itself: the documentation of its own tools, and of all tools, with those for resources;
    the names of tools that change nothing, if it declares any; and its instructions for use."""

    own_tools: Documents
    documents: Documents
    lookups: tuple[str, ...]
    instructions: str

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.documents]


def ask_offer(worker: IsolatedEnvironment, setup: Mapping[str, Any]) -> Offer:
    """The offer of the server of an episode in that setup. Raises EnvironmentFailure if it does not start.

    There are tools for resources if the server has resources, and no tool of its own with such a name.
    """
    with contextlib.closing(worker.start(Task(NAME, "", setup))) as episode:
        (message,) = episode.reset()
        facts, tools = json.loads(message.content), episode.tools()
    names, has_any = {tool["function"]["name"] for tool in tools}, facts["resources"]
    documents = (*tools, *(tool for tool in resources.DOCUMENTS if has_any and tool["function"]["name"] not in names))
    lookups = (*facts["reads"], *(resources.TOOL_NAMES if has_any else ())) if facts["reads"] else ()
    return Offer(tools, documents, lookups, facts["instructions"])


def explain_difference(old_tools: Documents, new_tools: Documents) -> str:
    """The difference between two lists of tools, in words."""
    old_names, new_names = ({tool["function"]["name"] for tool in tools} for tools in (old_tools, new_tools))
    changes = [f"no longer {', '.join(sorted(old_names - new_names))}"] if old_names - new_names else []
    changes += [f"now {', '.join(sorted(new_names - old_names))}"] if new_names - old_names else []
    return (
        f"the server offers {' and '.join(changes) or 'the same tools with other documentation, or in another order'}; "
        "expected the tools that it offered when the environment was made"
    )


def read_calls(setting: str, spec: str | Sequence[Any], tool_names: Sequence[str]) -> tuple[Call, ...]:
    """The calls that a setting names: a tool, JSON of a call, or JSON of several. Raises ValueError."""
    try:
        parsed_spec = json.loads(spec) if isinstance(spec, str) and spec.lstrip()[:1] in ("[", "{") else spec
    except ValueError as error:
        raise ValueError(f"{setting} is {spec!r:.200}, which is not JSON: {error}") from error
    entries = [parsed_spec] if isinstance(parsed_spec, (str, Mapping)) else list(parsed_spec)
    calls = []
    for entry in entries:
        call_record = {"name": entry} if isinstance(entry, str) else entry
        if not (isinstance(call_record, Mapping) and isinstance(call_record.get("name"), str)):
            raise ValueError(f'{setting} names the call {entry!r:.200}; expected {{"name": TOOL, "arguments": {{…}}}}')
        if call_record["name"] not in tool_names:
            raise ValueError(f"{setting} names {call_record['name']!r}; the server offers {', '.join(tool_names)}")
        if not isinstance(arguments := call_record.get("arguments", {}), Mapping):
            raise ValueError(f"{setting} calls {call_record['name']!r} with {arguments!r:.200}; expected an object")
        calls.append(Call(call_record["name"], arguments))
    return tuple(calls)


# A running server, the folder that it started in, and the state to which its reset must lead back.
RunningServer = tuple[ServedEpisode, str, str]


@dataclasses.dataclass(eq=False)
class Opener:
    """setup → a world. With a `reset`, up to `max_idle` servers that still work wait for other episodes, and the last
    one to come is the first to go.

    If its reset does not lead a server of a command back to its start, a new server replaces it, and none is kept from
    then on. A server at an address (`is_lasting`) begins with a reset, which must lead to the same state each time.
    With `is_alone`, one world is open at a time, and others wait. `ids` is the pattern of `Ids`.

    Raises EnvironmentFailure if a server does not start, offers other tools than `offer`, or is not as at its start.
    """

    worker: IsolatedEnvironment
    offer: Offer
    read_state: ReadState
    reset: Call | None
    max_idle: int
    is_lasting: bool
    is_alone: bool
    ids: str = ""

    def __post_init__(self) -> None:
        self._idle: list[RunningServer] = []
        self._first_state, self._max_idle = "", self.max_idle if self.reset else 0
        self._lock = threading.Condition()
        self._holder: tuple[int, Turn] | None = None  # the thread whose turn it is

    def is_reset(self, document: Mapping[str, Any]) -> bool:
        """Whether a tool is the reset."""
        return self.reset is not None and document["function"]["name"] == self.reset.name

    def __call__(self, setup: Mapping[str, Any]) -> ServerWorld:
        try:
            return self._open_world(setup)
        except SandboxLost as error:  # before a policy has done anything
            raise EnvironmentFailure(str(error)) from error

    def _open_world(self, setup: Mapping[str, Any]) -> ServerWorld:
        lease = self._take_lease()
        try:
            folder_name = setup.get("folder") or ""
            server = self._reuse_server(folder_name) or self._start_server(folder_name)
        except BaseException:
            self._end_lease(lease)
            raise
        release = functools.partial(self._release_server, server, lease)
        world = ServerWorld(server[0], self.read_state, lease, release, Ids(self.ids), is_lasting=self.is_lasting)
        try:
            for call in setup.get("calls", ()):
                world.call(call["name"], call.get("arguments", {}))
        except BaseException as error:
            world.close()
            if isinstance(error, Refused):
                raise EnvironmentFailure(f"the call of {call['name']!r} in the setup failed: {error}") from error
            raise
        return world

    def _start_server(self, folder_name: str) -> RunningServer:
        episode = self.worker.start(Task(NAME, "", {"folder": folder_name} if folder_name else {}))
        try:
            episode.reset()
            if episode.tools() != self.offer.own_tools:
                raise EnvironmentFailure(explain_difference(self.offer.own_tools, episode.tools()))
            if self.reset is None:
                return episode, folder_name, ""
            state = self._read_state_after_reset(episode) if self.is_lasting else self._read_state(episode)
            with self._lock:
                self._first_state = self._first_state or state
            if self.is_lasting and state != self._first_state:
                raise EnvironmentFailure(
                    f"after {word_call(self.reset)} the state is {state:.{_CUT_AT}}, and after the first one it was "
                    f"{self._first_state:.{_CUT_AT}}; expected the same state after each reset"
                )
            return episode, folder_name, state
        except BaseException as error:
            episode.close()
            if isinstance(error, Refused):
                raise EnvironmentFailure(f"the reset failed: {error}") from error
            raise

    def _reuse_server(self, folder_name: str) -> RunningServer | None:
        """A server of an earlier episode, after its reset; None if no such server is as it was at its start."""
        while (server := self._take_idle_server(folder_name)) is not None:
            episode, _, start_state = server
            try:
                if episode.evaluate().reward == 1.0:
                    if (state := self._read_state_after_reset(episode)) == start_state:
                        return server
                    self._stop_reusing(f"its state is {state:.{_CUT_AT}}, and was {start_state:.{_CUT_AT}}")
            except Refused as refusal:
                self._stop_reusing(str(refusal))
            except EnvironmentFailure:
                pass  # it was lost since its last episode
            episode.close()
        return None

    def _stop_reusing(self, reason: str) -> None:
        """Keeps no server of a command from now on, because the reset does not lead one back to its start."""
        if self.is_lasting:
            return
        with self._lock:
            former_limit, self._max_idle, servers, self._idle = self._max_idle, 0, self._idle, []
        for episode, *_ in servers:
            episode.close()
        if former_limit:
            _LOG.warning("the reset does not lead a server back to its start, so each episode starts one: %s", reason)

    def _take_idle_server(self, folder_name: str) -> RunningServer | None:
        with self._lock:
            server = next((server for server in reversed(self._idle) if server[1] == folder_name), None)
            if server is not None:
                self._idle.remove(server)
            return server

    def _release_server(self, server: RunningServer, turn: Turn, is_usable: bool) -> None:
        """Keeps the server of a world that is closed, or ends it."""
        with self._lock:
            is_kept = is_usable and self._max_idle > 0
            surplus = ([self._idle.pop(0)] if len(self._idle) >= self._max_idle else []) if is_kept else [server]
            self._idle += [server] if is_kept else []
        for episode, *_ in surplus:
            episode.close()
        self._end_lease(turn)

    def _take_lease(self) -> Turn:
        """The turn of a world, for which it waits with `is_alone`. A thread that already has a turn passes it on: its
        first world is over. Raises EnvironmentFailure if the wait takes longer than ten minutes."""
        thread_id, lease = threading.get_ident(), Turn()
        if not self.is_alone:
            return lease
        with waiting(), self._lock:
            if not self._lock.wait_for(lambda: self._holder is None or self._holder[0] == thread_id, _LEASE_TIMEOUT_S):
                raise EnvironmentFailure(
                    f"another episode has had the server for {_LEASE_TIMEOUT_S:g} s; expected episodes that end"
                )
            if self._holder is not None:
                self._holder[1].set()
            self._holder = thread_id, lease
        return lease

    def _end_lease(self, turn: Turn) -> None:
        """Ends a turn that was not passed on."""
        with self._lock:
            if self._holder is not None and self._holder[1] is turn:
                self._holder = None
                self._lock.notify_all()

    def _read_state_after_reset(self, episode: ServedEpisode) -> str:
        """The state after the reset. Raises Refused if the server refuses it."""
        assert self.reset is not None
        self._make_world(episode).call(self.reset.name, self.reset.arguments)
        return self._read_state(episode)

    def _read_state(self, episode: ServedEpisode) -> str:
        return canonical(to_json(self._make_world(episode).state()))

    def _make_world(self, episode: ServedEpisode) -> ServerWorld:
        return ServerWorld(episode, self.read_state, Turn(), lambda is_usable: None, Ids(self.ids))

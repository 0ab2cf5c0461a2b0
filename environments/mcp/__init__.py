"""Any MCP server as an environment; see docs/mcp.md.

launch.py       settings → the worker: of a command, confined, or of an address
inside.py       in a worker: one server, or one session, an episode
connection.py   in a worker: the ways to a server, over stdio and over streamable HTTP; a session, by the official SDK
snapshot.py     in a worker: a folder → JSON
resources.py    a server's resources as two tools
world.py        setup → a world: an episode's server, as environments/tools acts on it; servers of several episodes
sql.py          statements worth trying on the tables of a database
servers.toml    ONE table of public servers that this is proved with
data.py         reads it; installs the servers, makes the folders of their episodes
"""

import contextlib
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.environment import EnvironmentFailure, Traits, ask
from cojax.worlds import find_function
from ..tools import ToolEnvironment
from ..tools.toolset import Refused
from ..worker import Bounds, IsolatedEnvironment
from . import launch
from .data import RECIPE, SERVERS
from .world import NAME, Offer, Opener, ReadState, ask_offer, read_answers, read_calls

__all__ = ["COUNT", "RECIPE", "cases", "examine", "make"]

# Setups that `environments.check mcp` examines of each server unless it is told.
COUNT = 6
# An error that a server returns as a success.
_ERROR_PATTERN = r"(?i)\s*(\w+ )?error\b"
# A verdict may take this many times the deadline of one call, because it opens a second server and repeats the
# solution's calls.
_CALLS_IN_VERDICT = 6
# Limits on an episode's processes and threads, of which servers with thread pools have dozens, and on the values of a
# state, which has no more than snapshot.MAX_CHARS characters.
_MAX_PROCESSES, _MAX_REPLY_VALUES = 128, 1_100_000
# How many episodes are played at a time, if no setting says: on servers of a command, and on a server at an address.
_DEFAULT_COMMAND_EPISODES, _DEFAULT_URL_EPISODES = 8, 1
# A function of the user's, as opposed to a tool or JSON.
_FUNCTION_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# Calls that are tried to find one that changes the state.
_MAX_TRIED_ACTIONS = 24


def cases(settings: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """What `environments.check mcp` checks: each public server by its name, unless the settings name a server."""
    if settings.keys() & {"command", "url", "server"}:
        return {str(settings.get("server", "")): settings}
    return {server_name: {"server": server_name, **settings} for server_name in SERVERS}


def make(
    *,
    command: str = "",
    url: str = "",
    unconfined: bool = False,
    headers: str = "",
    server: str = "sqlite",
    folders: str = "",
    setups: str = "",
    reset: str = "",
    reuse: bool = False,
    state: str = "",
    errors: str = _ERROR_PATTERN,
    ids: str = "",
    ignore: str = "*.pyc,*.log,*-journal,*-wal,*-shm",
    affordances: str = "",
    lookups: str = "",
    variables: str = "",
    visible: str = "",
    instructions: str = "",
    deadline: float = 30.0,
    memory: float = 2.0,
    concurrency: int = 0,
) -> ToolEnvironment:
    """The environment `mcp`: the server that `command` starts, the one at `url`, or a public `server` of the table.

    Raises ValueError for settings that make no environment, InstallError if `python -m environments.install mcp` was
    not run, and EnvironmentFailure if the server does not start. docs/mcp.md describes the settings.
    """
    settings = dict(locals())
    if not command and not url:
        if (entry := SERVERS.get(server)) is None:
            raise ValueError(f"server {server!r} not found; available: {', '.join(SERVERS)}; or give a `command`")
        command, folders, state = entry.start_command(), folders or str(entry.folder), state or entry.state
        setups, affordances = setups or entry.setups, affordances or entry.affordances
        variables = f"{entry.variables} {variables}"
    examine(**(settings | {"command": command, "folders": folders, "variables": variables}))
    starts_folder = Path(folders).expanduser().absolute() if folders else None
    all_setups = _read_setups(setups, starts_folder)
    bounds = Bounds(deadline=deadline, memory=int(memory * 2**30), processes=_MAX_PROCESSES, values=_MAX_REPLY_VALUES)
    slots = concurrency or (_DEFAULT_URL_EPISODES if url else _DEFAULT_COMMAND_EPISODES)
    if url:
        worker = launch.make_unconfined(url, headers, errors, bounds)
    else:
        worker = launch.make_confined(command, starts_folder, variables, visible, errors, ignore, bounds)
    try:
        server_offer = ask_offer(worker, all_setups[0])
        opener = _make_opener(worker, server_offer, all_setups, url, reset, state, slots, ids)
        environment = ToolEnvironment(
            NAME,
            # A policy that resets the server would undo what it has done.
            tools=[tool for tool in server_offer.documents if not opener.is_reset(tool)],
            open=opener,
            setups=all_setups,
            affordances=find_function("affordances", affordances) if affordances else None,
            lookups=lookups.split(",") if lookups else server_offer.lookups or None,
            trials=False,
            instructions=instructions or server_offer.instructions,
            traits=Traits(concurrency=slots, deadline=_CALLS_IN_VERDICT * deadline, worded_alike=True, reuses=reuse),
        )
        if url:
            _prove_isolation(environment, slots)
    except (ValueError, EnvironmentFailure):
        worker.close()
        raise
    return environment


def examine(*, command: str, url: str, headers: str, errors: str, reset: str, reuse: bool, **others: Any) -> None:
    """Raises ValueError for settings that contradict each other, that cannot be read, or that may hold a secret."""
    for setting, pattern in (("errors", errors), ("ids", others["ids"])):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{setting} is {pattern!r}, which is not a regular expression: {error}") from error
    if others["ids"] and re.search(others["ids"], "") is not None:
        raise ValueError(f"ids is {others['ids']!r}, which also finds an empty text; expected one that finds ids alone")
    if command and url:
        raise ValueError("command and url name two servers; expected one of them")
    values = {"headers": headers, **others}
    if unfit_names := [name for name in (("folders", "variables", "visible") if url else ("headers",)) if values[name]]:
        advice = "a server at a url starts elsewhere" if url else "a command takes `variables`, and no headers"
        raise ValueError(f"{unfit_names[0]} is given, but {advice}; leave it out")
    if reuse and (url or not reset):
        advice = "leave it out: it is about servers of a command" if url else "name in `reset` the tool that does that"
        raise ValueError(f"reuse is True, but no reset leads a server of a command back to its start; {advice}")
    if reset and not (url or reuse):
        raise ValueError(
            f"reset is {reset!r:.100}, but each episode has a server of its own; leave it out, or set reuse=True: a "
            "server then serves several episodes, and whatever it keeps beside its state is read by later ones"
        )
    if url and not others["unconfined"]:
        raise ValueError(
            "a server at a url is not confined: it does whatever a policy asks; if it may, set unconfined=True"
        )
    if url:
        launch.read_address(url)
        launch.read_headers(headers)
    elif command:
        launch.split_command(command)
        launch.read_variables(others["variables"])


def _make_opener(
    worker: IsolatedEnvironment,
    offer: Offer,
    setups: Sequence[Mapping[str, Any]],
    url: str,
    reset_setting: str,
    state: str,
    concurrency: int,
    ids: str,
) -> Opener:
    """The source of worlds.

    Raises ValueError for calls that the server does not offer, for calls to read the state that it refuses at the start
    of an episode, and for a server at a url whose episodes cannot be compared.
    """
    for setup in setups:
        read_calls("setups", setup.get("calls", ()), offer.tool_names)
    if url and not (reset_setting and state):
        unset = " and ".join(name for name, setting in (("reset", reset_setting), ("state", state)) if not setting)
        raise ValueError(
            f"the server at {url} has no {unset}: without both, no two episodes can be compared, so nothing is trained "
            "on and no task is synthesized. Name the call that leads it back to its start in `reset`, and in `state` "
            f"calls that show all that counts, or a function of your own. It offers {', '.join(offer.tool_names)}"
        )
    reset_calls = read_calls("reset", reset_setting, offer.tool_names) if reset_setting else ()
    if len(reset_calls) > 1:
        raise ValueError(f"reset names {len(reset_calls)} calls; expected one")
    state_calls = () if not state or _FUNCTION_PATH.fullmatch(state) else read_calls("state", state, offer.tool_names)
    read: ReadState = find_function("state", state) if state and not state_calls else lambda folder, call_server: folder
    if state_calls:
        read = functools.partial(read_answers, state_calls)
    alone = bool(url) and concurrency == 1
    reset_call = reset_calls[0] if reset_calls else None
    opener = Opener(
        worker, offer, read, reset=reset_call, max_idle=concurrency, is_lasting=bool(url), is_alone=alone, ids=ids
    )
    if state_calls:
        with contextlib.closing(opener(setups[0])) as world:
            for call in state_calls:
                try:
                    world.call(call.name, call.arguments)
                except Refused as refusal:
                    raise ValueError(f"state names {call.name!r}, which the server refuses: {refusal}") from refusal
    return opener


def _prove_isolation(environment: ToolEnvironment, concurrency: int) -> None:
    """Proves that episodes of a server at a url have their own states, if several are to be played at a time.

    For a server with one state, it finds the look-ups now: later, that would wait for episodes that wait for it. Raises
    ValueError, and EnvironmentFailure if the server fails.
    """
    (setup,) = environment.tasks("seed", 1)
    with contextlib.closing(environment.start(setup)) as episode, contextlib.closing(environment.start(setup)) as rival:
        ask(episode.reset)
        state_before = ask(episode.state)
        if concurrency == 1:
            episode.close()
            for tool in environment.tools():
                environment.is_lookup(tool["function"]["name"])
            return
        for action in ask(episode.affordances)[:_MAX_TRIED_ACTIONS]:
            ask(episode.step, action)
            if (state_after := ask(episode.state)) != state_before:
                ask(rival.reset)
                if ask(episode.state) != state_after:
                    raise ValueError(
                        f"concurrency is {concurrency}, but another session resets the state of the first: the server "
                        "has one state for all of them; expected concurrency=1"
                    )
                return


def _read_setups(setting: str, folder: Path | None) -> list[Mapping[str, Any]]:
    """The setups of a file, or else one for each start folder, or else an empty one. Raises ValueError."""
    folder_names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder and folder.is_dir() else []
    if folder and not folder_names:
        raise ValueError(f"{folder} holds no folders; expected one folder for each start of an episode")
    if not setting:
        return [{"folder": folder_name} for folder_name in folder_names] or [{}]
    try:
        setups = json.loads(setting if setting.lstrip().startswith("[") else Path(setting).expanduser().read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"setups is {setting!r:.200}, which cannot be read as JSON: {error}") from error
    if not (isinstance(setups, list) and setups and all(isinstance(setup, dict) for setup in setups)):
        raise ValueError(f"setups is {setting!r:.200}; expected a list of objects, each with `folder`, `calls` or both")
    if unknown_names := [setup["folder"] for setup in setups if setup.get("folder") not in (None, *folder_names)]:
        raise ValueError(f"a setup names the folder {unknown_names[0]!r}; expected a folder in {folder or '`folders`'}")
    return setups

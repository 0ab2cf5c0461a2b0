"""The worker that runs a model's code, on a root without ground truth, in AppWorld's own interpreter.

The trainer uses only the output and the calls that this worker reports; the judge replays the calls (environment.py).
The worker also finds the skills that would work now, with arguments from the world.
"""

import functools
import itertools
import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cojax.types import Action, Call, Message, Observation, Task, content_hash
from ..worker.kernel import succeeds
from ..worker.served import Episodes, PlainEpisode
from . import world
from .skills import ENDING, KINDS, SKILLS, ApiSkill
from .world import World

# The role of the message that holds a step's calls; only environment.py reads it.
CALLS_ROLE = "calls"
# The most characters of output that are returned; a note says how many were cut.
MAX_OUTPUT_CHARS = 15_000
# How the package's output begins if code did not run to its end.
_FAILURE_PREFIXES = ("Execution failed", "No code available")


def make(data: str, truth: Sequence[str], seconds: float) -> Episodes:
    """The environment in which code runs, on the data folder `data` without ground truth.

    `truth` holds the paths of the folder with ground truth, which must not be readable; each start of an episode and
    each call of `tools` checks this. One block of code may take `seconds` of processor time. A task's setup names the
    world: {"task": id}.
    """
    world.import_package(data)

    def tools() -> tuple[Mapping[str, Any], ...]:
        check_sealed(data, truth)
        return ()

    def start(task: Task) -> PlainEpisode:
        check_sealed(data, truth)
        world.make_own_root(data)
        app_world = World(data, task.setup["task"], seconds)
        app_world.set_instruction(task.query)
        return make_episode(app_world, content_hash(task.setup))

    return Episodes("appworld", start, tools=tools)


def make_episode(app_world: World, salt: str) -> PlainEpisode:
    """The episode of one world. An action's text is code; the reply's last message records its calls, as JSON.

    The skills that it offers would work now, and equal actions lead to equal offers. `salt` stands for its task.
    """
    affordances, last_output = Affordances(app_world), ""

    def step(action: Action) -> Observation:
        nonlocal salt, last_output
        output, calls = app_world.execute(action.text)
        salt, last_output = content_hash([salt, action.text]), output.strip()
        ok = not output.startswith(_FAILURE_PREFIXES)
        excess = len(last_output) - MAX_OUTPUT_CHARS
        shown_output = f"{last_output[:MAX_OUTPUT_CHARS]}\n[{excess} characters cut]" if excess > 0 else last_output
        messages = (Message("user", shown_output), Message(CALLS_ROLE, json.dumps(calls)))
        return Observation(messages, ok=ok, done=app_world.is_complete)

    return PlainEpisode(step, affordances=lambda: affordances.draw_actions(salt, last_output))


# How to give a process its own view of the files.
_HINT = "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, Docker's --security-opt seccomp=unconfined)"


def check_sealed(data_folder: str, truth_folders: Sequence[str]) -> None:
    """Raises PermissionError if this process could read ground truth, or cannot enter the folders that it needs.

    It tries to list each folder, as the kernel's rules can forbid what permissions allow.
    """
    if leaks := [folder for folder in truth_folders if succeeds(functools.partial(os.listdir, folder))]:
        raise PermissionError(
            f"a model's code could read the ground truth in {leaks[0]}: this system can give a process neither its own "
            "view of the files, nor rules about them (Landlock), nor, under root, its own user. Run as an "
            f"ordinary user and {_HINT}"
        )
    for folder in (data_folder, sys.prefix, sys.base_prefix):
        if not succeeds(functools.partial(os.listdir, folder)):
            raise PermissionError(
                f"a model's code runs as user {os.getuid()} here, who cannot enter {folder}: let others enter every "
                f"folder above it (chmod o+x), or run as an ordinary user and {_HINT}"
            )


# Kinds of values that an action may change; each other kind is looked up only once.
_CHANGING_KINDS = ("liked", "playlist", "artist", "followed", "note", "todo", "project", "alarm")
# The most values of a kind that are offered.
_MAX_VALUES_PER_KIND = 6
# The most actions of one skill that are offered.
_MAX_CALLS_PER_SKILL = 5
# The most characters of an output that could be an answer.
_MAX_ANSWER_CHARS = 100

Values = list[tuple[Any, ...]]


class Affordances:
    """Values of a world that skills can take as arguments. Looking them up leaves no trace."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(0)
        self.tokens: dict[str, str | None] = {}
        self.values_by_kind: dict[str, Values] = {}

    def draw_actions(self, salt: str, last_output: str) -> tuple[Action, ...]:
        """Actions of one call each, drawn by `salt`. The last ones complete the task, also with `last_output`."""
        self.rng = random.Random(salt)
        for value_kind in _CHANGING_KINDS:
            self.values_by_kind.pop(value_kind, None)
        calls = [call for skill in SKILLS.values() for call in self.draw_calls(skill)]
        endings = [{}, {"answer": last_output}] if 0 < len(last_output) <= _MAX_ANSWER_CHARS else [{}]
        return tuple(Action(calls=(call,)) for call in (*calls, *(Call(ENDING, arguments) for arguments in endings)))

    def draw_calls(self, skill: ApiSkill) -> list[Call]:
        """Some calls of the skill, with different arguments; none if an argument has no value."""
        values_of_kinds = [_sample(self.list_values(kind), _MAX_VALUES_PER_KIND, self.rng) for kind in skill.slots]
        combinations = list(itertools.islice(itertools.product(*values_of_kinds), 200))
        return [
            Call(skill.name, dict(zip(skill.parameters, itertools.chain.from_iterable(combination), strict=True)))
            for combination in _sample(combinations, _MAX_CALLS_PER_SKILL, self.rng)
        ]

    def list_values(self, value_kind: str) -> Values:
        """The values of the kind, each a tuple of arguments."""
        if value_kind not in self.values_by_kind:
            self.values_by_kind[value_kind] = list(dict.fromkeys(_look_up_values(self, value_kind)))
        return self.values_by_kind[value_kind]

    def fetch_rows(self, app: str, api: str, **arguments: Any) -> list[Mapping[str, Any]]:
        """One page of a list, of the supervisor's own account if there is one; by default the first page."""
        if (access_token := self.log_in(app)) is not None:
            arguments["access_token"] = access_token
        rows = self.world.peek(app, api, **arguments)
        return rows if isinstance(rows, list) else []

    def log_in(self, app: str) -> str | None:
        if app not in self.tokens:
            profile = self.world.peek("supervisor", "show_profile") or {}
            accounts = self.world.peek("supervisor", "show_account_passwords") or []
            passwords = {account["account_name"]: account["password"] for account in accounts}
            user_name = profile.get("phone_number" if app == "phone" else "email")
            login_reply = self.world.peek(app, "login", username=user_name, password=passwords.get(app, "")) or {}
            self.tokens[app] = login_reply.get("access_token")
        return self.tokens[app]


def _list_values(affordances: Affordances, endpoint: str, columns: Sequence[str]) -> Values:
    """The columns of a list's rows, from its first page, or from one drawn at random if there are more."""
    app, api = endpoint.split(".")
    rows = affordances.fetch_rows(app, api, page_limit=20)
    if len(rows) == 20:
        # The world's id is the seed, so that an episode offers the same songs throughout.
        page_index = random.Random(f"{affordances.world.id} {api}").randrange(3)
        rows = affordances.fetch_rows(app, api, page_limit=20, page_index=page_index) or rows
    return [(" ".join(row[column] for column in columns),) for row in rows]


def _list_todos(affordances: Affordances) -> Iterable[tuple[Any, ...]]:
    for project in affordances.fetch_rows("todoist", "show_projects", page_limit=20)[:4]:
        token = affordances.log_in("todoist")
        tasks_reply = affordances.world.peek(
            "todoist", "show_tasks", project_id=project["project_id"], access_token=token
        )
        for task in (tasks_reply or {}).get("no_section_tasks", ()):
            if not task["is_completed"]:
                yield task["title"], project["name"]


def _list_alarms(affordances: Affordances) -> Iterable[tuple[Any, ...]]:
    return [(row["label"], not row["enabled"]) for row in affordances.fetch_rows("phone", "show_alarms", page_limit=20)]


_LISTERS: Mapping[str, Callable[[Affordances], Iterable[tuple[Any, ...]]]] = {
    "todos": _list_todos,
    "alarms": _list_alarms,
}


def _look_up_values(affordances: Affordances, value_kind: str) -> Iterable[tuple[Any, ...]]:
    """Finds the values of the kind, which skills.txt defines."""
    match KINDS[value_kind].split():
        case [lister_name] if lister_name in _LISTERS:
            return _LISTERS[lister_name](affordances)
        case [base_kind, "but", omitted_kind]:
            return [
                value
                for value in affordances.list_values(base_kind)
                if value not in affordances.list_values(omitted_kind)
            ]
        case [endpoint, *columns] if "." in endpoint and endpoint[0].isalpha():
            return _list_values(affordances, endpoint, columns)
    return [(value,) for value in json.loads(f"[{KINDS[value_kind]}]")]


def _sample(items: Values | list[Any], count: int, rng: random.Random) -> list[Any]:
    return rng.sample(items, min(count, len(items)))

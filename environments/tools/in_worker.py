"""A world in a worker, as environments/tools acts on it. It sends whole actions, because packages take turns."""

import collections
import contextlib
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cojax.environment import EnvironmentFailure, SandboxLost, Traits
from cojax.types import Action, Call, Evaluation, Message, Task
from ..worker import Bounds, IsolatedEnvironment, isolate
from ..worker.served import ServedEpisode
from ..worker.venv import Recipe, interpreter
from .environment import ToolEnvironment, choose_end_name, end_task
from .toolset import Refused

# The most of an action that is sent. environments/tools carries out the same number of calls.
_MAX_CALLS_AT_ONCE, _MAX_TEXT_CHARS, _MAX_ARGUMENT_BYTES = 64, 100_000, 100_000
# The most tasks of one split of a package.
MAX_OFFICIAL_TASKS = 10_000
# A verdict may take this many times the deadline of one call, because it opens a second world and repeats the
# solution's calls.
_DEADLINES_PER_VERDICT = 6


def make_opening(introduction: str, incomparable: str = "") -> tuple[Message, ...]:
    """The first message of an episode, as JSON: its part of the system message, and why its state cannot be compared,
    if it cannot."""
    return (Message("system", json.dumps({"introduction": introduction, "incomparable": incomparable})),)


class WorkerWorld:
    """The world of an episode that was started. The episode answers each call of an action with one message."""

    def __init__(self, episode: ServedEpisode) -> None:
        (message,) = episode.reset()
        facts = json.loads(message.content)
        self._episode, self._introduction, self.incomparable = episode, facts["introduction"], facts["incomparable"]
        self._is_over = False
        self._replies: collections.deque[tuple[Call, str, bool]] = collections.deque()

    def on_offer(self) -> tuple[Mapping[str, Any], ...]:
        """The documentation of the tools that the episode offers."""
        return self._episode.tools()

    def introduction(self) -> str:
        return self._introduction

    def listen(self, action: Action) -> None:
        """Sends the action, and keeps the answers to its calls."""
        calls = tuple(_make_sendable(action.calls[:_MAX_CALLS_AT_ONCE]))
        action_text = action.text[:_MAX_TEXT_CHARS].encode("utf-8", "replace").decode()
        reply = self._episode.step(Action(action_text, calls, action.error[:_MAX_TEXT_CHARS]))
        self._is_over |= reply.done
        messages = reply.messages if len(reply.messages) == len(calls) else reply.messages[:1] * len(calls)
        # A message with the role "user" is an error: an action may have calls that work and calls that do not.
        self._replies = collections.deque(
            (call, message.content, message.role == "tool") for call, message in zip(calls, messages, strict=True)
        )

    def call(self, tool_name: str, arguments: Mapping[str, Any]) -> str:
        """The answer to a call of the action that was sent. Raises Refused for an error."""
        for position, (call, reply_text, is_result) in enumerate(self._replies):
            if call.name == tool_name and dict(call.arguments) == dict(arguments):
                for _ in range(position + 1):
                    self._replies.popleft()
                if not is_result:
                    raise Refused(reply_text)
                return reply_text
        raise Refused("the call was not carried out: it is too long, or no JSON")

    def listened(self) -> None:
        """Drops the answers to calls that were refused here."""
        self._replies.clear()

    def over(self) -> bool:
        """Whether the episode has ended itself, and all its answers were taken."""
        return self._is_over and not self._replies

    def state(self) -> Mapping[str, Any]:
        return self._episode.state()

    def verdict(self) -> Evaluation:
        """The package's own verdict on the episode."""
        return self._episode.evaluate()

    def close(self) -> None:
        self._episode.close()


def read_json(setting_name: str, setting_text: str) -> Any:
    """The value of a setting that is JSON. Raises ValueError, which names the setting."""
    try:
        return json.loads(setting_text)
    except ValueError as error:
        raise ValueError(f"{setting_name} is {setting_text!r:.200}, which is not JSON: {error}") from error


def check_full_reward(full_reward: float) -> None:
    """Raises ValueError for a number that cannot be the reward of success."""
    if not 0 < full_reward < math.inf:
        raise ValueError(f"full is {full_reward}; expected the reward of a solved task, more than 0")


def split_folders(folder_list: str) -> tuple[str, ...]:
    """The folders that a setting names, separated by colons, as absolute paths."""
    return tuple(str(Path(folder).expanduser().absolute()) for folder in folder_list.split(":") if folder)


def make_environment(
    package: str, env_name: str, recipe: Recipe, settings: Mapping[str, Any], *, by_text: bool, **worker_settings: Any
) -> ToolEnvironment:
    """The environment of a package's official tasks, whose worlds are made in a worker by the module `package`.inside.

    An official task gets the package's own verdict, any other one a replay of its solution. With `by_text`, a text
    without calls ends an episode; otherwise a tool of ours does. `settings` are those of `make`, with the function
    `affordances` in place of its name: `lookups` are names of tools, separated by commas; a call may take `deadline`
    seconds, and each process `memory` GiB. `worker_settings` go to the worker, as do `path` and `arguments`.
    """
    deadline, import_folders = settings["deadline"], split_folders(settings["path"])
    worker = isolate(
        f"{package}.inside",
        python=settings["python"] or interpreter(env_name, recipe),
        bounds=Bounds(deadline=deadline, memory=int(settings["memory"] * 2**30), processes=64),
        visible=(*import_folders, *split_folders(settings["visible"])),
        path=import_folders,
        arguments=json.loads(settings["arguments"]),
        **worker_settings,
    )
    try:
        splits = {split: worker.tasks(split, MAX_OFFICIAL_TASKS) for split in ("train", "dev", "eval")}
        official_ids = {task.id for tasks in splits.values() for task in tasks}
        open_world = make_opener(worker, env_name)
        with contextlib.closing(open_world(splits["train"][0].setup)) as world:
            tools, incomparable = worker.tools() or world.on_offer(), world.incomparable
        ending = "" if by_text else choose_end_name([document["function"]["name"] for document in tools])
        return ToolEnvironment(
            env_name,
            tools=tools,
            open=open_world,
            setups=[task.setup for task in splits["train"]],
            splits={
                split: [end_task(task, ending) if ending else task for task in tasks] for split, tasks in splits.items()
            },
            judge=lambda task, world, answer, finished: world.verdict() if task.id in official_ids else None,
            affordances=settings["affordances"],
            lookups=settings["lookups"].split(",") if settings["lookups"] else None,
            trials=False,
            instructions=settings["instructions"],
            ending=ending,
            traits=Traits(
                concurrency=settings["concurrency"],
                deadline=_DEADLINES_PER_VERDICT * deadline,
                worded_alike=True,
                incomparable=incomparable or worker.traits.incomparable,
            ),
        )
    except (ValueError, EnvironmentFailure):
        worker.close()
        raise


def make_opener(worker: IsolatedEnvironment, env_name: str) -> Callable[[Mapping[str, Any]], WorkerWorld]:
    """setup → a world, with its own episode. Raises EnvironmentFailure if that does not open."""

    def open_world(setup: Mapping[str, Any]) -> WorkerWorld:
        episode = worker.start(Task(env_name, "", setup))
        try:
            return WorkerWorld(episode)
        except BaseException as error:
            episode.close()
            if isinstance(error, SandboxLost):  # before a policy has done anything
                raise EnvironmentFailure(str(error)) from error
            raise

    return open_world


def read_actions(solution: Iterable[Any]) -> tuple[Action, ...]:
    """The actions of a user's solution: texts, and calls as {"name", "arguments"}. Raises ValueError."""
    actions = []
    for step in solution:
        try:
            calls = () if isinstance(step, str) else (Call(step["name"], dict(step.get("arguments", {}))),)
            actions.append(Action(step if isinstance(step, str) else "", calls))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f'a solution holds {step!r:.200}; expected text or {{"name", "arguments"}}') from error
    return tuple(actions)


def find_function(function_path: str, import_folders: Sequence[str]) -> Callable[..., Any] | None:
    """The function package.module:function within the worker; None for "". `import_folders` are the user's folders.

    Raises ValueError for a module that is missing or cannot be imported, and for a name that it does not define.
    """
    if not function_path:
        return None
    module, _, attribute = function_path.partition(":")
    try:
        namespace = vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        raise ValueError(f"{function_path!r} {explain_missing(module, error, import_folders)}") from error
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ValueError(f"{function_path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if attribute not in namespace:
        raise ValueError(
            f"{function_path!r} is not there: {namespace.get('__file__') or module} defines no {attribute!r}; expected "
            "package.module:name"
        )
    return namespace[attribute]


def explain_missing(module_name: str, error: ModuleNotFoundError, import_folders: Sequence[str]) -> str:
    """Why a worker cannot import a module: the module is missing, or one that it imports is."""
    absent_module = error.name or module_name
    folder_list = ", ".join(import_folders) or "no folder, as `path` names none (the current folder is not read)"
    search_place = f"in {folder_list}, nor among the packages of {sys.prefix}"
    if module_name == absent_module or module_name.startswith(f"{absent_module}."):
        return f"is not there: no module {absent_module!r} {search_place}; name its folder in `path`"
    return f"cannot be imported: it needs {absent_module!r}, which is not {search_place}"


def compute_share(total_reward: float, full_reward: float, reward_name: str) -> float:
    """A package's reward over that of success, as a number in [0, 1]. Raises ValueError for one that is not finite."""
    return min(max(require_finite(total_reward, reward_name) / full_reward, 0.0), 1.0)


def require_finite(reward: Any, reward_name: str) -> float:
    """A reward as a number; an error calls it `reward_name`. Raises ValueError for one that is not finite."""
    try:
        number = math.nan if isinstance(reward, (str, bytes)) else float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{reward_name} is {reward!r:.100}; expected a finite number")
    return number


def _make_sendable(calls: tuple[Call, ...]) -> Iterator[Call]:
    """The calls; one that is too long or not JSON becomes a call that no tool takes."""
    for call in calls:
        try:
            num_bytes = len(json.dumps([call.name, dict(call.arguments)], allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError, RecursionError):  # also for half a character
            num_bytes = _MAX_ARGUMENT_BYTES + 1
        yield call if num_bytes <= _MAX_ARGUMENT_BYTES else Call("")

"""A taskset of the installed package: its tasks and tools. What has no counterpart here is refused."""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from verifiers.v1.session import hook_boundary
from verifiers.v1.state import state_cls
from verifiers.v1.types import content_text
from verifiers.v1.utils.decorators import discover_decorated
from verifiers.v1.utils.loaders import default_harness_id

from cojax.types import Action, Task, content_hash
from ..tools.in_worker import explain_missing, read_actions
from ..tools.toolset import to_document

NAME = "verifiers"
# The harness of a taskset that brings none. Here the policy plays its part, with only the taskset's tools.
_PLAIN_HARNESS = "bash"
# Of a taskset without evaluation tasks, one task in this many is held out; half of these are for dev, half for eval.
_TASKS_PER_HELD_OUT = 5
_NO_STATE_REASON = "the taskset declares no State of its own"
_NO_TOOLS_REASON = "the taskset has no tools"


@dataclasses.dataclass(frozen=True)
class Source:
    """A loaded taskset and its tasks."""

    taskset: Any
    tasks: Sequence[Any]

    @classmethod
    def load(cls, name: str, path: Sequence[str], arguments: Mapping[str, Any], max_tasks: int) -> "Source":
        """At most `max_tasks` tasks. `path` are the user's folders.

        Raises ValueError for a taskset that is not there, that has no counterpart here, or that has no tasks.
        """
        try:
            config_type = vf.taskset_config_type(name)
        except ModuleNotFoundError as error:  # the package's own, which may hide that of an import
            cause = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
            # What the package imports for the name of a taskset, owner/name@version.
            package_name = name.rpartition("/")[2].partition("@")[0].replace("-", "_").lower()
            raise ValueError(f"the taskset {name!r} {explain_missing(package_name, cause, path)}") from error
        taskset_config = config_type.model_validate({**arguments, "id": name})
        if (env_type := vf.environment_class(name)) is not vf.SingleAgentEnv:
            raise _make_refusal(name, f"its environment {env_type.__name__} plays agents of its own against the policy")
        if (harness := default_harness_id(name)) != _PLAIN_HARNESS:
            raise _make_refusal(name, f"the harness {harness!r} that it brings runs the agent itself")
        taskset = vf.load_taskset(taskset_config)
        tasks = list(taskset.take(max_tasks))
        if not tasks:
            raise ValueError(f"the taskset {name!r} has no tasks with {dict(arguments)!r}")
        source = cls(taskset, tasks)
        kind_reasons = (reason for index, task in source.list_task_kinds() for reason in _find_obstacles(index, task))
        task_reasons = (reason for index, task in enumerate(tasks) for reason in _find_data_obstacles(index, task))
        for reason in itertools.chain(kind_reasons, task_reasons):
            raise _make_refusal(name, reason)
        return source

    def list_task_kinds(self) -> list[tuple[int, Any]]:
        """The first task of each class and configuration, with its index: these decide what the others have too."""
        # Most tasks share one configuration object, whose text is then made once.
        config_texts = {id(task.config): repr(task.config) for task in self.tasks}
        first_tasks: dict[tuple[type, str], tuple[int, Any]] = {}
        for index, task in enumerate(self.tasks):
            first_tasks.setdefault((type(task), config_texts[id(task.config)]), (index, task))
        return list(first_tasks.values())

    def list_toolsets(self, task: Any) -> list[tuple[Any, bool]]:
        """The toolsets of an episode, and whether each is the task's. Raises ValueError for one served elsewhere."""
        common = type(self.taskset).toolsets(self.taskset.config)
        sets = [*((toolset, False) for toolset in common), *((toolset, True) for toolset in task.toolsets(task.config))]
        for toolset, _ in sets:
            if toolset.config.url or toolset.config.runtime.type != "subprocess":
                raise ValueError(
                    f"the toolset {type(toolset).__name__} is served elsewhere; expected no url or container"
                )
        return sets

    def explain_incomparable(self) -> str:
        """Why the states of two episodes cannot be compared, "" if those of all tasks can."""
        indexed_reasons = [(index, self._explain_lack(task)) for index, task in self.list_task_kinds()]
        reasons = [(index, reason) for index, reason in indexed_reasons if reason]
        if not reasons:
            return ""
        index, reason = reasons[0]
        return reason if len({reason for _, reason in indexed_reasons}) == 1 else f"task {index}: {reason}"

    def _explain_lack(self, task: Any) -> str:
        if not self.list_toolsets(task):
            return _NO_TOOLS_REASON
        return "" if set(state_cls(type(task)).model_fields) - set(vf.State.model_fields) else _NO_STATE_REASON


def list_documents(sources: Iterable[Source]) -> tuple[Mapping[str, Any], ...]:
    """Every tool that some task offers, in OpenAI function format. Raises ValueError for two of one name."""
    first_uses: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for source in sources:
        for index, task in source.list_task_kinds():
            own_names: set[str] = set()
            for toolset, _ in source.list_toolsets(task):
                for tool in asyncio.run(make_server(toolset).list_tools()):
                    tool_document = make_document(toolset, tool)
                    name = tool_document["function"]["name"]
                    first_idx, first_document = first_uses.setdefault(name, (index, tool_document))
                    if name in own_names:
                        raise ValueError(
                            f"task {index}: two tools are called {name!r}; give one toolset a TOOL_PREFIX of its own"
                        )
                    if first_document != tool_document:
                        raise ValueError(
                            f"task {index}: the tool {name!r} differs from that of task {first_idx}; give one toolset "
                            "a TOOL_PREFIX of its own"
                        )
                    own_names.add(name)
    return tuple(tool_document for _, tool_document in first_uses.values())


def make_document(toolset: Any, tool: Any) -> Mapping[str, Any]:
    """A tool of the toolset, in OpenAI function format."""
    tool_name = f"{toolset.server_name}_{tool.name}" if toolset.server_name else tool.name
    return to_document(tool_name, tool.description or "", tool.input_schema)


def make_server(toolset: Any) -> MCPServer:
    """The toolset's tools as the server that the package would start for it, without its port."""
    server = MCPServer(toolset.server_name or type(toolset).__name__)
    toolset.register(server)
    return server


def divide_tasks(
    train_source: Source, held_out_source: Source | None, solve: Callable[..., Any] | None
) -> tuple[dict[str, tuple[Task, ...]], Callable[[Mapping[str, Any]], tuple[Source, Any]]]:
    """The tasks of each split, and the source and the task there that a setup names.

    The tasks of `held_out_source` are those of eval, and the first of them those of dev. Without it a fifth of the
    tasks, by a hash of each, is divided between the two.
    """
    sources = {"train": train_source, **({"eval": held_out_source} if held_out_source else {})}
    tasks_by_split: dict[str, list[Task]] = {"train": [], "dev": [], "eval": []}
    for source_name, source in sources.items():
        for index, package_task in enumerate(source.tasks):
            task = _to_task(source_name, index, package_task, solve)
            split = source_name
            if held_out_source is None:
                remainder = int(content_hash(["held out", package_task.key]), 16) % (2 * _TASKS_PER_HELD_OUT)
                split = "dev" if remainder == 0 else "eval" if remainder == 1 else "train"
            tasks_by_split[split].append(task)
    if held_out_source is not None:
        tasks_by_split["dev"] = tasks_by_split["eval"]
    if not tasks_by_split["train"]:
        tasks_by_split = {"train": [*tasks_by_split["dev"], *tasks_by_split["eval"]], "dev": [], "eval": []}
    distinct = {split: tuple({task.id: task for task in tasks}.values()) for split, tasks in tasks_by_split.items()}
    held_out_queries = {task.query for split in ("dev", "eval") for task in distinct[split]}
    distinct["train"] = tuple(task for task in distinct["train"] if task.query not in held_out_queries)
    if not distinct["train"]:
        raise ValueError("every task to train on is also evaluated on; give `evaluation` settings of other tasks")

    def find_package_task(setup: Mapping[str, Any]) -> tuple[Source, Any]:
        """Raises ValueError for a setup that names no task."""
        source, index = sources.get(setup.get("of", "")), setup.get("task")
        if source is None or not isinstance(index, int) or not 0 <= index < len(source.tasks):
            raise ValueError(f"the setup is {dict(setup)!r:.200}; expected a task of {', '.join(sources)}")
        return source, source.tasks[index]

    return distinct, find_package_task


def read_system_text(task: Any) -> str:
    """The system message of a task, "" if it has none."""
    prompt = task.data.prompt
    texts = [content_text(message.content) for message in prompt[:-1]] if isinstance(prompt, list) else []
    return "\n\n".join(filter(None, [task.data.system_prompt or "", *texts]))


def read_query(task: Any) -> str:
    """What the user asks for."""
    prompt = task.data.prompt
    return prompt if isinstance(prompt, str) else content_text(prompt[-1].content)


def _to_task(source_name: str, index: int, package_task: Any, solve: Callable[..., Any] | None) -> Task:
    actions = read_actions(solve(package_task.data)) if solve else ()
    if actions and actions[-1].calls:
        actions = (*actions, Action())
    return Task(NAME, read_query(package_task), {"of": source_name, "task": index}, actions)


def _find_obstacles(index: int, task: Any) -> Iterator[str]:
    """What a kind of task, of which `task` is the first, has without a counterpart here."""
    if task.NEEDS_CONTAINER:
        yield f"task {index} needs a container"
    for hook in discover_decorated(task, "intercept"):
        yield f"task {index}: {hook.__name__} rewrites messages: what was sampled would not be what is learned"
    for stop in task.hooks("stop"):
        if hook_boundary(stop, allow_trace=True) is not vf.Trace:
            yield f"task {index}: the stop {stop.__name__} reads requests or responses of a model; expected a Trace"
    if task.config.judges:
        yield f"task {index}: its judges ask a model over a network, and so have no verifiable reward"


def _find_data_obstacles(index: int, task: Any) -> Iterator[str]:
    """What a single task has that has no counterpart here."""
    data, prompt = task.data, task.data.prompt
    if data.image or data.agent_user or data.skills:
        yield f"task {index} needs an image, a user or skills of a container"
    if not prompt:
        yield f"task {index} has no prompt: its user, a model, opens the conversation"
    if isinstance(prompt, list):
        if [turn.role for turn in prompt] != ["system"] * (len(prompt) - 1) + ["user"]:
            yield f"the prompt of task {index} is a conversation; expected system messages and one of a user"
        if any(part.type != "text" for turn in prompt if not isinstance(turn.content, str) for part in turn.content):
            yield f"the prompt of task {index} holds images; a policy reads text alone"
    try:
        # The package hashes the data as JSON.
        (task.key + read_system_text(task) + read_query(task)).encode()
    except (TypeError, ValueError) as error:
        yield f"the data of task {index} is no JSON: {error}"


def _make_refusal(module: str, reason: str) -> ValueError:
    return ValueError(f"the taskset {module!r} cannot be played here: {reason}; see docs/verifiers-and-openenv.md")

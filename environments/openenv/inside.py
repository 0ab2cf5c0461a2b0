"""The source of episodes, in a worker inside the package's own virtual environment: each is one environment of the
package, in this process, as its server would serve it to one client."""

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.env_server.serialization import deserialize_action, serialize_observation
from openenv.core.env_server.types import Action as PackageAction
from openenv.core.env_server.types import Observation as PackageObservation
from openenv.core.rubrics import LLMJudge
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from cojax.environment import EnvironmentFailure
from cojax.types import Action, Call, Evaluation, Message, Observation, Task
from ..tools.in_worker import compute_share, find_function, make_opening, read_actions, require_finite
from ..tools.toolset import to_document
from ..worker.served import Episodes

NAME = "openenv"
# The tool of an environment whose actions are no calls of tools.
ACT = "act"
_NO_STATE_REASON = "its state holds nothing but {}"
# The most characters of an answer.
_MAX_ANSWER_CHARS = 200_000


def make(
    maker_path: str,
    path: Sequence[str],
    arguments: Mapping[str, Any],
    action: str,
    resets: Sequence[Mapping[str, Any]] | str,
    evaluation: Sequence[Mapping[str, Any]] | str,
    query: str,
    reward: str,
    full: float,
    state: str,
    ignore: Sequence[str],
    solution: str,
) -> Episodes:
    """Episodes and official tasks; wording and verdicts by replay are made outside of the worker."""
    sys.path += path
    factory, solve, read_state = (find_function(function_path, path) for function_path in (maker_path, solution, state))

    def make_environment() -> Environment:
        """A fresh environment. Raises ValueError for any other object."""
        environment = factory(**arguments) if factory else None
        if not isinstance(environment, Environment):
            raise ValueError(f"{factory!r:.100} makes {type(environment).__name__}; expected an Environment of openenv")
        return environment

    with contextlib.closing(make_environment()) as first_environment:
        action_class: Any = find_function(action, path) or _find_action_class(first_environment)
        _expect_no_judge(first_environment)
        reset_lists = [_list_resets(first_environment, reset_list) for reset_list in (resets, evaluation)]
    train_tasks, held_out_tasks = (_to_tasks(query, reset_list, solve) for reset_list in reset_lists)
    if not train_tasks:
        raise ValueError(f"resets is {resets!r}, a split that has no task")
    if shared_ids := {task.id for task in train_tasks} & {task.id for task in held_out_tasks}:
        raise ValueError(f"{len(shared_ids)} of the resets are also in evaluation; expected others")
    return Episodes(
        NAME,
        lambda task: SessionEpisode(make_environment(), action_class, task.setup, reward, full, read_state, ignore),
        {"train": train_tasks, "dev": held_out_tasks, "eval": held_out_tasks},
    )


def _to_tasks(query: str, resets: Sequence[Mapping[str, Any]], solve: Callable[..., Any] | None) -> tuple[Task, ...]:
    """The official task of each reset; its solution is not ended yet."""
    task_by_id = {}
    for reset_arguments in resets:
        actions = read_actions(solve(dict(reset_arguments))) if solve else ()
        task = Task(NAME, query, dict(reset_arguments), actions)
        task_by_id[task.id] = task
    return tuple(task_by_id.values())


def _find_action_class(environment: Environment) -> type[PackageAction]:
    """The class of the environment's actions. Raises ValueError if it cannot be known."""
    if isinstance(environment, MCPEnvironment):
        return CallToolAction
    bases = (base for ancestor in type(environment).__mro__ for base in vars(ancestor).get("__orig_bases__", ()))
    for type_argument in itertools.chain.from_iterable(map(get_args, bases)):
        if isinstance(type_argument, type) and issubclass(type_argument, PackageAction):
            return type_argument
    raise ValueError(
        f"the actions of {type(environment).__name__} are unknown; name their class: action=package.module:Class"
    )


def _expect_no_judge(environment: Environment) -> None:
    """Raises ValueError for an environment that has no counterpart here."""
    rubric = environment.rubric
    rubrics = [rubric, *(inner_rubric for _, inner_rubric in rubric.named_rubrics())] if rubric else []
    if any(isinstance(inner_rubric, LLMJudge) for inner_rubric in rubrics):
        raise ValueError(
            "its rubric asks a model over a network, and so gives no verifiable reward; "
            "see docs/verifiers-and-openenv.md"
        )


def _list_resets(environment: Environment, resets: Sequence[Mapping[str, Any]] | str) -> Sequence[Mapping[str, Any]]:
    """The arguments of each reset: as given, or of each task of the split that is named. Raises ValueError."""
    if not isinstance(resets, str) or not resets:
        return resets or ()
    try:
        return [{"split": resets, "index": index} for index in range(environment.num_tasks(resets))]
    except (AttributeError, KeyError, ValueError) as error:
        raise ValueError(f"{type(environment).__name__} has no split {resets!r} of its own: {error!r}") from error


class SessionEpisode:
    """An episode of a fresh environment, whose actions are of the class `action_class`.

    `read_state`, environment → JSON, adds to its state, without the keys that `ignore` names.
    """

    def __init__(
        self,
        environment: Environment,
        action_class: type[PackageAction],
        reset_arguments: Mapping[str, Any],
        reward_kind: str,
        full_reward: float,
        read_state: Callable[..., Any] | None,
        ignored_keys: Sequence[str],
    ) -> None:
        self._environment, self._action_class = environment, action_class
        self._reset_arguments, self._read, self._ignored_keys = reset_arguments, read_state, set(ignored_keys)
        self._reward_kind, self._full_reward = reward_kind, full_reward
        self._rewards: list[Any] = []
        self._runner = asyncio.Runner()
        self._documents: tuple[Mapping[str, Any], ...] = ()
        self._is_over = False

    def reset(self) -> tuple[Message, ...]:
        observation = self._call_environment("reset", **self._reset_arguments)
        if observation.done:
            raise ValueError(f"the episode is over before its first action: reset({self._write_reset()}) returned done")
        self._documents = self._list_tools()
        shown_text = _to_text(self._list_shown_fields(observation))
        incomparable = "" if self.state() else _NO_STATE_REASON.format(" and ".join(sorted(self._ignored_keys)))
        return make_opening(f"At the start the environment shows {shown_text}" if shown_text else "", incomparable)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._documents

    def step(self, action: Action) -> Observation:
        """Takes a step for each call. The role of a message is "user" for an error."""
        messages, is_done = [], self._is_over
        for call in action.calls:
            if is_done:
                messages.append(Message("user", "the episode is over"))
                continue
            reply_text, is_success, is_done = self._make_step(call)
            messages.append(Message("tool" if is_success else "user", reply_text[:_MAX_ANSWER_CHARS]))
        self._is_over = is_done
        return Observation(tuple(messages), done=is_done)

    def state(self) -> Mapping[str, Any]:
        """The environment's state, and what the reader adds."""
        full_state = self._environment.state.model_dump(mode="json")
        state = {key: value for key, value in full_state.items() if key not in self._ignored_keys}
        return state if self._read is None else {**state, "read": to_jsonable_python(self._read(self._environment))}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        """The sum of the rewards of all steps, or the last, over the reward of success, as a number in [0, 1]."""
        rewards = self._rewards if self._reward_kind == "sum" else self._rewards[-1:]
        for step_number, reward in enumerate(rewards, len(self._rewards) - len(rewards) + 1):
            require_finite(reward, f"the environment's reward of step {step_number} after reset({self._write_reset()})")
        share = compute_share(sum(map(float, rewards)), self._full_reward, "the sum of the environment's rewards")
        return Evaluation(share, (), share)

    def close(self) -> None:
        """Does nothing: the environment ends with its process."""

    def _write_reset(self) -> str:
        """The arguments of the reset in one line."""
        return ", ".join(f"{argument_name}={value!r}" for argument_name, value in self._reset_arguments.items())[:200]

    def _call_environment(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """The observation of a step or a reset, by its own asynchronous form if it has one, as its server does it."""
        form = f"{method}_async"
        cls = type(self._environment)
        is_async = vars(Environment)[form] is not next(vars(base)[form] for base in cls.__mro__ if form in vars(base))
        invoke = self._environment.__getattribute__(form if is_async else method)
        answer = self._runner.run(invoke(*arguments, **keywords)) if is_async else invoke(*arguments, **keywords)
        if not isinstance(answer, PackageObservation):
            raise EnvironmentFailure(f"{method} returned {type(answer).__name__}; expected an Observation of openenv")
        return answer

    def _list_tools(self) -> tuple[Mapping[str, Any], ...]:
        if self._action_class is not CallToolAction:
            schema = self._action_class.model_json_schema()
            parameters = {key: value for key, value in schema.items() if key not in ("title", "description")}
            parameters["properties"] = {k: v for k, v in schema.get("properties", {}).items() if k != "metadata"}
            return (to_document(ACT, schema.get("description", "") if self._action_class.__doc__ else "", parameters),)
        tools_observation = self._call_environment("step", ListToolsAction())
        return tuple(to_document(tool.name, tool.description, tool.input_schema) for tool in tools_observation.tools)

    def _make_step(self, call: Call) -> tuple[str, bool, bool]:
        """What a call shows, whether it worked, and whether the episode is over."""
        if self._action_class is CallToolAction:
            action_fields = {"type": "call_tool", "tool_name": call.name, "arguments": dict(call.arguments)}
        elif call.name == ACT:
            action_fields = dict(call.arguments)
        else:
            return f"there is no tool {call.name!r:.100}", False, False
        try:
            observation = self._call_environment("step", deserialize_action(action_fields, self._action_class))
        except ValidationError as error:
            problems = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
            return "; ".join(problems), False, False
        except (ValueError, TypeError, LookupError, ArithmeticError) as error:
            return f"{type(error).__name__}: {error}", False, False
        self._rewards.append(0.0 if observation.reward is None else observation.reward)
        if self._action_class is not CallToolAction:
            return _to_text(self._list_shown_fields(observation)), True, bool(observation.done)
        if observation.error is not None:
            return observation.error.message, False, bool(observation.done)
        blocks = to_jsonable_python(observation.result.content)
        text = "\n".join(block.get("text", "") or json.dumps(block) for block in blocks)
        return text, not observation.result.is_error, bool(observation.done)

    def _list_shown_fields(self, observation: Any) -> dict[str, Any]:
        """An observation without its reward, which is for training, and without empty values."""
        fields = serialize_observation(observation)["observation"]
        return {field_name: value for field_name, value in fields.items() if value not in (None, {}, [])}


def _to_text(fields: Any) -> str:
    """An observation as text: its own text if it is a single one, else JSON."""
    if isinstance(fields, Mapping) and len(fields) == 1 and isinstance(only_value := next(iter(fields.values())), str):
        return only_value
    return json.dumps(to_jsonable_python(fields, inf_nan_mode="strings"), ensure_ascii=False) if fields else ""

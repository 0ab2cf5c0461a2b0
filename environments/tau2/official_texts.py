"""The wheel's official prompts, read as text: the modules that hold them import model clients."""

import ast
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

_AGENT = "tau2.agent.llm_agent"
_GUIDELINES = "data/tau2/user_simulator/simulation_guidelines.md"


@dataclasses.dataclass(frozen=True)
class Texts:
    """The official texts of a conversation between an agent and a simulated customer.

    `instruction`: what the agent is told. `prompt`: its system prompt, with places for {agent_instruction} and
    {domain_policy}. `greeting`: the agent's first message, which is the same in every conversation. `customer`: the
    system prompt of the simulated customer, with a place for {instructions}. `stops`: a message of the customer with
    one of these ends the conversation.
    """

    instruction: str
    prompt: str
    greeting: str
    customer: str
    stops: tuple[str, ...]

    def told(self, scenario: str) -> str:
        """The system message of the simulated customer in a scenario."""
        return self.customer.replace("{instructions}", scenario)


def solo() -> tuple[str, str]:
    """The official instruction and system prompt of the solo mode."""
    instruction, prompt = _read(_AGENT, "AGENT_SOLO_INSTRUCTION", "SYSTEM_PROMPT_SOLO")
    return instruction.format(stop_function_name="done", stop_token="###STOP###"), prompt


def conversation() -> Texts:
    """The official texts of a conversation. Raises ModuleNotFoundError, OSError or ValueError where one is missing."""
    instruction, prompt = _read(_AGENT, "AGENT_INSTRUCTION", "SYSTEM_PROMPT")
    (greeting,) = _read("tau2.orchestrator.orchestrator", "DEFAULT_FIRST_AGENT_MESSAGE")
    (customer,) = _read("tau2.user.user_simulator", "SYSTEM_PROMPT")
    guidelines = (_file("tau2").parent / _GUIDELINES).read_text(encoding="utf-8")
    return Texts(
        instruction,
        prompt,
        greeting,
        customer.replace("{global_user_sim_guidelines}", guidelines),
        _read("tau2.user.base", "STOP", "TRANSFER", "OUT_OF_SCOPE"),
    )


def _read(module: str, *names: str) -> tuple[str, ...]:
    """The texts that a module of the wheel assigns to these names. Raises ValueError for one that it does not."""
    found: dict[str, str] = {}
    for node in ast.parse(_file(module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name) and name.id in names:
            found[name.id] = _text(node.value)
    if missing := [name for name in names if not found.get(name)]:
        raise ValueError(f"{module} of the wheel has no text {missing[0]}; adapt environments/tau2/official_texts.py")
    return tuple(found[name] for name in names)


def _text(value: Any) -> str:
    """The text of "…", of "…".strip(), or of a message made with content="…"; empty for anything else."""
    stripped = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "strip"
    if stripped:
        return _text(value.func.value).strip()
    if isinstance(value, ast.Call):
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "content"), None)
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _file(module: str) -> Path:
    """The file of a module of the wheel, which is not imported."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"the wheel has no {module}; run: cojax install tau2")
    return Path(found.origin)

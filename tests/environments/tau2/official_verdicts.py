"""Judges calls by the package's own `evaluate_simulation`: JSON on standard input → JSON on standard output.

Runs in an interpreter with the wheel and the packages that its evaluator imports; it imports nothing of this project.
Input: [number of a task in the official split `base`, [[name, arguments], …], whether the agent ended the episode], ….
"""

import json
import sys

from loguru import logger
from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.data_model.simulation import SimulationRun, TerminationReason
from tau2.domains.telecom.environment import get_environment, get_tasks, get_tasks_split
from tau2.evaluator.evaluator import EvaluationType, evaluate_simulation


def reward(task, calls, ended):
    environment = get_environment(solo_mode=True)
    start = task.initial_state
    environment.set_state(start.initialization_data, start.initialization_actions, [])
    messages = []
    for number, (name, arguments) in enumerate(calls):
        call = ToolCall(id=str(number), name=name, arguments=arguments, requestor="assistant")
        messages += [AssistantMessage(role="assistant", tool_calls=[call]), environment.get_response(call)]
        environment.sync_tools()
    if ended:
        messages.append(AssistantMessage(role="assistant", content="###STOP###"))
    reason = TerminationReason.AGENT_STOP if ended else TerminationReason.MAX_STEPS
    simulation = SimulationRun(
        id="", task_id=task.id, start_time="", end_time="", duration=0, termination_reason=reason, messages=messages
    )
    return evaluate_simulation(simulation, task, EvaluationType.ALL, True, "telecom").reward


def main():
    logger.remove()
    tasks = {task.id: task for task in get_tasks("base")}
    base = [tasks[name] for name in get_tasks_split()["base"]]
    judged = [reward(base[number], calls, ended) for number, calls, ended in json.load(sys.stdin)]
    json.dump(judged, sys.stdout)


if __name__ == "__main__":
    main()

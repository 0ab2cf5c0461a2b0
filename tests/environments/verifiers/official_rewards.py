"""Scores rollouts by the package alone: JSON on standard input → JSON on standard output.

Runs in the package's virtual environment; it imports nothing of this project. Input: [module, [[number of a task, the
state at the end, [message, …]], …]], with messages as the package writes them and replies marked by "sampled".
"""

import asyncio
import json
import sys

import verifiers.v1 as vf
from verifiers.v1.state import state_cls


def reward(task, state, messages):
    nodes = [
        vf.MessageNode(parent=number - 1 if number else None, message=message, sampled=message.pop("sampled", False))
        for number, message in enumerate(messages)
    ]
    trace = vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data),
        state=state_cls(type(task)).model_validate(state),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=nodes,
    )
    asyncio.run(task.score(trace))
    return trace.reward


sys.path.append(sys.argv[1])
module, rollouts = json.load(sys.stdin)
tasks = list(vf.load_taskset(vf.taskset_config_type(module).model_validate({"id": module})))
print(json.dumps([reward(tasks[number], state, messages) for number, state, messages in rollouts]))

"""Any MCP server, with the default settings: train on tasks that are found with its tools and proved by execution.

    python -m environments.install mcp
    python -m experiments.run --config=experiments/mcp.py --config.environment.command="V/bin/my-server --root ." \\
        --config.environment.folders=starts --config.model.path=models/Qwen3-4B

docs/mcp.md describes the settings. Without a command the server is a public one, --config.environment.server=sqlite,
git or filesystem. The scripted explorer tries values that the tools' schemas name and that files show. If arguments
are free text, such as SQL, give --config.environment.affordances, or explore with a model: --config.explorer=llm.

The same command with a small policy from scratch, on two CPU cores, in a few minutes:

    python -m experiments.run --config=experiments/mcp.py --config.policy=tiny --config.steps=2

Hardware: depends on the model. Expected: not measured, because it depends on the server.
"""

from ml_collections import ConfigDict

from cojax.settings import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.workdir = "runs/mcp"
    config.environment.name = "mcp"
    config.policy = "qwen3-4b"
    config.engine.name = "sglang"  # a small policy's preset samples in this process
    config.engine.max_length = 16_384
    config.learner.row_length = 16_384
    config.learner.micro_rows = 1
    config.explorer.width = 4  # every episode is a process, and its server another
    config.evaluation.tasks = 200
    return config

"""Inputs of evolutions from real episodes of the desk, and beliefs about its tools."""

import environments
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.synthesis import EvolutionInputs
from cojax.synthesis.beliefs import tool_key

DESK = environments.load("desk")
EXPLORER = ScriptedExplorer(neighbours=DESK.neighbours)
EPISODES = {
    f"e{number}": play(DESK, task, follow(task.solution), max_turns=len(task.solution), episode=f"e{number}")
    for number, task in enumerate(DESK.tasks("seed", 24, seed=5))
}


def inputs(contexts=40, seed=(0, 10), environment=DESK):
    return EvolutionInputs(
        environment, EXPLORER, (), list(EPISODES), EPISODES.__getitem__, None, contexts, seed
    )  # fmt: skip


def mastered(rates, episodes=1e6):
    """A memory in which the tools named have these success rates, and all others are always solved."""
    tools = [document["function"]["name"] for document in DESK.tools()]
    counts = {tool_key(tool): [episodes, 0.0, 1] for tool in tools}
    counts |= {tool_key(tool): [rate * episodes, (1 - rate) * episodes, 1] for tool, rate in rates.items()}
    return {"steps": 1, "discount": 1.0, **counts}


def focus(expedition):
    return expedition.prepare(EXPLORER).context.focus_patterns

"""Credits: signals weighted by how learnable the tasks were that earlier signals led to.

A group of two valid episodes or more is live if their rewards differ: only then does it have a policy gradient. Each
kind of signal, and each pair of a kind and a tool, has credit: the believed share of live groups among those of the
tasks that it led to,

    credit(k) = (1 + live_k) / (2 + live_k + dead_k),
    credit(k, t) = (s · credit(k) + live_kt) / (s + live_kt + dead_kt),

with counts that are discounted as those of beliefs (cojax/synthesis/beliefs.py). A task counts for the kind that it
came from, and for each tool of its solution. So without evidence a kind has credit 1/2, and a tool has the credit of
its kind. Each credit is the mean of a Beta-Bernoulli posterior with discounted counts (arXiv 1707.09727). Signals are
drawn in proportion to their credit, not by Thompson sampling. Live groups as the reward, the prior of a tool and this
draw are our own choices.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.environment import Charted
from cojax.registry import Range
from cojax.synthesis import EvolutionInputs, Expedition, begins_at
from cojax.synthesis.beliefs import Beliefs, Posterior, Strength, add_evidence, evidence, neighbours_in, solution_tools
from cojax.synthesis.evolutions import in_groups, partly_uniform
from cojax.types import Group, Signal, Task


class Credits(Beliefs):
    """A statistic that counts live and dead groups, in memory.jsonl under the name `credits`.

    The memory maps a key to (live, dead, step of the last change), as in `Beliefs`.
    """

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        new_groups = (group for group in groups if group.task.lineage is not None and len(group.valid) >= 2)
        outcomes = ((_make_keys(group.task), float(group.live), 1.0 - group.live) for group in new_groups)
        return add_evidence(memory, outcomes), []


def _make_keys(task: Task) -> list[str]:
    return [f"{task.origin}/{tool}" for tool in ("", *solution_tools(task.solution))]


def credit(memory: Mapping[str, Any], kind: str, focus: Sequence[str], strength: float) -> float:
    """The credit of a kind of signal and the tools in its focus, in (0, 1); with several tools, their mean.

    `memory` is that of `Credits`. A prior counts as `strength` groups.
    """
    live_count, dead_count = evidence(memory, f"{kind}/")
    kind_credit = (1.0 + live_count) / (2.0 + live_count + dead_count)
    tool_evidence = [evidence(memory, f"{kind}/{tool}") for tool in focus]
    tool_credits = [(strength * kind_credit + live) / (strength + live + dead) for live, dead in tool_evidence]
    return sum(tool_credits) / len(tool_credits) if tool_credits else kind_credit


@begins_at("signals", "setups")
def credited(
    inputs: EvolutionInputs,
    beliefs: Mapping[str, Any],
    credits: Mapping[str, Any],
    *,
    mastered: Annotated[float, Range(0.0, 1.0)] = 0.75,
    episodes: Annotated[float, Range(0.0)] = 8.0,
    floor: Annotated[float, Range(0.0, 1.0)] = 0.2,
    strength: Strength = 2.0,
) -> Iterator[Expedition]:
    """Explores around signals, drawn in proportion to the credit of their kind and of the tools in their focus.

    One signal of each task and kind is considered, picked at random, and followed at most once. Its focus counts only
    tools that the environment has, without the ending. Signals whose focus is mastered are left out: every tool in it
    has a belief of mean `mastered` or more from `episodes` episodes (discounted). The share `floor` of the expeditions
    is unguided, as in `uniform`, and so are expeditions for which no signal is left. A prior of the credit counts as
    `strength` groups.
    """
    rng = random.Random(repr(("credited", inputs.seed)))
    environment = inputs.environment
    posterior = Posterior(beliefs, neighbours_in(environment))
    # The policy may have called tools that do not exist.
    tools = frozenset(environment.popularity()) if isinstance(environment, Charted) else None
    picked_signals = [group[0] for group in in_groups(inputs.signals, lambda signal: (signal.kind, signal.task), rng)]
    candidates: list[tuple[Signal, list[str]]] = []
    for signal in picked_signals:
        focus = [tool for tool in signal.focus if tool != inputs.explorer.ending and (tools is None or tool in tools)]
        if not focus or not all(posterior.masters(tool, mastered, episodes) for tool in focus):
            candidates.append((signal, focus))

    def draw_expedition() -> Expedition | None:
        if not candidates:
            return None
        weights = [credit(credits, signal.kind, focus, strength) for signal, focus in candidates]
        [index] = rng.choices(range(len(candidates)), weights)
        return inputs.around(candidates.pop(index)[0])

    yield from partly_uniform(inputs, floor, rng, draw_expedition)

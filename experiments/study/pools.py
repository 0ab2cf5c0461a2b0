"""Three rules that others use to choose tasks, each a function as users write their own.

`least_seen` explores towards the tools that the policy has met least, without a trial. `review` and
`difficulty_pools` are curricula: they weigh a task by its last scores.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.registry import Range
from cojax.synthesis import EvolutionInputs, Expedition, begins_at, reflect_on
from cojax.synthesis.beliefs import Posterior, neighbours_in
from cojax.synthesis.evolutions import offered_tools, partly_uniform

_Share = Annotated[float, Range(0.0, 1.0)]
_Weight = Annotated[float, Range(0.0, 1_000.0, low_open=True)]


@begins_at("episodes", "setups")
def least_seen(inputs: EvolutionInputs, beliefs: Mapping[str, Any], *, floor: _Share = 0.2) -> Iterator[Expedition]:
    """Explores the setups of recent trajectories, towards the tool with the fewest episodes of those offered there.

    The expeditions of an evolution go to different tools until all have had one. The share `floor` is unguided, as in
    `uniform`.
    """
    rng = random.Random(repr(("least_seen", inputs.seed)))
    posterior, ending = Posterior(beliefs, neighbours_in(inputs.environment)), inputs.explorer.ending
    trajectories = itertools.cycle(itertools.islice(inputs.trajectories(rng), inputs.contexts))
    visits: dict[str, int] = {}

    def make_expedition() -> Expedition | None:
        if (trajectory := next(trajectories, None)) is None:
            return None
        tools = [tool for tool in offered_tools(inputs.environment, trajectory.task) if tool != ending]
        if not tools:
            return None
        rng.shuffle(tools)  # equals in random order
        tool = min(tools, key=lambda tool: (visits.get(tool, 0), posterior.known(tool)))
        visits[tool] = visits.get(tool, 0) + 1
        return Expedition(trajectory.task, "least-seen", reflect=reflect_on(trajectory, plan=(tool,)))

    yield from partly_uniform(inputs, floor, rng, make_expedition)


def review(scores: Sequence[float], *, weight: _Weight = 4.0, mastered: _Share = 0.75, lost: _Share = 0.5) -> float:
    """Weighs a task that was mastered and then lost `weight`, any other 1 (RECALL, 2606.03087, replays such tasks).

    It was mastered if a score reaches `mastered`, and is lost if the latest is below `lost`.
    """
    return weight if scores and max(scores) >= mastered and scores[-1] < lost else 1.0


def difficulty_pools(
    scores: Sequence[float], *, easy: _Weight = 0.1, hard: _Weight = 0.1, solved: _Share = 1.0, failed: _Share = 0.0
) -> float:
    """Weighs a task by its latest group: `easy` from the score `solved` on, `hard` up to `failed`, else or if new 1.

    prime-rl keeps such pools and draws a set share from each.
    """
    if not scores:
        return 1.0
    return easy if scores[-1] >= solved else hard if scores[-1] <= failed else 1.0

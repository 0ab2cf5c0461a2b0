"""Beliefs about success, for pairs of tools and lengths of solutions, and expeditions where it is uncertain.

Beliefs come from the rewards of all training episodes so far.

The tools and the length of a task's solution stand for the skills that it needs. Evidence is discounted with time,
because the policy changes:

    solved ← γ^Δ · solved + successes,    failed ← γ^Δ · failed + failures,

where Δ is the number of steps since the evidence last changed. A pair (a, b) at length n has the belief

    p ~ Beta(s·m + solved, s·(1 − m) + failed),    m = p_a · p_b,

where p_t is the mean of the belief about one tool alone. A tool borrows from its neighbours: its prior mean is half of
their success rate plus 1/4, or 1/2 if they have no evidence. The success predicted for a task is the mean of the
beliefs about the pairs of its tools.

Discounted counts with a prior that is not discounted form the Beta-Bernoulli posterior of discounted Thompson sampling
(Raj and Kalyani, arXiv 1707.09727; for prompts MoPPS, arXiv 2507.04632). The choice of what a belief is about, the
prior means and the prediction are our own.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from cojax.drafts import find_excess
from cojax.environment import Charted, Environment, EnvironmentFailure
from cojax.registry.annotations import Range
from cojax.signals.kinds import PLAN
from cojax.signals.tools import tools_of
from cojax.synthesis.evolutions import EvolutionInputs, begins_at, offered_tools, partly_uniform, reflect_on
from cojax.synthesis.expeditions import Expedition
from cojax.types import Action, Group, Signal, TaskDraft, Trajectory

# The number of steps seen, and γ; all other keys begin with "tool:" or "pair:".
_STEPS_KEY, _DISCOUNT_KEY = "steps", "discount"
# For each expedition, the number of trajectories whose setups contenders are drawn from.
_PARENTS_PER_EXPEDITION = 4

Discount = Annotated[float, Range(0.0, 1.0, low_open=True)]
# The number of episodes that a prior counts as. Far beyond these bounds, no draw from a belief is possible.
Strength = Annotated[float, Range(1e-3, 1e6)]
Evidence = tuple[float, float]  # successes and failures, discounted
BetaParameters = tuple[float, float]  # α and β of a Beta distribution, both above 0


def no_evidence(discount: float) -> dict[str, Any]:
    """The memory of evidence before the first step. It maps a key to (successes, failures, step of the last change)."""
    return {_STEPS_KEY: 0, _DISCOUNT_KEY: discount}


def add_evidence(memory: Mapping[str, Any], seen: Iterable[tuple[Iterable[str], float, float]]) -> dict[str, Any]:
    """The changes to the memory by a step in which (keys, successes, failures) were seen."""
    step_evidence: dict[str, Evidence] = {}
    for belief_keys, successes, failures in seen:
        for belief_key in belief_keys:
            earlier_counts = step_evidence.get(belief_key, (0.0, 0.0))
            step_evidence[belief_key] = earlier_counts[0] + successes, earlier_counts[1] + failures
    current_step = memory[_STEPS_KEY] + 1
    changes: dict[str, Any] = {_STEPS_KEY: current_step}
    for belief_key, new_counts in step_evidence.items():
        past_counts = _discount_evidence(memory.get(belief_key), current_step, memory[_DISCOUNT_KEY])
        changes[belief_key] = [past_counts[0] + new_counts[0], past_counts[1] + new_counts[1], current_step]
    return changes


def evidence(memory: Mapping[str, Any], key: str) -> Evidence:
    """The evidence that the memory holds for the key, discounted to the last step."""
    return _discount_evidence(memory.get(key), memory[_STEPS_KEY], memory[_DISCOUNT_KEY])


def tool_key(tool: str) -> str:
    return f"tool:{tool}"


def make_pair_key(tool: str, other_tool: str, length: int) -> str:
    """The order of the two tools does not matter."""
    first_tool, second_tool = sorted((tool, other_tool))
    return f"pair:{first_tool}+{second_tool}/{length}"


def solution_tools(actions: Sequence[Action]) -> list[str]:
    """The tools of a solution, each once, in order."""
    return list(dict.fromkeys(tool for action in actions for tool in tools_of(action)))


@dataclasses.dataclass(frozen=True)
class Beliefs:
    """A statistic that gathers the evidence, stored in memory.jsonl under the name `beliefs`.

    The memory maps a key to (successes, failures, step of the last change). `discount` is γ.
    """

    discount: Discount = 0.98

    def init(self) -> dict[str, Any]:
        return no_evidence(self.discount)

    def update(self, memory: Mapping[str, Any], groups: Sequence[Group]) -> tuple[dict[str, Any], list[Signal]]:
        # The policy did not play the replayed actions, so they are not evidence.
        observations = (
            (_list_keys(group.task.solution[group.valid[0].replayed :]), group.solved, len(group.valid) - group.solved)
            for group in groups
            if group.valid
        )
        return add_evidence(memory, observations), []


def _list_keys(actions: Sequence[Action]) -> list[str]:
    tools = solution_tools(actions)
    tool_pairs = itertools.combinations(tools, 2)
    return [*map(tool_key, tools), *(make_pair_key(tool, other_tool, len(actions)) for tool, other_tool in tool_pairs)]


def _discount_evidence(record: Sequence[float] | None, current_step: int, discount: float) -> Evidence:
    if record is None:
        return 0.0, 0.0
    successes, failures, last_step = record
    weight = discount ** (current_step - last_step)
    return weight * successes, weight * failures


def _find_mean(belief: BetaParameters) -> float:
    return belief[0] / sum(belief)


@dataclasses.dataclass(frozen=True)
class Posterior:
    """The beliefs at one moment, from the memory of `Beliefs`.

    `neighbours` gives the tools that a tool borrows from. A prior counts as `strength` episodes.
    """

    memory: Mapping[str, Any]
    neighbours: Callable[[str], Iterable[str]] = lambda tool: ()
    strength: float = 2.0

    def tool_mean(self, tool: str) -> float:
        """The mean of the belief about tasks that need the tool."""
        return _find_mean(self.tool_belief(tool))

    def tool_belief(self, tool: str) -> BetaParameters:
        """The belief about tasks that need the tool."""
        return self._belief(tool_key(tool), self._prior_mean(tool))

    def pair_belief(self, tool: str, other_tool: str, length: int) -> BetaParameters:
        """The belief about tasks that need both tools, with solutions of `length` actions."""
        return self._belief(make_pair_key(tool, other_tool, length), self.tool_mean(tool) * self.tool_mean(other_tool))

    def _belief(self, key: str, mean: float) -> BetaParameters:
        """The evidence of the key beside a prior of this mean."""
        successes, failures = evidence(self.memory, key)
        return self.strength * mean + successes, self.strength * (1.0 - mean) + failures

    def task_success(self, solution: Sequence[Action], ending: str = "") -> float | None:
        """The expected success on a task with this solution, in (0, 1); None if it calls no tool but `ending`.

        This averages the means of the beliefs about all pairs of its tools, `ending` left out, at its length. For a
        single tool it is the mean of the belief about the tool.
        """
        tools = [tool for tool in solution_tools(solution) if tool != ending]
        if len(tools) < 2:
            return self.tool_mean(tools[0]) if tools else None
        beliefs = [self.pair_belief(tool, beta, len(solution)) for tool, beta in itertools.combinations(tools, 2)]
        return sum(map(_find_mean, beliefs)) / len(beliefs)

    def known(self, tool: str) -> float:
        """The number of episodes that the belief about the tool rests on, discounted."""
        return sum(evidence(self.memory, tool_key(tool)))

    def masters(self, tool: str, mean: float, episodes: float) -> bool:
        """Whether the belief about the tool has at least this mean and rests on this many episodes, discounted."""
        return self.known(tool) >= episodes and self.tool_mean(tool) >= mean

    def _prior_mean(self, tool: str) -> float:
        """The prior mean of a tool, between 1/4 and 3/4.

        The success rate of its neighbours counts as two episodes, added to one success and one failure. So an untried
        tool is neither given up nor taken for granted, whatever its neighbours are.
        """
        neighbour_evidence = [evidence(self.memory, tool_key(neighbour)) for neighbour in self.neighbours(tool)]
        successes, failures = (sum(evidence_counts[i] for evidence_counts in neighbour_evidence) for i in (0, 1))
        return (1.0 + 2.0 * successes / (successes + failures)) / 4.0 if successes + failures else 0.5


def neighbours_in(environment: Environment) -> Callable[[str], Iterable[str]]:
    """The environment's `neighbours`, made safe: the method may fail for a tool that does not exist.

    Such a tool has no neighbours, and no tool has any in an environment that is not `Charted`.
    """

    @functools.cache
    def list_tools() -> frozenset[str]:
        return frozenset(environment.popularity()) if isinstance(environment, Charted) else frozenset()

    def neighbours(tool: str) -> Iterable[str]:
        return environment.neighbours(tool) if isinstance(environment, Charted) and tool in list_tools() else ()

    return neighbours


def predictor(memory: Mapping[str, Any], environment: Environment, ending: str) -> Callable[[TaskDraft], float | None]:
    """Returns a function from a draft to the success that the beliefs in this memory predict for it.

    A prior counts as two episodes. The result is None for a draft that is too large to play, and if the environment
    fails.
    """

    posterior = Posterior(memory, neighbours_in(environment))

    def predict(draft: TaskDraft) -> float | None:
        if find_excess(draft.solution):
            return None
        try:
            return posterior.task_success(draft.solution, ending)
        except EnvironmentFailure:
            return None

    return predict


@begins_at("episodes", "setups")
def posteriors(
    inputs: EvolutionInputs,
    beliefs: Mapping[str, Any],
    *,
    contenders: Annotated[int, Range(1, 10_000)] = 8,
    floor: Annotated[float, Range(0.0, 1.0)] = 0.2,
    strength: Strength = 2.0,
) -> Iterator[Expedition]:
    """Explores the setups of recent trajectories, towards tools whose success is believed to be near one half.

    A contender is a trajectory of the last steps and one or two tools that its episode offers, all picked at random.
    Its belief is that of the tool, or of the pair at the length of a solution that calls both and ends. Among
    `contenders` contenders, the expedition follows the one with the greatest p̃(1 − p̃), where p̃ is drawn from its
    belief (Thompson sampling; SEC, arXiv 2505.14970, and MoPPS, arXiv 2507.04632, choose among prompts like this).
    Tools with little evidence have wide beliefs, so they are often followed. The contender's tools are the plan of the
    expedition. The explorer carries out the plan, and tasks with one of its tools come first; a task need not have
    both. The share `floor` of the expeditions is unguided, as in `uniform`. A prior of the beliefs counts as `strength`
    episodes.
    """
    rng = random.Random(repr((PLAN, inputs.seed)))
    environment, ending = inputs.environment, inputs.explorer.ending
    posterior = Posterior(beliefs, neighbours_in(environment), strength)
    parents = [
        (trajectory, tools)
        for trajectory in itertools.islice(inputs.trajectories(rng), _PARENTS_PER_EXPEDITION * inputs.contexts)
        if (tools := [tool for tool in offered_tools(environment, trajectory.task) if tool != ending])
    ]

    def draw_contender() -> tuple[float, Trajectory, tuple[str, ...]]:
        """(success drawn from its belief, trajectory, the tools to use)."""
        trajectory, parent_tools = rng.choice(parents)
        plan = tuple(rng.sample(parent_tools, min(rng.choice((1, 2)), len(parent_tools))))
        plan_length = len(plan) + bool(ending)
        belief = posterior.pair_belief(*plan, plan_length) if len(plan) == 2 else posterior.tool_belief(*plan)
        return rng.betavariate(*belief), trajectory, plan

    def make_expedition() -> Expedition | None:
        if not parents:
            return None
        candidates = [draw_contender() for _ in range(contenders)]
        drawn_success, trajectory, plan = max(candidates, key=lambda draw: draw[0] * (1.0 - draw[0]))
        evidence_text = f"success with {' and '.join(plan)} drawn as {drawn_success:.2f}"
        signal = Signal(PLAN, trajectory.task.id, trajectory.episode, evidence_text, plan)
        return Expedition(trajectory.task, PLAN, signal=evidence_text, reflect=reflect_on(trajectory, signal, plan))

    yield from partly_uniform(inputs, floor, rng, make_expedition)

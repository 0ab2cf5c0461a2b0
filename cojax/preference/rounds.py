"""The parts of a round: both agents play on one engine, each agent learns, and the round is recorded."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.learner.batch import Example, count_groups
from cojax.learner.learner import get_log_ratio, learn_round
from cojax.learner.update import Metrics, TrainState
from cojax.loop import Loop, State
from cojax.loop.groups import play_tasks
from cojax.loop.records import make_step_record
from cojax.preference import Method, agents, count_second_episodes
from cojax.preference.failures import list_failures
from cojax.quality import hashed_ngrams, measure_neighbours
from cojax.rollout.collect import count_outcomes
from cojax.settings.tree import RoundsSettings
from cojax.signals import Memory, apply, detect
from cojax.types import Group, Signal, Task, Trajectory, signature

# Metrics of the second agent's learning that are recorded.
_SECOND_METRICS = ("loss", "grad_norm", "updates", "pairs")
# The number of nearest neighbours in SR@k, and the most failures that it compares.
_NEIGHBOUR_COUNT, _MAX_FAILURES = 5, 2_000


@dataclasses.dataclass(frozen=True)
class Rollouts:
    """The groups of a round by agent, and the distance of the second agent from the target, in nats per token."""

    target: Sequence[Group] = ()
    second: Sequence[Group] = ()
    distance: float | None = None


def number_version(step: int, *, is_second: bool = False) -> int:
    """The version of an agent's weights after `step` steps: even for the target, odd for the second agent."""
    return 2 * step + is_second


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The rounds of a run by `method`. An expert has at most `max_tokens` tokens."""

    loop: Loop
    method: Method
    settings: RoundsSettings
    max_tokens: int

    def load(self, agent: TrainState, step: int, *, is_second: bool = False) -> None:
        """Puts an agent's weights on the engine."""
        with self.loop.clock("sync"):
            self.loop.engine.load(self.loop.learner.weights(agent, number_version(step, is_second=is_second)))

    def play_solutions(self, tasks: Sequence[Task]) -> dict[str, Trajectory]:
        """Task id → the trajectory of its solution; empty if only successes count as experts."""
        if self.settings.experts == "successes":
            return {}
        loop = self.loop
        with loop.clock("environment"):
            return agents.play_experts(loop.environment, loop.chat, loop.limits, tasks, self.max_tokens)

    def play(self, state: State, tasks: Sequence[Task], step: int) -> Rollouts:
        """Plays the groups of the target, then those of the second agent on the same tasks.

        The engine must hold the target's weights when this is called. Afterwards it rests until the next `load`.
        """
        loop, group_size = self.loop, self.loop.group_size
        target_count = group_size - count_second_episodes(self.settings, group_size)
        second_groups: Sequence[Group] = ()
        target_groups = play_tasks(loop, tasks, step, range(target_count)) if self.method.plays else ()
        if state.second is not None:
            self.load(state.second, step, is_second=True)
            second_groups = play_tasks(loop, tasks, step, range(target_count, group_size))
        with loop.clock("sync"):
            loop.engine.rest()
        if state.second is None:
            return Rollouts(target_groups)
        with loop.clock("update"):
            valid = [trajectory for group in second_groups for trajectory in group.valid if trajectory.turns]
            distance = get_log_ratio(loop.learner, state.learner, valid, self.settings.batch_size) if valid else None
        return Rollouts(target_groups, second_groups, distance)

    def learn_target(
        self, state: State, solutions: Mapping[str, Trajectory], rollouts: Rollouts, step: int
    ) -> tuple[TrainState, Metrics, dict[str, int]]:
        """Trains the target. Returns its new state, metrics, and the number of examples by kind; donates its state."""
        examples: Mapping[str, Sequence[Example]]
        if self.method.loss == "sft":
            examples = {"experts": list(solutions.values()), "successes": agents.select_successes(rollouts.target)}
        else:
            experts = agents.group_experts(self.settings, solutions, rollouts.target, rollouts.second)
            examples = agents.agent_pairs(self.settings, experts, rollouts.target, rollouts.second, self._seed(step))
        with self.loop.clock("update"):
            all_examples = [example for kind_examples in examples.values() for example in kind_examples]
            agent, metrics = self._learn(state.learner, all_examples, self._seed(step))
        return agent, {**metrics, **count_groups(rollouts.target)}, {kind: len(x) for kind, x in examples.items()}

    def learn_second(
        self, state: State, solutions: Mapping[str, Trajectory], rollouts: Rollouts, step: int
    ) -> tuple[TrainState | None, Metrics]:
        """Trains the second agent, if there is one. Returns its new state and metrics; donates its state."""
        if state.second is None:
            return None, {}
        settings, seed = self.settings, (*self._seed(step), "second")
        with self.loop.clock("update"):
            if settings.agent == "failure":
                own_failures, other_failures = list_failures(rollouts.second), list_failures(rollouts.target)
                pairs = agents.pair_failures(own_failures, other_failures, settings.margin, seed)
            else:
                experts = agents.group_experts(settings, solutions, rollouts.second, rollouts.target)
                by_kind = agents.agent_pairs(settings, experts, rollouts.second, rollouts.target, self._seed(step))
                pairs = [pair for kind_pairs in by_kind.values() for pair in kind_pairs]
            second_state, metrics = self._learn(state.second, pairs, seed)
        return second_state, {**metrics, "pairs": float(len(pairs))}

    def count_second(self, state: State, rollouts: Rollouts) -> Memory:
        """Adds the second agent's episodes to the detector `played`, in place; returns the changes."""
        played_detectors = {name: detector for name, detector in self.loop.detectors.items() if name == "played"}
        changes, _ = detect(played_detectors, state.memory, rollouts.second)
        apply(state.memory, changes)
        return changes

    def make_record(
        self,
        state: State,
        rollouts: Rollouts,
        new_signals: Sequence[Signal],
        metrics: Metrics,
        example_counts: Mapping[str, int],
        second_metrics: Metrics,
    ) -> dict[str, Any]:
        """The record of the state's step: figures of the target, and under `preference` the measures of all agents."""
        groups = [*rollouts.target, *rollouts.second]
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        record = make_step_record(self.loop, state, rollouts.target, new_signals, metrics, ())
        hard = self.settings.hard
        figures_by_agent = {"target": measure(rollouts.target, hard)} if self.method.plays else {}
        if state.second is not None:
            learning_figures = {name: value for name, value in second_metrics.items() if name in _SECOND_METRICS}
            distance_figure = {} if rollouts.distance is None else {"distance": rollouts.distance}
            figures_by_agent["second"] = {**measure(rollouts.second, hard), **distance_figure, **learning_figures}
        return {
            **record,
            "tokens_sampled": sum(len(turn.action_tokens) for trajectory in trajectories for turn in trajectory.turns),
            "tokens_trained": metrics["tokens_trained"] + second_metrics.get("tokens_trained", 0.0),
            "outcomes": count_outcomes(trajectories),
            "preference": {"examples": dict(example_counts), **figures_by_agent},
        }

    def _learn(
        self, agent: TrainState, examples: Sequence[Example], seed: tuple[int | str, ...]
    ) -> tuple[TrainState, Metrics]:
        settings = self.settings
        return learn_round(self.loop.learner, agent, examples, settings.epochs, settings.batch_size, seed)

    def _seed(self, step: int) -> tuple[int | str, ...]:
        return self.loop.seed, step - 1


def measure(groups: Sequence[Group], hard_threshold: float) -> dict[str, Any]:
    """Measures of the episodes that one agent played in a round.

    - episodes: number of valid episodes
    - failures, hard: number of episodes of reward below 1, and of those with a partial reward of at least
      `hard_threshold`
    - success: share of episodes that succeed
    - partial, turns: mean partial reward, and mean number of turns
    - distinct: number of different (task, actions) among the failures, divided by the number of failures
    - ends: number of different (task, results of checks) among the failures, divided likewise
    - sr_at_k: mean cosine of each failure's actions to the k = 5 nearest of other failures; lower is more diverse

    A mean over no episodes is left out.
    """
    valid_episodes = [trajectory for group in groups for trajectory in group.valid]
    failures = [trajectory for trajectory in valid_episodes if trajectory.reward < 1.0]
    measures: dict[str, Any] = {
        "episodes": len(valid_episodes),
        "failures": len(failures),
        "hard": sum(trajectory.partial >= hard_threshold for trajectory in failures),
    }
    if valid_episodes:
        measures["success"] = 1.0 - len(failures) / len(valid_episodes)
        measures["partial"] = sum(trajectory.partial for trajectory in valid_episodes) / len(valid_episodes)
        measures["turns"] = sum(len(trajectory.turns) for trajectory in valid_episodes) / len(valid_episodes)
    if failures:
        measures["distinct"] = len({(t.task.id, _join_action_texts(t)) for t in failures}) / len(failures)
        measures["ends"] = len({(t.task.id, t.checks) for t in failures}) / len(failures)
    if len(failures) > 1:
        action_texts = [_join_action_texts(trajectory) for trajectory in failures[:_MAX_FAILURES]]
        measures["sr_at_k"] = round(measure_neighbours(hashed_ngrams()(action_texts), _NEIGHBOUR_COUNT) or 0.0, 6)
    return measures


def _join_action_texts(trajectory: Trajectory) -> str:
    return "\n".join(signature(turn.action) for turn in trajectory.turns)

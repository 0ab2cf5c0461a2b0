"""What each agent learns from in a round: the target from experts and failures, the failure agent from failures alone.

Experts are solutions of tasks, played in the environment and rendered as the policy would have acted, or successes.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from cojax.environment import Actor, Environment, Episode, OutOfContext, ask
from cojax.learner.batch import Pair, mark_sampled
from cojax.preference import read_coefficients, weights
from cojax.preference.failures import Failure, list_failures, make_pairs, mark_unsampled
from cojax.rollout.chat import Chat
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.settings.tree import RoundsSettings
from cojax.signals.kinds import task_of
from cojax.types import Action, Group, Message, Task, Trajectory, Turn

Seed = tuple[int | str, ...]


def pair_failures(own: Sequence[Failure], other_failures: Sequence[Failure], margin: float, seed: Seed) -> list[Pair]:
    """What the failure agent learns from: pairs of failures, the one with more partial reward preferred.

    `own` are its failures, `other_failures` those of the target.
    """
    other_ids = {failure.trajectory.episode for failure in other_failures}
    return make_pairs([*other_failures, *own], margin, seed, played_by_other=lambda t: t.episode in other_ids)


def agent_pairs(
    settings: RoundsSettings,
    experts: Mapping[str, Sequence[Trajectory]],
    own_groups: Sequence[Group],
    other_groups: Sequence[Group],
    seed: Seed,
) -> dict[str, list[Pair]]:
    """Kind (of PAIR_KINDS) → the pairs that one agent learns from. It played `own_groups`, the other `other_groups`.

    `experts` maps the id of a task to its experts. Each expert pair takes one of them, drawn by `seed` and the
    failure. An expert that this agent did not play must be marked by `mark_unsampled`. A kind of weight 0 has no pairs.
    """
    own_failures, other_failures = list_failures(own_groups), list_failures(other_groups)
    other_ids = {failure.trajectory.episode for failure in other_failures}
    all_failures = [*own_failures, *other_failures]
    pair_weights = {kind: read_coefficients(settings)[0] * weight for kind, weight in weights(settings).items()}
    pairs_by_kind: dict[str, list[Pair]] = {kind: [] for kind in pair_weights}
    for kind, failures in (("own", own_failures), ("other", other_failures)):
        for failure in failures if pair_weights[kind] else ():
            worse = failure.trajectory if kind == "own" else mark_unsampled(failure.trajectory)
            if task_experts := experts.get(worse.task.id):
                better = random.Random(repr((*seed, worse.task.id, worse.episode))).choice(task_experts)
                # Drops the turns beyond `extra_turns` more than the expert has.
                cut_worse = dataclasses.replace(worse, turns=worse.turns[: len(better.turns) + settings.extra_turns])
                pairs_by_kind[kind].append(Pair(better, cut_worse, pair_weights[kind]))
    if pair_weights["failures"]:
        pairs_by_kind["failures"] = make_pairs(
            all_failures,
            settings.margin,
            seed,
            pair_weights["failures"],
            played_by_other=lambda t: t.episode in other_ids,
        )
    return pairs_by_kind


def group_experts(
    settings: RoundsSettings, solutions: Mapping[str, Trajectory], own: Sequence[Group], other_groups: Sequence[Group]
) -> dict[str, list[Trajectory]]:
    """Task id → its experts according to `settings.experts`, as seen by the agent that played `own`."""
    experts = {task: [trajectory] for task, trajectory in solutions.items()} if settings.experts != "successes" else {}
    if settings.experts == "solutions":
        return experts
    successes_by_task: dict[str, list[Trajectory]] = {}
    for trajectory in (*select_successes(own), *map(mark_unsampled, select_successes(other_groups))):
        successes_by_task.setdefault(trajectory.task.id, []).append(trajectory)
    return {**successes_by_task, **experts}


def play_experts(
    environment: Environment, chat: Chat, limits: Limits, tasks: Iterable[Task], max_tokens: int
) -> dict[str, Trajectory]:
    """Task id → the expert's trajectory, for each task whose solution succeeds and has at most `max_tokens` tokens.

    Its actions carry no log-probs of a sampler, and their weights have the version -1. Raises RolloutError if too many
    episodes are lost.
    """
    solvable_tasks = [task for task in tasks if task.solution]
    max_actions = max((len(task.solution) for task in solvable_tasks), default=1)
    actors = SolutionActors(chat, {task.id: task.solution for task in solvable_tasks})
    collector = EpisodeCollector(actors, environment, dataclasses.replace(limits, max_turns=max_actions))
    groups = collector.collect(solvable_tasks, seed=(), label="expert")
    trajectories = (t for group in groups for t in group.valid if t.reward >= 1.0)
    sizes = ((t, sum(len(turn.prompt_tokens) + len(turn.action_tokens) for turn in t.turns)) for t in trajectories)
    return {trajectory.task.id: trajectory for trajectory, token_count in sizes if token_count <= max_tokens}


def select_successes(groups: Iterable[Group]) -> list[Trajectory]:
    """The successes of these groups, in order; only the first of those with the same task and tokens."""
    successes: dict[object, Trajectory] = {}
    for trajectory in (trajectory for group in groups for trajectory in group.valid):
        if trajectory.reward >= 1.0 and mark_sampled(trajectory).any():
            successes.setdefault((trajectory.task.id, *(turn.action_tokens for turn in trajectory.turns)), trajectory)
    return list(successes.values())


@dataclasses.dataclass(frozen=True)
class SolutionActors:
    """Actors that carry out the solutions of tasks, by task id. An action with calls has these calls as its text."""

    chat: Chat
    solutions: Mapping[str, Sequence[Action]]

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of a session, whose name is an episode's id and the number of its attempt."""
        actions = self.solutions[task_of(session)]
        turn_indices = itertools.count()

        def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            if (turn_index := next(turn_indices)) == len(actions):
                raise OutOfContext
            prompt = self.chat.extend(messages, True) if turn_index else self.chat.open(messages, ask(episode.tools))
            action = actions[turn_index]
            if action.calls:
                action = dataclasses.replace(action, text=self.chat.write(action.calls))
            tokens = self.chat.encode_action(action)
            return Turn(action, prompt_tokens=prompt, action_tokens=tokens, action_logprobs=(0.0,) * len(tokens))

        return act

    def release(self, session: str) -> None:
        pass

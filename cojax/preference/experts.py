"""Expert trajectories: solutions of tasks, played in the environment and rendered as the policy would have acted."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from cojax.environment import Actor, Environment, Episode, OutOfContext, ask
from cojax.learner.batch import sampled_mask
from cojax.rollout.chat import Chat
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.signals.kinds import task_of
from cojax.types import Action, Group, Message, Task, Trajectory, Turn


def expert_trajectories(
    environment: Environment, chat: Chat, limits: Limits, tasks: Iterable[Task], longest: int
) -> dict[str, Trajectory]:
    """Task id → the expert's trajectory, for each task whose solution succeeds and has at most `longest` tokens.

    Its actions have no log-probs of a sampler, and the version of their weights is -1. Raises RolloutError if too many
    episodes are lost.
    """
    solved = [task for task in tasks if task.solution]
    most = max((len(task.solution) for task in solved), default=1)
    actors = SolutionActors(chat, {task.id: task.solution for task in solved})
    collector = EpisodeCollector(actors, environment, dataclasses.replace(limits, max_turns=most))
    played = collector.collect(solved, seed=(), label="expert")
    return {
        trajectory.task.id: trajectory
        for group in played
        for trajectory in group.valid
        if trajectory.reward >= 1.0 and _tokens(trajectory) <= longest
    }


def distinct_successes(groups: Iterable[Group]) -> list[Trajectory]:
    """The successes of these groups, in order; of several with the same task and tokens, the first."""
    found: dict[object, Trajectory] = {}
    for trajectory in (trajectory for group in groups for trajectory in group.valid):
        if trajectory.reward >= 1.0 and sampled_mask(trajectory).any():
            found.setdefault((trajectory.task.id, *(turn.action_tokens for turn in trajectory.turns)), trajectory)
    return list(found.values())


@dataclasses.dataclass(frozen=True)
class SolutionActors:
    """Actors that carry out the solutions of tasks, by task id. The text of an action with calls is these calls."""

    chat: Chat
    solutions: Mapping[str, Sequence[Action]]

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        """The actor of a session, which is an episode's id and the number of its attempt."""
        actions = self.solutions[task_of(session.rpartition("-")[0])]
        turns = itertools.count()

        def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            if (number := next(turns)) == len(actions):
                raise OutOfContext
            prompt = self.chat.extend(messages, True) if number else self.chat.open(messages, ask(episode.tools))
            action = actions[number]
            if action.calls:
                action = dataclasses.replace(action, text=self.chat.write(action.calls))
            tokens = self.chat.encode_action(action)
            return Turn(action, prompt_tokens=prompt, action_tokens=tokens, action_logprobs=(0.0,) * len(tokens))

        return act

    def release(self, session: str) -> None:
        pass


def _tokens(trajectory: Trajectory) -> int:
    return sum(len(turn.prompt_tokens) + len(turn.action_tokens) for turn in trajectory.turns)

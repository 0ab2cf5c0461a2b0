"""Plays one case through the collector that training uses, and judges its trajectory."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from campaign import texts
from campaign.cases import Canary, Case, Violation
from cojax.environment import Actor, Environment, Episode, OutOfContext
from cojax.rollout.chat import Chat
from cojax.rollout.collect import EpisodeCollector, Limits
from cojax.types import Message, Trajectory, Turn

# Seconds for one call of the environment, above every deadline of a worker.
_PATIENCE = 300.0
_ROLES = frozenset({"system", "user", "assistant", "tool"})
# The most messages of one observation, including the one that says what was cut; its most characters in all.
_MESSAGES, _CHARACTERS = 257, 40_000
_FIGURE = re.compile(r"\b(\w+)=(\d+)\b")


class CaseSource(Protocol):
    """Makes the cases of one kind, and holds the environment in which they are played."""

    @property
    def environment(self) -> Environment:
        """The environment of the cases' tasks."""

    def case(self, id: str, seed: int) -> Case:
        """The case of that id."""

    def supervisors(self) -> tuple[int, ...]:
        """Process ids of the workers."""

    def close(self) -> None:
        """Ends every process."""


@runtime_checkable
class ExaminedCases(CaseSource, Protocol):
    """Cases that are more than an episode."""

    def examine(self, case: Case, seed: int) -> list[Violation]:
        """Plays the case; returns its violations."""


@dataclasses.dataclass(frozen=True)
class Scripted:
    """Makes actors that take a case's actions in order and then stop; an entry of `Actors`."""

    case: Case

    def __call__(self, session: str, seed: tuple[int, ...]) -> Actor:
        remaining = iter(self.case.actions)

        def act(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            for action in remaining:
                return Turn(action)
            raise OutOfContext

        return act

    def release(self, session: str) -> None:
        pass


def play(environment: Environment, case: Case, stop: Callable[[], bool] = lambda: False) -> Trajectory:
    """The episode as training plays it: a lost episode is played once more and then counts as in training."""
    limits = Limits(
        max_turns=max(1, len(case.actions)), environment_deadline=_PATIENCE, error_rate=1.0, retries=1, concurrency=1
    )
    collector = EpisodeCollector(Scripted(case), environment, limits)
    (group,) = collector.collect([case.task], seed=(0,), label=case.id, stop=stop)
    return group.trajectories[0]


def judge(case: Case, trajectory: Trajectory, canary: Canary) -> list[Violation]:
    """The violations in the episode."""
    found: list[Violation] = []
    ending = f"{trajectory.outcome}, reward {trajectory.reward:g}{': ' if trajectory.error else ''}{trajectory.error}"

    def wrong(count: str, reason: str) -> None:
        found.append(Violation(count, case.id, f"{case.trick}: {reason}"[:600]))  # type: ignore[arg-type]

    if not trajectory.valid:
        wrong("forged", f"the verdict is erased ({ending})")
    elif case.expected == "full" and trajectory.reward < 1.0:
        wrong("forged", f"the verdict is denied ({ending})")
    elif case.expected == "less" and trajectory.reward >= 1.0:
        wrong("forged", f"the verdict is forged ({ending})")
    if case.seconds > texts.PATIENCE:
        wrong("leaked", f"reading its texts took {case.seconds:.1f} s of the processor")
    for number, turn in enumerate(trajectory.turns, 1):
        messages = turn.observation.messages
        size = sum(len(message.content) + len(message.role) for message in messages)
        if len(messages) > _MESSAGES or size > _CHARACTERS:
            wrong("leaked", f"observation {number} has {len(messages):,} messages of {size:,} characters")
        if roles := {message.role for message in messages} - _ROLES:
            wrong("forged", f"observation {number} has the role {min(roles)[:60]!r}")
        text = turn.observation.text
        if others := canary.others(text, case.id.partition("-")[0]):
            wrong("traces", f"observation {number} shows what case {others[0]} left: {text[:200]!r}")
        for name, figure in _FIGURE.findall(text):
            if int(figure) > case.bounds.get(name, int(figure)):
                wrong("leaked", f"{name} is {int(figure):,}, more than {case.bounds[name]:,}")
    return found


class Rendering:
    """The chat template that training renders with. Control tokens may come from it alone."""

    @functools.cached_property
    def chat(self) -> Chat:
        from cojax.rollout.vocabulary import train_byte_tokenizer

        return Chat(train_byte_tokenizer(["a b c"], 300))

    def judge(self, case: Case, trajectory: Trajectory) -> list[Violation]:
        """Violations by observations that make control tokens which the same messages without their text do not."""
        found = []
        for number, turn in enumerate(trajectory.turns, 1):
            messages = turn.observation.messages[:50]
            if not messages or any(message.role not in _ROLES for message in messages):
                continue
            count = self._controls(messages)
            plain = self._controls(tuple(Message(message.role, "x") for message in messages))
            if count != plain:
                reason = f"{case.trick}: observation {number} makes {count - plain} control tokens"
                found.append(Violation("forged", case.id, reason))
        return found

    def _controls(self, messages: tuple[Message, ...]) -> int:
        controls = set(self.chat.tokenizer.added_tokens_decoder)
        return sum(token in controls for token in self.chat.extend(messages, True))

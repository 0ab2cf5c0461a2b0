"""Validation: what a draft must survive to become a task (CoEvolve §3.3).

A task's reward is the environment's own comparison with the replayed solution, so what is proved here is that the
solution runs, always to the same end, that this end is worth something, and that nothing less passes for it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable

from cojax import environment as world
from cojax.environment import Environment, EnvironmentFailure
from cojax.explorer.guidance import signature
from cojax.replay import Play, Replay, replay
from cojax.types import Action, Task, TaskDraft, Verdict, content_hash, normalise, to_json


@dataclasses.dataclass(frozen=True)
class Exclusions:
    """The evaluation tasks, as what must not come near the pool."""

    queries: frozenset[str] = frozenset()
    plans: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> Exclusions:
        tasks = tuple(tasks)
        return cls(frozenset(normalise(task.query) for task in tasks), frozenset(_plan(task) for task in tasks))

    def why(self, task: Task) -> str:
        """Which rule excludes the task; empty where none does."""
        if normalise(task.query) in self.queries:
            return "an evaluation task has the same query"
        if _plan(task) in self.plans:
            return "an evaluation task has the same setup and actions"
        return ""


class _Refused(Exception):
    """An examination failed."""


@dataclasses.dataclass(frozen=True)
class Validation:
    """Examines drafts by running them.

    accepted   the solution runs twice to the same end and earns full reward, the end differs from doing nothing, and
               neither doing nothing nor the solution less one effective action passes
    retained   the run fails, yet the environment returns a positive reward (the paper's rule); not a task
    discarded  everything else

    `controls` is how many effective actions are left out in turn, drawn by the draft; None leaves out each. With
    `enabled` false nothing is run, and only duplicates and evaluation tasks are refused (the ablation).
    """

    environment: Environment
    exclusions: Exclusions = Exclusions()
    controls: int | None = None
    enabled: bool = True
    play: Play = world.play

    def __call__(self, draft: TaskDraft, known: Callable[[str], bool]) -> tuple[Verdict, Task | None]:
        """The verdict, and the task where it was accepted (its origin and lineage are the caller's to fill in).

        `known` tells whether a task of that id is in the pool already. An environment that breaks is evidence too: the
        draft is discarded with a line that begins "environment failed".
        """
        task = Task(draft.environment, draft.query, draft.setup, draft.solution)
        evidence: list[str] = []
        try:
            self._admissible(task, known, evidence)
            if not self.enabled:
                return Verdict("accepted", (*evidence, "not validated: validation is off")), task
            run = self._run(task, task.solution)
            if failure := _failure(run):
                evidence.append(failure)
                retained = run.trajectory.reward > 0
                evidence.append(f"the environment returned {run.trajectory.reward:.2f}")
                return Verdict("retained" if retained else "discarded", tuple(evidence)), None
            evidence.append(f"runs: {len(task.solution)} actions, full reward")
            self._repeatable(task, run, evidence)
            self._worth_doing(task, run, evidence)
            self._needs_its_actions(task, run, evidence)
        except _Refused as reason:
            return Verdict("discarded", (*evidence, str(reason))), None
        except EnvironmentFailure as failure:
            return Verdict("discarded", (*evidence, f"environment failed: {failure}")), None
        return Verdict("accepted", tuple(evidence)), task

    def _admissible(self, task: Task, known: Callable[[str], bool], evidence: list[str]) -> None:
        if not task.solution:
            raise _Refused("has no actions")
        if known(task.id):
            raise _Refused(f"duplicate of task {task.id}")
        if reason := self.exclusions.why(task):
            raise _Refused(reason)
        evidence.append("new, and no evaluation task")

    def _repeatable(self, task: Task, run: Replay, evidence: list[str]) -> None:
        again = self._run(task, task.solution)
        if again.states != run.states:
            both = zip(run.states, again.states, strict=False)
            first = next((i for i, (one, other) in enumerate(both) if one != other), len(again.states))
            raise _Refused(f"not repeatable: a second run differs in the state after action {first}")
        evidence.append("repeatable: a second run passes through the same states")

    def _worth_doing(self, task: Task, run: Replay, evidence: list[str]) -> None:
        nothing = self._run(task, (_wordless(task.solution[-1]),))
        if nothing.states[-1] == run.states[-1]:
            raise _Refused("no effect: ends in the same state as doing nothing, and gives no answer")
        if nothing.trajectory.reward >= 1.0:
            raise _Refused("doing nothing earns full reward")
        evidence.append("has an effect, and doing nothing fails")

    def _needs_its_actions(self, task: Task, run: Replay, evidence: list[str]) -> None:
        effective = list(run.effective)
        if self.controls is not None and self.controls < len(effective):
            effective = sorted(random.Random(repr(("controls", task.id))).sample(effective, self.controls))
        for left_out in effective:
            action = f"action {left_out + 1}, {signature(task.solution[left_out])}"
            less = self._run(task, (*task.solution[:left_out], *task.solution[left_out + 1 :]))
            if less.trajectory.reward >= 1.0:
                raise _Refused(f"negative control: passes without {action}")
            evidence.append(f"negative control: fails without {action}")

    def _run(self, task: Task, actions: tuple[Action, ...]) -> Replay:
        """One replay. Raises EnvironmentFailure where the environment broke or was cut off: that proves nothing."""
        run = replay(self.environment, task, actions, self.play)
        if not run.trajectory.valid or run.trajectory.outcome == "timeout":
            raise EnvironmentFailure(run.trajectory.error)
        return run


def _failure(run: Replay) -> str:
    """Why the run does not complete its objective; empty where it does."""
    for position, turn in enumerate(run.trajectory.turns, start=1):
        if not turn.observation.ok:
            return f"run fails: action {position}, {signature(turn.action)}: {turn.observation.text[:200]}"
    if run.trajectory.outcome != "finished":
        return f"run fails: the last action leaves the episode open ({run.trajectory.outcome})"
    if run.trajectory.reward < 1.0:
        return "run fails: the replayed solution does not pass its own checks"
    return ""


def _wordless(action: Action) -> Action:
    """The ending without an answer; one written as code stays as it is."""
    return dataclasses.replace(action, calls=tuple(dataclasses.replace(call, arguments={}) for call in action.calls))


def _plan(task: Task) -> str:
    """Setup and actions with their arguments; the text of an action counts only where it has no calls."""
    actions = [to_json(action.calls) or action.text for action in task.solution]
    return content_hash([task.environment, task.setup, actions])

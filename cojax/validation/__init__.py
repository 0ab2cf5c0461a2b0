"""Validation: runs a draft to decide whether it becomes a task (CoEvolve §3.3).

A task's reward is the environment's own comparison with the replayed solution. So validation proves that the solution
runs and always ends in the same state, that doing nothing does not end there, and that no shorter version of the
solution earns full reward. It also checks that the query asks for this result, as far as environment and wording show.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from cojax import environment as world
from cojax.drafts import DraftRefused, find_excess, find_flaw
from cojax.environment import Actor, Environment, EnvironmentFailure, Episode, ask
from cojax.environment.replay import Play, Replay, replay
from cojax.environment.watch import CALL_TIMEOUT_S, ask_within
from cojax.explorer import Explorer, Metered, document_tools
from cojax.settings.tree import Settings
from cojax.types import Action, Call, Message, Task, TaskDraft, Trajectory, Turn, Verdict, signature
from cojax.validation.answers import asking_flaw, check_answer, takes_answer
from cojax.validation.consistency import Documents, QueryMatch, compare_query, find_false_condition
from cojax.validation.controls import NegativeControls, describe_after_end, join_opening, list_triplets
from cojax.validation.exclusions import Exclusions
from cojax.validation.safety import find_violated_rule

__all__ = ["Attempts", "Exclusions", "Opinion", "Validation"]

# (explorer that pays, task, count) → a context with `count` actors, which attempt the task at the same time. Leaving it
# frees their resources. An actor with a method `close` is closed as soon as its own attempt is over.
Attempters = Callable[[Any, Task, int], AbstractContextManager[Sequence[Actor]]]
# (environment, task) → by which attack the task's reward is gamed, "" by none.
Audit = Callable[[Environment, Task], str]
# (task, draft, the budget that pays, whether an unsafe draft is set aside for review by a person) → a line of evidence.
# Raises DraftRefused if the opinion is against the draft.
Opinion = Callable[[Task, TaskDraft, Any, bool], str]


@dataclasses.dataclass(frozen=True)
class Attempts:
    """Plays a task `count` times at once, each time with an actor that sees only what the episode shows.

    Attempts lost to infrastructure failures do not count.
    """

    attempters: Attempters
    count: int = 2
    max_turns: int = 30

    def __call__(self, environment: Environment, task: Task, explorer: Metered, play: Play) -> Verdict:
        """The verdict: accepted if an attempt earns full reward, retained if one earns part of it, else discarded. Its
        difficulty is the share of valid attempts that failed, or None if none was valid."""
        with self.attempters(explorer, task, self.count) as actors, ThreadPoolExecutor(self.count) as executor:
            trajectories = list(executor.map(functools.partial(self._make_attempt, environment, task, play), actors))
        attempts = [trajectory for trajectory in trajectories if trajectory.valid]
        if not attempts:
            return Verdict("discarded", (f"no attempt on the query alone came to an end: {trajectories[0].error}",))
        successes = sum(trajectory.reward >= 1.0 for trajectory in attempts)
        best = max(trajectory.reward for trajectory in attempts)
        line = f"solved without hints: {successes} of {len(attempts)} attempts on the query alone"
        if not successes:
            line = f"{line}, the best earned {best:.2f}"
        return Verdict(
            "accepted" if successes else "retained" if best > 0 else "discarded", (line,), 1 - successes / len(attempts)
        )

    def _make_attempt(self, environment: Environment, task: Task, play: Play, act: Actor) -> Trajectory:
        try:
            return play(environment, task, act, max_turns=self.max_turns)
        finally:
            if close := getattr(act, "close", None):
                close()


_NO_EXCLUSIONS = Exclusions()


@dataclasses.dataclass(frozen=True)
class Validation:
    """Examines drafts by running them. The verdict is one of:

    accepted   All checks hold:
               - the query is text of at most `longest_query` characters without `control_tokens`;
               - neither the pool nor the evaluation has a task with its query, solution or effect (exclusions.py);
               - the solution earns full reward, and runs twice through the same states;
               - doing nothing ends in another state, and does not earn full reward;
               - an action showed its answer, if it gives one, and the query does not contain it (answers.py);
               - the query agrees with the solution (consistency.py);
               - without any one of its effective actions, the solution does not earn full reward (controls.py);
               - no look-up is superfluous (controls.py);
               - no attacker of `audit`, if there is one, is paid or harmful (environments/audit);
               - the judge, if there is one, does not refuse it;
               - if attempts are made that see only the query, at least one earns full reward.
    retained   The run or every attempt fails, but the environment returns a positive reward (the paper's rule). The
               draft does not become a task.
    discarded  Everything else.

    Doing nothing means ending the episode immediately, without an answer. If the last action does more than end the
    episode, it has a control like any other action. That control ends the episode without an answer instead.

    The explorer that wrote the draft names the tool that ends an episode, `ending`, and its budget pays for calls to
    models. `audit`, `judge` and `attempts` run last, as they cost most; a judge can refuse a draft but never accept it.
    If `safe` is true, drafts that match a safety rule are discarded and marked for quarantine. If `enabled` is false
    (the ablation), nothing is run, and only malformed queries, duplicates, evaluation tasks and unsafe drafts are
    refused.
    """

    environment: Environment
    exclusions: Exclusions = _NO_EXCLUSIONS
    enabled: bool = True
    play: Play = world.play
    attempts: Attempts | None = None
    judge: Opinion | None = None
    safe: bool = False
    longest_query: int = Settings.validation.longest_query
    control_tokens: tuple[str, ...] = ()
    audit: Audit | None = None

    def __call__(
        self, draft: TaskDraft, in_pool: Callable[[str], bool], explorer: Explorer
    ) -> tuple[Verdict, Task | None]:
        """The verdict, and the task if it was accepted. The caller adds the task's origin and lineage.

        `in_pool` says whether the pool already holds a task with that id. If the environment fails, the draft is
        discarded with a line of evidence that begins "environment failed". Raises TypeError if a judge or attempts
        need a budget and the explorer has none.
        """
        evidence: list[str] = []
        try:
            _refuse(find_flaw(draft.query, self.longest_query, self.control_tokens) or find_excess(draft.solution))
            task = Task(draft.environment, draft.query, draft.setup, draft.solution)
            self._check_draft(task, draft, in_pool, evidence)
            if not self.enabled:
                return Verdict("accepted", (*evidence, "not validated: validation is off")), task
            run = self._replay(task, task.solution)
            _refuse(describe_after_end(task.solution, len(run.trajectory.turns), explorer.ending))
            if failure := _explain_failure(run):
                evidence += [failure, f"the environment returned {run.trajectory.reward:.2f}"]
                return Verdict("retained" if run.trajectory.reward > 0 else "discarded", tuple(evidence)), None
            evidence.append(f"runs: {len(task.solution)} actions, full reward")
            _refuse(self.exclusions.find_end_rule(task, run, self._replay))
            self._check_repeatable(task, run, evidence)
            bare_ending = self._find_bare_ending(task, explorer.ending)
            idle_run = self._check_effect(task, run, bare_ending, evidence)
            query_match = self._compare_query(task, run, bare_ending, idle_run, explorer.ending, evidence)
            bare = None if _only_ends(task.solution[-1], bare_ending) else bare_ending
            phrase = functools.partial(ask, self.environment.phrase)
            controls = NegativeControls(
                task, run, explorer.ending, bare, query_match, self._documents, phrase, self._replay
            )
            controls.check_parts(evidence)
            if self.audit is not None:
                _refuse(self.audit(self.environment, task))
                evidence.append("the attackers named find nothing")
            if self.judge is not None:
                evidence.append(self.judge(task, draft, _require_metered(explorer).remaining_budget(), self.safe))
            if self.attempts is not None:
                attempts_verdict = self.attempts(self.environment, task, _require_metered(explorer), self.play)
                verdict = dataclasses.replace(attempts_verdict, evidence=(*evidence, *attempts_verdict.evidence))
                return verdict, task if verdict.status == "accepted" else None
        except DraftRefused as refusal:
            return Verdict("discarded", (*evidence, str(refusal)), quarantine=refusal.quarantine), None
        except EnvironmentFailure as failure:
            return Verdict("discarded", (*evidence, f"environment failed: {failure}")), None
        return Verdict("accepted", tuple(evidence)), task

    @functools.cached_property
    def _documents(self) -> Documents:
        return ask(document_tools, self.environment)

    def _check_draft(self, task: Task, draft: TaskDraft, in_pool: Callable[[str], bool], evidence: list[str]) -> None:
        """Raises DraftRefused if the draft has objections, is in the pool, is an evaluation task or is unsafe."""
        if draft.objections:
            evidence += draft.objections[:-1]
            raise DraftRefused(draft.objections[-1])
        if not task.solution:
            raise DraftRefused("has no actions")
        if in_pool(task.id):
            raise DraftRefused(f"duplicate of task {task.id}")
        _refuse(self.exclusions.find_rule(task))
        evidence.append("new, and no evaluation task")
        if self.safe and (violation := find_violated_rule(draft)):
            raise DraftRefused(f"set aside for review: {violation}", quarantine=violation)

    def _check_repeatable(self, task: Task, run: Replay, evidence: list[str]) -> None:
        """Raises DraftRefused if a second run passes through other states."""
        second_run = self._replay(task, task.solution)
        if second_run.states != run.states:
            state_pairs = zip(run.states, second_run.states, strict=False)
            index = next((i for i, (state, other) in enumerate(state_pairs) if state != other), len(second_run.states))
            raise DraftRefused(f"not repeatable: a second run differs in the state after action {index}")
        evidence.append("repeatable: a second run passes through the same states")

    def _find_bare_ending(self, task: Task, ending: str) -> Action:
        """The action that ends the episode and does nothing else.

        It calls `ending` without arguments; an environment whose actions are code turns the call into code. Without
        such a tool it is an action without calls. Its text is that of the last action that the environment offers, if
        that has no calls either.
        """
        if ending:
            return Action(calls=(Call(ending),))
        if task.solution[-1].calls or not task.solution[-1].text.strip():
            return Action()
        last_actions: list[Action] = []

        def record_last_action(episode: Episode, messages: tuple[Message, ...]) -> Turn:
            last_actions.extend(ask_within(CALL_TIMEOUT_S, episode.affordances)[-1:])
            return Turn(Action())

        trajectory = self.play(self.environment, task, record_last_action, max_turns=1)
        if not trajectory.valid:
            raise EnvironmentFailure(trajectory.error)
        return next((action for action in last_actions if not action.calls), Action())

    def _check_effect(self, task: Task, run: Replay, bare_ending: Action, evidence: list[str]) -> Replay:
        """Replays doing nothing. Raises DraftRefused if that ends in the same state, or earns full reward."""
        # In a dialogue, doing nothing ends each of the user's turns immediately.
        turn_count = 1 if bare_ending.calls else sum(not action.calls for action in task.solution[:-1]) + 1
        idle_run = self._replay(task, (bare_ending,) * turn_count)
        if idle_run.states[-1] == run.states[-1]:
            raise DraftRefused("no effect: ends in the same state as doing nothing, and gives no answer")
        if idle_run.trajectory.reward >= 1.0:
            raise DraftRefused("doing nothing earns full reward")
        evidence.append("has an effect, and doing nothing fails")
        return idle_run

    def _compare_query(
        self, task: Task, run: Replay, bare_ending: Action, idle_run: Replay, ending: str, evidence: list[str]
    ) -> QueryMatch:
        """Compares the query with the solution. Raises DraftRefused if no action showed the answer, the query gives it
        away or does not ask for it, the query asks for one that is missing, or its condition does not hold."""
        steps, document = list_triplets(run), self._documents.get(ending, {})
        if answer_evidence := check_answer(task.query, steps, run.states[-1], ending, document):
            evidence.append(answer_evidence)
        wording = ask(self.environment.phrase, steps)
        query_match = compare_query(
            task.query, task.environment, steps, join_opening(run), wording, self._documents, ending
        )
        if answer_evidence:
            bare_run = self._replay(task, (*task.solution[:-1], bare_ending))
            bare_wording = ask(self.environment.phrase, list_triplets(bare_run))
            # If the solution does nothing else, the query can only ask for the answer.
            checks_asking = bare_run.complete and bare_run.states[-1] != idle_run.states[-1]
        else:
            bare_wording, checks_asking = (
                wording,
                not query_match.verbatim and takes_answer(run.states[-1], ending, document),
            )
        if query_match.contradiction:
            return query_match  # raised once the look-ups have been examined
        if checks_asking:
            _refuse(asking_flaw(task.query, steps, run.effective, bare_wording, bool(answer_evidence), self._documents))
        if not query_match.verbatim and (
            condition := find_false_condition(task.query, steps, run.effective, run.states)
        ):
            raise DraftRefused(f"the query makes it depend on {condition!r:.60}, which does not hold")
        evidence.append(query_match.evidence_line)
        return query_match

    def _replay(self, task: Task, actions: tuple[Action, ...]) -> Replay:
        """Replays actions once. Raises EnvironmentFailure if the environment failed or timed out: it proves nothing."""
        run = replay(self.environment, task, actions, self.play)
        if not run.trajectory.valid or run.trajectory.outcome == "timeout":
            raise EnvironmentFailure(run.trajectory.error)
        return run


def _refuse(reason: str) -> None:
    """Raises DraftRefused if there is a reason."""
    if reason:
        raise DraftRefused(reason)


def _explain_failure(run: Replay) -> str:
    """Why the run does not earn full reward; "" if it does."""
    for action_number, turn in enumerate(run.trajectory.turns, start=1):
        if not turn.observation.ok:
            return f"run fails: action {action_number}, {signature(turn.action)}: {turn.observation.text[:200]}"
    if run.trajectory.outcome != "finished":
        return f"run fails: the last action leaves the episode open ({run.trajectory.outcome})"
    if run.trajectory.reward < 1.0:
        return "run fails: the replayed solution does not pass its own checks"
    return ""


def _only_ends(action: Action, bare_ending: Action) -> bool:
    """Whether an action only ends the episode, perhaps with an answer."""
    if bare_ending.calls:
        return [call.name for call in action.calls] == [call.name for call in bare_ending.calls]
    return not action.calls and action.text.strip() == bare_ending.text.strip()


def _require_metered(explorer: Explorer) -> Metered:
    if not isinstance(explorer, Metered):
        raise TypeError(
            f"explorer {explorer.name!r} has no budget for a judge or attempts; create its Validation without them"
        )
    return explorer

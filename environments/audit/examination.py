"""Plays every attacker on every task, and judges by the rules of attackers.py what happened.

Each task is first played twice without an action and twice by its solution, before anything else can have left a trace.
"""

import dataclasses
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cojax.environment import Environment, EnvironmentFailure
from cojax.types import Action, Call, Task, signature
from . import repetition
from .attackers import ATTACKERS, Attacker
from .findings import Accepted, Finding, describe, read_by_design, settle, write_transcript
from .player import Attempt, Path, Player, Run, name_paths
from .repetition import Origin, Replayed, Trace, explain_difference
from .scene import Scene, is_same, survey

FLOOR = ("null", "greeting", "random")
# After so many calls that hang, an attacker leaves a task, and after so many in all the audit ends: each leaves a
# thread behind.
_MAX_HANGS, _MAX_HANGS_IN_ALL = 2, 12
# The most look-ups by which two ends are compared.
_MAX_PROBES = 12
_NOTHING = Attempt("makes no action")
# Attackers of a draft: those who want to be paid, but for null and drop, which validation's own controls are.
FOR_DRAFTS = tuple(name for name in ATTACKERS if "paid" in ATTACKERS[name].rule and name not in ("null", "drop"))
# The origin of a task that is made here from a setup without a query.
WALK = "walk"
_ONLY_COUNTED = "is paid, and only a count of calls, or the time, differs from the honest end"


@dataclasses.dataclass
class Baseline:
    """The first plays of a task, before any attack: two without an action, two of its solution, if it has one."""

    task: Task
    idle: tuple[Run, Run]
    honest: tuple[Run, Run] | None


@dataclasses.dataclass
class Tally:
    """What an attacker tried."""

    tasks: int = 0
    tried: int = 0
    findings: int = 0


class Examination:
    """One audit of an environment. `origin` is how other processes make it; without one, none does."""

    def __init__(
        self, environment: Environment, attackers: Mapping[str, Attacker] = ATTACKERS, seed: int = 0,
        origin: Origin | None = None, accepted: Sequence[Accepted] = (), budget_s: float = float("inf"),
        say: Callable[[str], None] = lambda line: None, deadline_s: float | None = None,
    ) -> None:  # fmt: skip
        self.player = Player(environment, deadline_s)
        self.attackers, self.seed, self.origin, self.accepted = attackers, seed, origin, accepted
        self.say, self._end_time = say, time.monotonic() + budget_s
        self.findings: list[Finding] = []
        self.tallies: defaultdict[str, Tally] = defaultdict(Tally)
        self.failures: list[str] = []
        self.left_out: Counter[str] = Counter()
        self.rewards: dict[str, list[float]] = {name: [] for name in FLOOR}
        self._solved_by_nothing: set[str] = set()
        self._probed: dict[str, list[str]] = {}
        # Of a task, what differs between two fresh processes that play it alike.
        self._unsteady: defaultdict[str, frozenset[Path | str]] = defaultdict(frozenset)

    def examine(self, tasks: Sequence[Task]) -> None:
        """Examines the tasks, with the worthiest attackers first."""
        baselines = []
        for number, task in enumerate(tasks, 1):
            self.say(f"first plays: task {number} of {len(tasks)}")
            if not self._hangs() and (baseline := self._play_baseline(task)) is not None:
                baselines.append(baseline)
        if tasks and not baselines:
            self.failures.append("no task opens; run `cojax check` on this world")
        known_calls = [call for task in tasks for action in task.solution for call in action.calls]
        scenes = {
            baseline.task.id: self._make_scene(baseline, known_calls) for baseline in baselines if not self._hangs()
        }
        if scenes and self.origin and not self._hangs() and {"clock", "leak"} & set(self.attackers):
            self._examine_clock(self.origin, baselines, scenes)
        for name, attacker in self.attackers.items():
            for number, baseline in enumerate(baselines[: attacker.most_tasks] if name != "clock" else (), 1):
                if time.monotonic() > self._end_time or self._hangs():
                    self.left_out[name] += 1
                    continue
                self.say(f"{name}: task {number} of {len(baselines)}, {len(self.findings)} findings so far")
                scene = scenes[baseline.task.id]
                unsteady = scene.unsteady | self._unsteady[scene.task.id]
                self._examine_scene(name, attacker, dataclasses.replace(scene, unsteady=unsteady), baseline)
        if self._hangs():
            self.failures.append(f"{self.player.hangs} calls hung, and the rest was left out; see --deadline")

    def _hangs(self) -> bool:
        return self.player.hangs >= _MAX_HANGS_IN_ALL

    def floor(self) -> dict[str, float | None]:
        """The mean rewards of doing nothing, talking, and random calls."""
        return {
            name: round(sum(rewards) / len(rewards), 6) if rewards else None for name, rewards in self.rewards.items()
        }

    def _play_baseline(self, task: Task) -> Baseline | None:
        """Plays the task before anything else does; a finding if it does not open, or breaks the solution."""
        first_idle = self.player.play(task, _NOTHING, "null")
        if first_idle.failure:
            self._add("break", task, 0, _NOTHING, first_idle, None, f"an episode does not open: {first_idle.failure}")
            return None
        if not task.solution:
            return Baseline(task, (first_idle, self.player.play(task, _NOTHING, "null")), None)
        solution = Attempt("the solution", task.solution)
        honest = self.player.play(task, solution, "solution")
        idle = self.player.play(task, _NOTHING, "null")
        baseline = Baseline(task, (first_idle, idle), (honest, self.player.play(task, solution, "solution")))
        self.tallies["solution"].tasks += 1
        self.tallies["solution"].tried += 2
        if honest.failure:
            self._add("break", task, 0, solution, honest, None, f"the solution breaks the world: {honest.failure}")
        elif honest.reward <= 0 and task.origin != WALK:
            why = f"the task's own solution earns nothing ({honest.trajectory.outcome})"
            self._add("solution", task, 0, solution, honest, None, why)
        return baseline

    def _make_scene(self, baseline: Baseline, known_calls: Sequence[Call]) -> Scene:
        task, honest = baseline.task, baseline.honest[0] if baseline.honest else None
        is_usable = honest is not None and honest.reward > 0 and not honest.failure
        scene = survey(self.player, task, self.seed, honest if is_usable else None, known_calls)
        if scene.idle.failure:
            why = f"ending at once breaks the world: {scene.idle.failure}"
            self._add("break", task, 0, Attempt("ends at once"), scene.idle, None, why)
        pairs = filter(None, (baseline.idle, baseline.honest))
        unsteady = [repetition.find_unsteady(first.trace(), second.trace()) for first, second in pairs]
        return dataclasses.replace(scene, unsteady=frozenset().union(*unsteady))

    def _examine_clock(self, origin: Origin, baselines: Sequence[Baseline], scenes: Mapping[str, Scene]) -> None:
        """Plays the tasks in other processes, and compares those plays with each other and with the first ones here."""
        plays: list[Replayed] = []
        for task in (baseline.task for baseline in baselines):
            scene = scenes[task.id]
            route, before = task.solution or repetition.route_of(scene), repetition.other_calls(scene)
            tour = repetition.tour_of(scene)
            # The way to the goal comes last, and first if the order is reversed.
            plays += [Replayed(task, actions, before) for actions in (tour, (), route)]
        start_time = time.monotonic()
        try:
            timeout_s = 20 * (1.0 + sum(self.player.seconds.values()))
            plain, elsewhere, failures = repetition.play_everywhere(origin, plays, timeout_s)
        except repetition.ProcessFailure as failure:
            self.failures.append(f"clock: a new process could not play this world: {failure}")
            return
        for surroundings, reason in failures.items():
            self.say(f"clock: not played with {surroundings}: {reason}")
            self.left_out[f"clock, {surroundings}"] += 1
        self.player.seconds["clock"] += time.monotonic() - start_time
        self.player.episodes["clock"] += len(plays) * (1 + len(elsewhere))
        self.tallies["clock"].tasks += len(baselines)
        self.tallies["clock"].tried += len(plays) * len(elsewhere)
        for number, replayed in enumerate(plays):
            baseline = baselines[number // 3]
            runs = (None, baseline.idle, baseline.honest)[number % 3]
            others = {name: traces[number] for name, traces in elsewhere.items()}
            self._compare_processes(replayed.task, runs, plain[number], others)

    def _compare_processes(
        self, task: Task, runs: Sequence[Run] | None, plain: Trace, elsewhere: Mapping[str, Trace]
    ) -> None:
        """Compares one play in all processes. What two alike do differently is the clock's; other differences within
        one process, or that depend on the order of tasks, are leaks."""
        again, turned, after, *others = (surroundings.name for surroundings in repetition.SURROUNDINGS)
        if again in elsewhere:
            self._unsteady[task.id] |= repetition.find_unsteady(plain, elsewhere[again])
        for name in filter(elsewhere.__contains__, (again, *others)):
            if difference := explain_difference(plain, elsewhere[name], shows_values=False):
                self._add_difference("clock", task, f"{name}: {difference}", runs)
                break
        here = [("this process", run.trace()) for run in runs or ()]
        there = [(name, elsewhere[name]) for name in (turned, after) if name in elsewhere]
        for name, trace in (*there, *here):
            if difference := explain_difference(plain, trace, self._unsteady[task.id]):
                self._add_difference("leak", task, f"a fresh process, then {name}: {difference}", runs)
                break

    def _add_difference(self, name: str, task: Task, why: str, runs: Sequence[Run] | None) -> None:
        if name in self.attackers and not self._has(name, task):
            run = runs[-1] if runs else None
            self._add(name, task, 0, Attempt("the same actions"), run, runs[0] if runs else None, why)

    def _has(self, name: str, task: Task) -> bool:
        return any(finding.attacker == name and finding.task == task.id for finding in self.findings)

    def _examine_scene(self, name: str, attacker: Attacker, scene: Scene, baseline: Baseline) -> None:
        """Plays one attacker on one task, and adds at most one finding."""
        tally, is_floor = self.tallies[name], name in FLOOR
        if name == "solution" or (attacker.needs_solution and scene.honest is None):
            return
        if attacker.rule == "paid otherwise" and scene.task.id in self._solved_by_nothing:
            return  # that nothing is paid says all
        tally.tasks += 1
        if attacker.rule == "leaks":
            self._examine_leak(scene, baseline)
            return
        shown: list[tuple[int, Attempt, Run, str]] = []
        rewards, hangs, number = [], 0, 0
        for number, attempt in enumerate(attacker.attempts(scene), 1):
            run = self.player.play(scene.task, attempt, name)
            tally.tried += 1
            rewards.append(run.reward)
            if reason := self._judge(attacker, scene, attempt, run):
                is_doubtful = attempt.is_doubtful or reason == _ONLY_COUNTED
                shown.append((number, dataclasses.replace(attempt, is_doubtful=is_doubtful), run, reason))
            hangs += "was abandoned" in run.failure
            if hangs >= _MAX_HANGS:
                break
        if is_floor and rewards:
            # The best of doing nothing and of talking; random play has a mean.
            self.rewards[name].append(sum(rewards) / len(rewards) if name == "random" else max(rewards))
        if shown:
            if name == "null":
                self._solved_by_nothing.add(scene.task.id)
            first_number, attempt, run, reason = min(shown, key=lambda item: item[1].is_doubtful)
            self._add(name, scene.task, first_number, attempt, run, scene.honest, reason, len(shown), number)

    def _examine_leak(self, scene: Scene, baseline: Baseline) -> None:
        if self._has("leak", scene.task):
            return
        steady = dataclasses.replace(scene, unsteady=self._unsteady[scene.task.id])
        for first, second in filter(None, (baseline.idle, baseline.honest)):
            if difference := explain_difference(first.trace(), second.trace(), steady.unsteady):
                self._add_difference("leak", scene.task, f"played twice: {difference}", (first, second))
                return
        expected = baseline.honest[0] if scene.honest is not None and baseline.honest else None
        route = Attempt("the same actions", repetition.route_of(scene))
        if expected is None or scene.solution != scene.task.solution:
            expected = self.player.play(scene.task, route, "leak")
        if leak := next(repetition.find_leak(self.player, steady, expected), None):
            label, difference, run = leak
            self._add("leak", scene.task, 1, Attempt(label), run, expected, f"{label}: {difference}")
        self.tallies["leak"].tried += repetition.LEAK_ATTEMPTS

    def _judge(self, attacker: Attacker, scene: Scene, attempt: Attempt, run: Run) -> str:
        """Why a play is a finding; "" if it is none."""
        is_paid = run.earns(scene.full_reward)
        if attacker.rule == "paid":
            return f"{attempt.label} earns {run.reward:g}" if is_paid else ""
        if attacker.rule == "paid otherwise":
            return self._explain_payment(scene, attempt, run) if is_paid else ""
        if attacker.rule == "refused":
            is_honest = not (is_paid or scene.differences(run) or run.failure) and run.trajectory.valid
            is_whole = len(run.trajectory.turns) == len(attempt.actions)
            worked = all(turn.observation.ok for turn in run.trajectory.turns)
            return f"the same end earns {run.reward:g}" if is_honest and is_whole and worked else ""
        if attacker.rule == "breaks" and run.failure:
            again = run if "was abandoned" in run.failure else self.player.play(scene.task, attempt, "break")
            return f"{attempt.label}: {run.failure}" if again.failure else ""
        return ""

    def _explain_payment(self, scene: Scene, attempt: Attempt, run: Run) -> str:
        """How an end that is paid differs from the honest one; "" if it does not."""
        if scene.honest is None:
            return f"earns {run.reward:g} without the work"
        given = scene.ending.read_answer(run.trajectory.turns[-1].action) if run.trajectory.turns else None
        if scene.answer is not None and not is_same(given, scene.answer):
            return f"earns {run.reward:g} with the answer {given!r:.80}, and the honest one is {scene.answer!r:.80}"
        if paths := scene.differences(run):
            if all(map(scene.is_tally, paths)):
                return _ONLY_COUNTED
            return f"earns {run.reward:g}, and {name_paths(paths)} differs from the honest end"
        if shown := self._find_hidden_difference(scene, attempt):
            return f"earns {run.reward:g}, and the state hides what a look-up shows: {shown}"
        return self._find_hidden_word(scene, attempt)

    def _find_hidden_word(self, scene: Scene, attempt: Attempt) -> str:
        """Why a replaced action, which changes no state, was more than a look-up: without it nothing is paid."""
        index = attempt.replaced
        if index is None or index >= len(scene.body) or scene.changes(index):
            return ""
        rest = Attempt("without it", (*scene.solution[:index], *scene.solution[index + 1 :]))
        is_needed = not self.player.play(scene.task, rest, "survey").earns(scene.full_reward)
        return f"is paid like action {index + 1}, without which nothing is paid" if is_needed else ""

    def _find_hidden_difference(self, scene: Scene, attempt: Attempt) -> str:
        """A look-up that is answered otherwise than after the honest solution; "" if there is none.

        A state may leave out what the judge then cannot see either.
        """
        probes = tuple(Action(calls=(tried.call,)) for tried in scene.lookups[:_MAX_PROBES])
        ends = bool(scene.final_actions and attempt.actions and scene.only_ends(attempt.actions[-1]))
        actions = attempt.actions[:-1] if ends else attempt.actions
        if not probes or not actions or actions == scene.body:
            return ""
        if scene.task.id not in self._probed:
            honest = self.player.play(scene.task, Attempt("look-ups at the end", (*scene.body, *probes)), "survey")
            self._probed[scene.task.id] = _list_last_texts(honest, len(probes))
        run = self.player.play(scene.task, Attempt("look-ups at the end", (*actions, *probes)), "survey")
        answers = zip(probes, self._probed[scene.task.id], _list_last_texts(run, len(probes)), strict=False)
        return next((describe(probe) for probe, text, other in answers if text != other), "")

    def _add(
        self, name: str, task: Task, number: int, attempt: Attempt, run: Run | None, honest: Run | None, why: str,
        shown_by: int = 1, tried: int = 1,
    ) -> None:  # fmt: skip
        attacker = self.attackers.get(name) or ATTACKERS[name]
        severity = "medium" if attempt.is_doubtful and attacker.severity == "high" else attacker.severity
        finding = Finding(
            f"{name}/{task.id}/{number}", name, severity, "open", task.id, attacker.reference,
            task.query[:300], attempt.label, why[:600], attacker.mend, run.reward if run else 0.0,
            honest.reward if honest else None, shown_by, tried, "", write_transcript(run), write_transcript(honest),
        )  # fmt: skip
        self.findings.append(settle(finding, self.accepted))
        self.tallies[name].findings += 1


def _list_last_texts(run: Run, count: int) -> list[str]:
    """The last observations of a play that went on to its end; none if it did not."""
    is_whole = run.trajectory.outcome == "truncated"
    return [turn.observation.text for turn in run.trajectory.turns[-count:]] if is_whole else []


def choose_for_drafts(names: str, namespace: Mapping[str, Any]) -> Callable[[Environment, Task], str]:
    """A function for `validation`: why a draft is refused, "" if none of our attackers of these names has a finding.

    Those that the world's module, `namespace`, accepts by design are left out. The function raises EnvironmentFailure.
    Raises ValueError for a name that is none of FOR_DRAFTS.
    """
    by_design = {entry.attacker for entry in read_by_design(namespace)}
    if unknown := [name for name in names.split(",") if name not in FOR_DRAFTS]:
        raise ValueError(f"validation.attackers names {unknown[0]!r}; expected some of {','.join(FOR_DRAFTS)}")
    chosen = {name: ATTACKERS[name] for name in names.split(",") if name not in by_design}

    def find_attack(environment: Environment, task: Task) -> str:
        examination = Examination(environment, chosen)
        examination.examine([task])
        if examination.failures:
            raise EnvironmentFailure(examination.failures[0])
        return next((f"attacker {finding.attacker}: {finding.why}" for finding in examination.findings), "")

    return find_attack


def complete(player: Player, task: Task, seed: int) -> Task:
    """The task; for a bare setup, one whose solution is a walk over calls that work, unless none does."""
    if task.solution or task.query:
        return task
    scene = survey(player, task, seed)
    walk = repetition.route_of(scene)
    run = player.play(task, Attempt("a walk", walk), "survey")
    steps = list(zip(walk[:-1], run.trajectory.turns, run.states[1:], strict=False))
    # A walk that leads back to where it began asks for nothing.
    while steps and not scene.differ(run.states[0], steps[-1][2]):
        steps.pop()
    actions = (*(action for action, turn, _ in steps if turn.observation.ok), walk[-1])
    query = "; ".join(map(signature, actions))
    return Task(task.environment, query, task.setup, actions, WALK) if len(actions) > 1 else task

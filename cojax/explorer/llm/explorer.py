"""The explorer with a model: a language model reflects, explores and abstracts; what it says is checked, never trusted.

CoEvolve §3.2–3.3. Actions count by what the environment made of them, drafts are made of actions that really worked,
and whatever a model or an environment writes is text between marks that nothing here obeys.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel

from cojax import environment as world
from cojax.environment import Environment
from cojax.environment.replay import Play
from cojax.explorer import Exploration, Explorer
from cojax.explorer.guidance import GUIDANCE, context_of, signature
from cojax.explorer.llm.abstraction import abstracted
from cojax.explorer.llm.acting import ChatModelActor, Instructions
from cojax.explorer.llm.chat_model import Budget, ChatModel, seed_of, structured
from cojax.explorer.llm.fitting import fitted, paired, shortened
from cojax.explorer.llm.prompting import bullets, data, fill, parts, prompt, version
from cojax.explorer.scripted.windows import documented
from cojax.signals import Guidance
from cojax.types import ExplorationContext, Message, Origin, Signal, Task, TaskDraft, Trajectory, Triplet

# Characters of one line that a reflection may fill, and lines of one list.
_LINE, _LINES = 600, 8
# Tools named to an unguided explorer as the popular ones.
_POPULAR = 10
# Actions that would work, shown to an explorer before its first one: some environments list nothing.
_HINTS = 16
# Actions known to fail that a prompt names, and the characters of one: all of them are refused.
_REMINDERS, _REMINDER = 20, 200
# Characters of the headings of an action and its result, and of what says how many are left out.
_HEADINGS, _NOTE = 48, 60
_GIVEN_UP = "(left out)"


class Reflection(BaseModel):
    """What a model says of a trajectory."""

    summary: str
    failure_cause: str = ""
    instability_pattern: str = ""
    focus_patterns: list[str] = []
    objectives: list[str] = []
    do_not_repeat: list[str] = []


@dataclasses.dataclass
class LLMExplorer:
    """Explores by what a model chooses, `runs` episodes a context at once, of at most `steps` actions each.

    `ending` is the tool that ends an episode, "" where an action without calls ends it or the user's turn; `separator`
    stands between the user's turns of a query, "" where a query has one. A draft has at least `shortest` actions (3 in
    the paper), a call that ends the episode counted, handing back to the user not. `window` is how many characters a
    prompt shows at most of what others wrote, and of the model's own actions; our own words, the tools' documentation
    where they are offered, the newest exchange of a conversation, and what a repair repeats come on top. `width`
    expeditions go at once. An attempt on a query alone takes `attempt_turns` actions at most. `guidance` is what
    contexts ask for, by their kind. `name` is kind, model
    and version of the prompts, as a task's lineage has it.
    """

    chat_model: ChatModel
    runs: int = 4
    steps: int = 8
    ending: str = "finish"
    separator: str = ""
    shortest: int = 3
    window: int = 60_000
    width: int = 1
    play: Play = world.play
    kind: str = "llm"
    attempt_turns: int = 30
    budget: Budget | None = None
    place: str = "0"
    evolution: str = "0"
    guidance: Mapping[str, Guidance] = dataclasses.field(default_factory=lambda: GUIDANCE)
    name: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.kind}:{self.chat_model.name}@{version()}"

    def begin(self, evolution: tuple) -> None:
        self.place = self.evolution = _path(evolution)
        self.budget = self.chat_model.begin(self.evolution)

    @contextlib.contextmanager
    def team(self, places: Sequence[tuple]) -> Iterator[list[Explorer]]:
        with self.remaining_budget().shared(len(places)) as budgets:
            pairs = zip(budgets, places, strict=True)
            yield [dataclasses.replace(self, budget=budget, place=_path(place)) for budget, place in pairs]

    def figures(self) -> dict[str, Any]:
        return self.chat_model.figures()

    def remaining_budget(self) -> Budget:
        """What is left of the evolution's budget; all of it where none was begun. Closed, it ends the evolution at the
        next call of every member of its teams; the next one begins with another."""
        if self.budget is None:
            self.budget = self.chat_model.begin()
        return self.budget

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None = None) -> ExplorationContext:
        """Raises ChatFailure. What failed in the trajectory is on the list of what not to repeat in any case."""
        known = context_of(trajectory, kind, signal, self.ending, self.guidance)
        words, sixth = parts("reflect"), self.window // 6
        evidence = shortened(signal.evidence, sixth) if signal else ""
        checks = "; ".join(f"{check.name}: {'passed' if check.passed else 'failed'}" for check in trajectory.checks)
        verdict = f"{trajectory.outcome}, reward {trajectory.reward:.2f} {trajectory.error}".rstrip()
        verdict = shortened(f"{verdict}\n{checks}".strip(), sixth)
        query = shortened(trajectory.task.query, sixth)
        room = self.window - len(evidence) - len(verdict) - len(query)
        messages = prompt(
            "reflect",
            data_rule=parts("data")["rule"],
            reason=self.guidance[kind].reason,
            evidence=f"\n{fill(words['evidence'], evidence=data(evidence))}\n" if evidence else "",
            task=data(query),
            verdict=data(verdict),
            record=data(_record(trajectory, room)),
        )
        place = f"{self.place}/reflect"
        told = structured(
            self.chat_model, messages, Reflection, budget=self.remaining_budget(), seed=seed_of(place), place=place
        )
        return dataclasses.replace(
            known,
            summary=_line(told.summary),
            failure_cause=_line(told.failure_cause),
            instability_pattern=_line(told.instability_pattern) or known.instability_pattern,
            focus_patterns=_lines(told.focus_patterns) or known.focus_patterns,
            objectives=_lines(told.objectives) or known.objectives,
            do_not_repeat=tuple(dict.fromkeys((*known.do_not_repeat, *_lines(told.do_not_repeat)))),
        )

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None = None,
    ) -> Exploration:
        """A run whose model fails keeps what it did before; what it failed by is among the failures.

        Raises ChatFailure where nothing may be asked any more.
        """
        self.remaining_budget().check(1)
        place = dataclasses.replace(task, solution=())
        brief = self._brief(environment, task, context, weights)
        with self.remaining_budget().shared(self.runs) as budgets, ThreadPoolExecutor(self.runs) as pool:

            def run(number: int) -> Trajectory:
                where = f"{self.place}/run {number}"
                actor = ChatModelActor(
                    self.chat_model, brief, budget=budgets[number], seed=(*seed, number), place=where
                )
                return self.play(environment, place, actor, max_turns=self.steps)

            played = list(pool.map(run, range(self.runs)))
        triplets: list[Triplet] = []
        failures: list[str] = []
        for number, trajectory in enumerate(played):
            # What a broken environment showed is worth nothing; a model that fails leaves its past actions as they
            # were.
            if trajectory.valid or trajectory.outcome == "engine_error":
                triplets += [Triplet(turn.action, turn.observation, number) for turn in trajectory.turns]
            if not trajectory.valid:
                failures.append(f"run {number}: {trajectory.error}")
        return Exploration(tuple(triplets), tuple(failures))

    def abstract(
        self,
        triplets: Sequence[Triplet],
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        limit: int,
    ) -> Iterator[TaskDraft]:
        """Drafts of one reply; one that breaks a rule says so in its objections. Raises ChatFailure."""
        return abstracted(self, triplets, environment, task, context, seed, limit)

    @contextlib.contextmanager
    def attempters(self, task: Task, count: int) -> Iterator[list[ChatModelActor]]:
        """Actors that see the task's query alone, for a validation that asks whether it can be solved so."""
        words = parts("solve")

        def open(acting: str, opening: str, hints: str) -> tuple[Message, Message]:
            system = fill(words["system"], steps=str(self.attempt_turns), acting=acting)
            return Message("system", system), Message("user", fill(words["user"], opening=opening))

        brief = Instructions(open, words["next"], self.attempt_turns, self.ending, self.window)
        with self.remaining_budget().shared(count) as budgets:
            yield [
                ChatModelActor(
                    self.chat_model,
                    brief,
                    budget=budget,
                    seed=("attempt", task.id, attempt),
                    # Not of an expedition: what one asks of a task, another that finds it too is not asked again.
                    place=f"{self.evolution}/task {task.id}/attempt {attempt}",
                )
                for attempt, budget in enumerate(budgets)
            ]

    def _brief(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        weights: Mapping[str, float] | None,
    ) -> Instructions:
        words = parts("explore")
        if context is None:
            # No tool is popular where weights say nothing: uniform over tools.
            known = sorted(weights or {}, key=lambda tool: -(weights or {})[tool])[:_POPULAR]
            popular = f"Users mostly want: {', '.join(known)}." if known else "Every function is of equal interest."
            guidance, told, shown = "Purpose: a survey.", fill(words["unguided"], popular=popular), 0
        else:
            known_of = self._known(environment, task, context)
            guidance, shown = self.guidance[context.kind].purpose, sum(map(len, known_of.values()))
            told = fill(words["guided"], **{name: data(text) for name, text in known_of.items()})

        def open(acting: str, opening: str, hints: str) -> tuple[Message, Message]:
            steps, rule = str(self.steps), parts("data")["rule"]
            system = fill(words["system"], guidance=guidance, steps=steps, acting=acting, data_rule=rule)
            said = fill(words["opening"], opening=opening) if opening else words["silent"]
            works = f"\n{fill(words['hints'], actions=hints)}\n" if hints else ""
            return Message("system", system), Message(
                "user", fill(words["user"], brief=told, opening=said, hints=works)
            )

        avoided = context.do_not_repeat if context else ()
        return Instructions(open, words["next"], self.steps, self.ending, self.window, avoided, _HINTS, shown)

    def _known(self, environment: Environment, task: Task, context: ExplorationContext) -> dict[str, str]:
        """What the guided prompt tells of a context, in a third of the window."""
        real = documented(environment)
        focus = [tool for tool in context.focus_patterns if tool in real] or list(context.focus_patterns)
        # The last ones give way last.
        texts = {
            "do_not_repeat": bullets(_reminders(context.do_not_repeat, focus)),
            "instability_pattern": context.instability_pattern or "nothing known",
            "summary": context.summary,
            "failure_cause": context.failure_cause or "nothing",
            "focus": ", ".join(focus) or "all of it",
            "objectives": bullets(context.objectives),
            "task": task.query,
        }
        told = fitted(list(texts.values()), self.window // 3 - len(texts) * len(_GIVEN_UP))
        return {name: _GIVEN_UP if text is None else text for name, text in zip(texts, told, strict=True)}


def _record(trajectory: Trajectory, room: int) -> str:
    """The actions and what came back, in full as far as there is room; where there is too little, the newest."""
    turns = [(signature(turn.action) or "(nothing)", turn.observation.text) for turn in trajectory.turns]
    shown = paired(turns, room - _NOTE, _HEADINGS)
    first = len(turns) - len(shown)
    blocks = [f"[the first {first} actions are left out]"] if first else []
    for place, (action, result) in enumerate(shown, start=first):
        how = "worked" if trajectory.turns[place].observation.ok else "failed"
        blocks.append(f"Action {place + 1}: {action}\nResult ({how}): {result}")
    return "\n\n".join(blocks)


def _reminders(lines: Sequence[str], focus: Sequence[str]) -> list[str]:
    """Of actions that are known to fail those that a prompt names: about the focus first, and the newest first."""
    newest = [shortened(" ".join(line.split()), _REMINDER) for line in reversed(lines)]
    newest.sort(key=lambda line: line.partition("(")[0] not in focus)
    more = len(newest) - _REMINDERS
    return [*newest[:_REMINDERS], *([f"(and {more} more)"] if more > 0 else [])]


def _path(seed: tuple) -> str:
    return "/".join(map(str, seed))


def _line(text: str) -> str:
    return shortened(" ".join(text.split()), _LINE)


def _lines(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for text in texts[:_LINES] if (line := _line(text))))

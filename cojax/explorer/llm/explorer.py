"""The explorer with a language model, which reflects, explores and abstracts; what it says is checked, never trusted.

CoEvolve §3.2–3.3. An action counts by what the environment made of it. Drafts consist of actions that really worked.
Whatever a model or an environment writes stands in prompts as data between marks, never as an instruction.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cojax import environment as world
from cojax.environment import Environment
from cojax.environment.replay import Play
from cojax.explorer import Exploration, Explorer
from cojax.explorer.guidance import GUIDANCE, context_of
from cojax.explorer.llm.abstraction import DraftRules, Drafts, abstraction_prompt, number_actions, task_drafts
from cojax.explorer.llm.acting import ChatModelActor
from cojax.explorer.llm.chat_model import Budget, ChatModel, seed_of, structured_reply
from cojax.explorer.llm.instructions import attempt_instructions, exploration_instructions
from cojax.explorer.llm.prompting import version
from cojax.explorer.llm.reflection import Reflection, add_reflection, reflection_prompt
from cojax.explorer.scripted.windows import Ending
from cojax.signals import Guidance
from cojax.types import ExplorationContext, Origin, Signal, Task, TaskDraft, Trajectory, Triplet


@dataclasses.dataclass
class LLMExplorer:
    """Explores by the actions that a model chooses: `runs` episodes at the same time, of at most `steps` actions each.

    `ending` is the tool that ends an episode; "" where an action without calls ends the episode or the user's turn.
    `separator` stands between the user's turns of a query; "" where a query has one turn. A draft has at least
    `shortest` actions (3 in the paper): a call that ends the episode counts, handing back to the user does not.

    `window` bounds the characters of a prompt that others wrote, the model's own actions included. On top come our own
    words, the tools' documentation where they are offered, the newest exchange of a conversation, and what a repair
    repeats. `width` expeditions run at the same time. An attempt on a query alone takes at most `attempt_turns`
    actions. `guidance` says what contexts of each kind ask for.

    `place` and `evolution` begin the journal's names of its calls, for an expedition and for the whole evolution.
    `name`, which stands in a task's lineage, consists of kind, model and version of the prompts.
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
    def split(self, seeds: Sequence[tuple]) -> Iterator[list[Explorer]]:
        with self.remaining_budget().shared(len(seeds)) as budgets:
            pairs = zip(budgets, seeds, strict=True)
            yield [dataclasses.replace(self, budget=budget, place=_path(seed)) for budget, seed in pairs]

    def figures(self) -> dict[str, Any]:
        return self.chat_model.figures()

    def remaining_budget(self) -> Budget:
        """What is left of the evolution's budget; a whole one where no evolution was begun.

        Closing it ends the evolution at the next call of every explorer that shares it; `begin` makes another.
        """
        if self.budget is None:
            self.budget = self.chat_model.begin()
        return self.budget

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None = None) -> ExplorationContext:
        """Always says not to repeat the actions that failed in the trajectory. Raises ChatFailure."""
        context = context_of(trajectory, kind, signal, self.ending, self.guidance)
        messages = reflection_prompt(trajectory, self.guidance[kind].reason, signal, self.window)
        place = f"{self.place}/reflect"
        budget, seed = self.remaining_budget(), seed_of(place)
        reflection = structured_reply(self.chat_model, messages, Reflection, budget=budget, seed=seed, place=place)
        return add_reflection(context, reflection)

    def explore(
        self,
        environment: Environment,
        task: Task,
        context: ExplorationContext | None,
        seed: tuple,
        weights: Mapping[str, float] | None = None,
    ) -> Exploration:
        """A run whose model fails keeps the actions before; its error is among the failures.

        Raises ChatFailure where the budget covers no further call.
        """
        self.remaining_budget().check(1)
        start = dataclasses.replace(task, solution=())
        purpose = self.guidance[context.kind].purpose if context else "Purpose: a survey."
        instructions = exploration_instructions(
            environment, task, context, weights, purpose, steps=self.steps, ending=self.ending, window=self.window
        )
        with self.remaining_budget().shared(self.runs) as budgets, ThreadPoolExecutor(self.runs) as pool:

            def run(number: int) -> Trajectory:
                budget, place = budgets[number], f"{self.place}/run {number}"
                actor = ChatModelActor(self.chat_model, instructions, budget=budget, seed=(*seed, number), place=place)
                return self.play(environment, start, actor, max_turns=self.steps)

            trajectories = list(pool.map(run, range(self.runs)))
        triplets: list[Triplet] = []
        failures: list[str] = []
        for number, trajectory in enumerate(trajectories):
            # What a broken environment showed is worth nothing. A failed model leaves its past actions as they were.
            if trajectory.valid or trajectory.outcome == "engine_error":
                triplets += [Triplet(turn.action, turn.observation, number) for turn in trajectory.turns]
            if not trajectory.valid:
                failures.append(f"run {number}: {trajectory.error}")
        return Exploration(task, context, seed, tuple(triplets), tuple(failures))

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        """Makes drafts of one reply; a draft that breaks a rule says so in its objections.

        Raises ChatFailure where no reply can be used.
        """
        actions = number_actions(exploration.triplets)
        if not any(step.observation.ok for step in actions.values()):
            return
        rules = DraftRules(Ending.of(environment, self.ending), self.separator, self.shortest)
        messages = abstraction_prompt(exploration, actions, environment, rules, self.window, limit)
        budget, seed = self.remaining_budget(), seed_of("abstract", *exploration.seed)
        place = f"{self.place}/abstract"
        reply = structured_reply(self.chat_model, messages, Drafts, budget=budget, seed=seed, place=place)
        yield from task_drafts(reply, actions, exploration.task, rules, limit)

    @contextlib.contextmanager
    def attempters(self, task: Task, count: int) -> Iterator[list[ChatModelActor]]:
        """Actors that see the task's query alone, for a validation that asks whether the query suffices."""
        instructions = attempt_instructions(steps=self.attempt_turns, ending=self.ending, window=self.window)
        with self.remaining_budget().shared(count) as budgets:
            yield [
                ChatModelActor(
                    self.chat_model,
                    instructions,
                    budget=budget,
                    seed=("attempt", task.id, attempt),
                    # Named by the evolution: where two expeditions find the same task, the model is asked once.
                    place=f"{self.evolution}/task {task.id}/attempt {attempt}",
                )
                for attempt, budget in enumerate(budgets)
            ]


def _path(seed: tuple) -> str:
    return "/".join(map(str, seed))

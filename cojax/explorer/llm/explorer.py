"""The explorer with a language model, which reflects, explores and abstracts; its replies are checked, never trusted.

CoEvolve §3.2–3.3. The environment decides whether an action worked. Drafts consist of recorded actions that worked.
Text written by a model or an environment appears in prompts as data between marks, never as an instruction.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cojax import environment as world
from cojax.environment import Environment
from cojax.environment.replay import Play
from cojax.explorer import GUIDANCE, Exploration, Explorer, context_of
from cojax.explorer.llm.abstraction import DraftRules, Drafts, abstraction_prompt, number_actions, task_drafts
from cojax.explorer.llm.acting import ChatModelActor, attempt_instructions, exploration_instructions
from cojax.explorer.llm.chat_model import Budget, ChatModel, seed_of, structured_reply
from cojax.explorer.llm.prompting import Reflection, add_reflection, reflection_prompt, version
from cojax.explorer.scripted.explorer import Ending
from cojax.settings.tree import ModelExplorerSettings
from cojax.signals import Guidance
from cojax.types import ExplorationContext, Origin, Signal, Task, TaskDraft, Trajectory, Triplet


@dataclasses.dataclass
class LLMExplorer:
    """Explores by the actions that a model chooses: `runs` parallel episodes of at most `steps` actions each.

    `ending` is the tool that ends an episode; "" if an action without calls ends the episode or the user's turn.
    `separator` separates the user's turns of a query; "" if a query has one turn. A draft has at least `shortest`
    actions (3 in the paper): a call that ends the episode counts, an action without calls does not.

    `window` bounds the untrusted characters of a prompt, the model's own earlier actions included. Not counted are our
    own words, the tools' documentation, the newest exchange of a conversation, and what a request for repair repeats.
    `width` expeditions run in parallel. An attempt on the query alone takes at most `attempt_turns` actions. `guidance`
    is what contexts of each kind ask for.

    `place` and `evolution` are prefixes of the journal's names for its calls, of an expedition and of the whole
    evolution. `name`, which is stored in a task's lineage, consists of kind, model and version of the prompts.
    """

    chat_model: ChatModel
    runs: int = 4
    steps: int = 8
    ending: str = "finish"
    separator: str = ModelExplorerSettings.separator
    shortest: int = ModelExplorerSettings.shortest
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
        """What is left of the evolution's budget; a full one if no evolution was begun.

        Once it is closed, the next call of every explorer that shares it raises; `begin` makes a new one.
        """
        if self.budget is None:
            self.budget = self.chat_model.begin()
        return self.budget

    def reflect(self, trajectory: Trajectory, kind: Origin, signal: Signal | None = None) -> ExplorationContext:
        """The context always lists the trajectory's failed actions as not to be repeated. Raises ChatFailure."""
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
        """A run whose model fails keeps its earlier actions; the error is added to the failures.

        Raises ChatFailure if the budget covers no further call.
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
            # Observations of a broken environment are not used. A failure of the model leaves earlier actions valid.
            if trajectory.valid or trajectory.outcome == "engine_error":
                triplets += [Triplet(turn.action, turn.observation, number) for turn in trajectory.turns]
            if not trajectory.valid:
                failures.append(f"run {number}: {trajectory.error}")
        return Exploration(task, context, seed, tuple(triplets), tuple(failures))

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        """Yields the drafts of one reply; a draft that breaks a rule has an objection that says so.

        Raises ChatFailure if no reply can be used.
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
        """Actors that see nothing but the task's query, by which validation checks that the query suffices."""
        instructions = attempt_instructions(steps=self.attempt_turns, ending=self.ending, window=self.window)
        with self.remaining_budget().shared(count) as budgets:
            yield [
                ChatModelActor(
                    self.chat_model,
                    instructions,
                    budget=budget,
                    seed=("attempt", task.id, attempt),
                    # Named by the evolution, not the expedition: a task found twice costs one attempt.
                    place=f"{self.evolution}/task {task.id}/attempt {attempt}",
                )
                for attempt, budget in enumerate(budgets)
            ]


def _path(seed: tuple) -> str:
    return "/".join(map(str, seed))

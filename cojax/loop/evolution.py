"""The evolutions of a run (Stages 2 and 3): when one is due, when it runs, and how its tasks enter the pool."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cojax import signals
from cojax.host.background import in_background
from cojax.loop import Loop, State
from cojax.loop.groups import count_groups_left, probe_tasks
from cojax.synthesis import EvolutionInputs, Synthesis, admit, explain_idle, make_expeditions, synthesize
from cojax.synthesis.evolutions import list_visits
from cojax.types import Group

if TYPE_CHECKING:
    from cojax.storage.run_directory import RunDirectory

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Evolutions:
    """The evolutions of one run. Each reflects on the signals since the last one and finds new tasks.

    An evolution is due every `evolve_every` steps, and runs at the end of the step at which it is due. With
    `evolve_beside` it runs in parallel with the next step instead, except at the last step, which has no next step.
    Once `stop` turns true, an evolution raises Interrupted and changes nothing. `drain` waits until no step is sampled
    and the engine holds the weights after the step: an evolution at the end of a step may sample the policy.
    """

    loop: Loop
    directory: "RunDirectory"
    stop: Callable[[], bool]
    drain: Callable[[], Sequence[Sequence[Group]]] = tuple

    def is_due(self, state: State) -> bool:
        """Whether an evolution is due after the state's step and has not run yet."""
        return state.step > state.last_evolution and state.step % self.loop.evolve_every == 0

    def is_due_beside(self, state: State) -> bool:
        """Whether the evolution that is due runs in parallel with the next step."""
        return self.loop.evolve_beside and state.step < self.loop.steps and self.is_due(state)

    @contextlib.contextmanager
    def run_beside(self, state: State) -> Iterator[list[Synthesis]]:
        """Runs the evolution that is due on a thread while the block runs, and yields a list for its result.

        The list is filled when the block ends. It stays empty if no evolution is due beside the next step.
        """
        syntheses: list[Synthesis] = []
        if not self.is_due_beside(state):
            yield syntheses
            return
        with self.loop.clock("feedback"):
            evolve = self.prepare(state)
        with in_background("evolution", lambda is_unwanted: evolve(lambda: self.stop() or is_unwanted())) as future:
            yield syntheses
            with self.loop.clock("feedback"):
                syntheses.append(future.result())

    def run_at_end(self, state: State, record: Mapping[str, Any]) -> tuple[State, Mapping[str, Any]]:
        """Runs the evolution at the end of the step, if one is due there. Returns the new state and the record."""
        if not self.is_due(state) or self.is_due_beside(state):
            return state, record
        self.drain()
        with self.loop.clock("feedback"):
            synthesis = self.prepare(state)(self.stop)
        state = self.store(state, synthesis)
        return state, {**record, "tasks": len(state.pool), **make_evolution_record(synthesis, state.last_evolution)}

    def store(self, state: State, synthesis: Synthesis) -> State:
        """Stores the result of the evolution after the state's step. Returns the state with the new tasks."""
        with self.loop.clock("feedback"):
            self.directory.add_evolution(synthesis)
        return dataclasses.replace(state, pool=state.pool.add(synthesis.tasks), pending=(), last_evolution=state.step)

    def prepare(self, state: State) -> Callable[[Callable[[], bool]], Synthesis]:
        """Gathers the inputs of the evolution after the state's step, and returns a function that runs the evolution.

        The function may run on any thread. It raises Interrupted once its argument, `stop`, returns true.
        """
        loop, seed = self.loop, (self.loop.seed, state.step - 1)
        task_factor = loop.admission.candidates if loop.admission else 1
        episodes, find_episode = self.directory.read_episodes(range(state.last_evolution + 1, state.step + 1))
        if loop.near_duplicates:
            loop.near_duplicates.update(state.pool)
        forgetting_kind = loop.kinds.get("forgetting")
        keeps_scores = isinstance(getattr(forgetting_kind, "__wrapped__", forgetting_kind), signals.Forgetting)
        inputs = EvolutionInputs(
            environment=loop.environment,
            explorer=loop.explorer,
            signals=state.pending,
            episodes=tuple(episodes),
            find=find_episode,
            popularity=loop.popularity,
            contexts=loop.contexts * task_factor,
            seed=seed,
            select=loop.select,
            visits=list_visits(episodes, state.memory["forgetting"] if keeps_scores else {}, loop.group_size),
            kinds=loop.kinds,
            closed=loop.closed,
        )
        # Copies, because the next step changes the memories and may run at the same time.
        memories = {memory_name: dict(state.memory[memory_name]) for memory_name in loop.reads}

        def evolve(stop: Callable[[], bool]) -> Synthesis:
            synthesis = synthesize(
                make_expeditions(loop.evolve, inputs, *memories.values()),
                loop.environment,
                loop.explorer,
                loop.validate,
                state.pool.__contains__,
                budget=loop.budget * task_factor,
                per_context=loop.per_context,
                seed=seed,
                step=state.step,
                near_duplicates=loop.near_duplicates,
                predict=loop.predictor(memories["beliefs"]) if "beliefs" in memories else lambda draft: None,
                stop=stop,
            )
            if not synthesis.counts["expeditions"]:
                environment_failed, used_up = bool(synthesis.counts["failures"]), count_groups_left(loop, state) <= 0
                idle_reason = explain_idle(loop.evolve, inputs, environment_failed=environment_failed, used_up=used_up)
                synthesis = dataclasses.replace(synthesis, idle_reason=idle_reason)
            elif not synthesis.tasks:
                _LOG.warning(
                    "step %d: %d expeditions found no task; commonest reasons: %s",
                    state.step, synthesis.counts["expeditions"],
                    "; ".join(synthesis.reasons()) or "the explorer wrote no draft",
                )  # fmt: skip
            return self._admit(synthesis, state.step, seed, stop)

        return evolve

    def _admit(self, synthesis: Synthesis, step: int, seed: tuple, stop: Callable[[], bool]) -> Synthesis:
        """The synthesis with the tasks that the loop's admission chooses; without an admission, with all of them."""
        admission = self.loop.admission
        if admission is None:
            return synthesis
        groups = probe_tasks(self.loop, synthesis.tasks, step, admission.attempts, stop)
        return admit(synthesis, groups, admission.choose(groups, self.loop.budget, seed))


def make_evolution_record(synthesis: Synthesis, step: int) -> dict[str, Any]:
    """The part of a step's record in metrics.jsonl about the evolution that ran after `step`."""
    origins = [task.origin for task in synthesis.tasks]
    return {
        "evolution": {
            "step": step,
            **synthesis.counts,
            **({"idle": synthesis.idle_reason} if synthesis.idle_reason else {}),
            "added": {origin: origins.count(origin) for origin in sorted(set(origins))},
            **({"explorer": synthesis.figures} if synthesis.figures else {}),
            **({"probe": dict(synthesis.probe_cost)} if synthesis.probe_cost else {}),
        }
    }

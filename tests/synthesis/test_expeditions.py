"""Batches of expeditions: seed and order decide what they find, never which of them ends first."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from counter_environment import CounterEnvironment
from patience import patience

import environments
from cojax.environment import Environment, EnvironmentFailure, play
from cojax.explorer import Exploration
from cojax.explorer.llm.chat_model import Budget, ChatFailure
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.host.background import await_background
from cojax.similarity import NearDuplicates
from cojax.synthesis import Expedition, Interrupted, Synthesis, expeditions, sample_setups, synthesize
from cojax.types import Action, Call, Task, TaskDraft, Triplet, Turn, Verdict
from cojax.validation import Validation

DESK = environments.load("desk")
ADD, FINISH = Action(calls=(Call("add"),)), Action(calls=(Call("finish"),))


def trips(count: int) -> Iterator[Expedition]:
    return (Expedition(place, "uniform") for place in sample_setups(DESK, "seed", count, (4,)))


def desk(width: int, environment: Environment = DESK, budget: int = 12, **settings: Any) -> Synthesis:
    explorer = ScriptedExplorer(neighbours=DESK.neighbours, runs=2, width=width)
    return synthesize(
        trips(12), environment, explorer, Validation(environment), lambda id: False,
        budget=budget, per_context=2, seed=(0, 3), step=3, near_duplicates=NearDuplicates(0.9), **settings,
    )  # fmt: skip


class Slow:
    """The desk with episodes that start slowly; it counts how many start at the same time."""

    name = "desk"

    def __init__(self, seed: int) -> None:
        self.rng, self.guard = random.Random(seed), threading.Lock()
        self.inside = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(DESK, name)

    def start(self, task: Task) -> Any:
        with self.guard:
            self.inside += 1
            self.most = max(self.most, self.inside)
            pause = self.rng.random() * 0.004
        time.sleep(pause)
        with self.guard:
            self.inside -= 1
        return DESK.start(task)


def test_the_same_is_found_whichever_expedition_comes_back_first() -> None:
    first, second = Slow(1), Slow(2)
    results = [desk(4, environment) for environment in (first, second)]
    assert results[0] == results[1] == desk(4)
    assert min(first.most, second.most) > 1
    assert len(results[0].tasks) == 12
    assert [record["expedition"] for record in results[0].expeditions] == list(range(len(results[0].expeditions)))


def test_one_at_a_time_examines_no_more_than_it_needs() -> None:
    alone = desk(1)
    assert len(alone.tasks) == 12
    assert sum(bool(record["task"]) for record in alone.drafts[:-1]) == 11
    assert alone.drafts[-1]["task"]
    # Places differ, so that none overtakes another: the expeditions that both went on found the same.
    at_once = desk(4)
    met = {record["expedition"] for record in alone.expeditions} - {alone.expeditions[-1]["expedition"]}
    told = [[r for r in result.drafts if r["expedition"] in met] for result in (alone, at_once)]
    assert told[0] == told[1]


@dataclasses.dataclass(frozen=True)
class Counter:
    """Finds tasks to count to 1, with the queries that `queries` gives for the expedition's number."""

    queries: Callable[[int], Sequence[str]]
    width: int = 3
    during: Callable[[int], None] = lambda number: None
    name: str = "counter"
    ending: str = "finish"

    def reflect(self, trajectory: Any, kind: Any, signal: Any) -> Any:
        raise NotImplementedError

    def explore(self, environment: Environment, task: Task, context: Any, seed: tuple, weights: Any) -> Exploration:
        played = play(environment, task, lambda episode, messages: self._acted(seed[-1]), max_turns=1)
        if not played.valid:
            raise EnvironmentFailure(played.error)
        return Exploration(task, context, seed, (Triplet(ADD, played.turns[0].observation, 0),))

    def _acted(self, number: int) -> Turn:
        self.during(number)
        return Turn(ADD)

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Iterator[TaskDraft]:
        for query in self.queries(exploration.seed[-1])[:limit]:
            yield TaskDraft("counter", {"target": 1}, "", query, (ADD, FINISH), "", (0,))


def counted(explorer: Any, count: int = 3, environment: Any = None, validate: Any = None, **settings: Any) -> Synthesis:
    environment = environment or CounterEnvironment()
    trips = (Expedition(Task("counter", "", {"target": 1}), "uniform") for _ in range(count))
    chosen = {"budget": 9, "per_context": 2, "near_duplicates": None, **settings}
    return synthesize(
        trips, environment, explorer, validate or Validation(environment), lambda id: False, seed=(0,), step=1, **chosen
    )  # fmt: skip


def reasons(result: Synthesis) -> list[tuple[int, str, str]]:
    """Expedition, query and last reason of the drafts that became no task."""
    return [
        (r["expedition"], r["draft"]["query"], r["verdict"]["evidence"][-1]) for r in result.drafts if not r["task"]
    ]


def test_of_what_several_find_at_once_the_first_one_counts() -> None:
    result = counted(Counter(lambda number: ("count the same", f"count number {number}")))
    assert [task.query for task in result.tasks] == [
        "count the same",
        "count number 0",
        "count number 1",
        "count number 2",
    ]
    same = result.tasks[0].id
    assert reasons(result) == [(n, "count the same", f"duplicate of task {same}") for n in (1, 2)]
    assert result.counts["accepted"] == 4
    assert result.counts["discarded"] == 2
    # It had been accepted, and is told so.
    assert "has an effect, and doing nothing fails" in result.drafts[2]["verdict"]["evidence"]


def test_what_is_worded_alike_is_found_among_those_of_a_wave_and_within_an_expedition() -> None:
    words = {
        0: ("count up to the number one please", "count up to the number one, please"),
        1: ("Count up to the number one please!",),
        2: ("add one",),
    }
    result = counted(Counter(lambda number: words[number]), near_duplicates=(near_duplicates := NearDuplicates(0.8)))
    assert [task.query for task in result.tasks] == ["count up to the number one please", "add one"]
    first = result.tasks[0]
    assert [(n, line.partition(":")[0]) for n, _, line in reasons(result)] == [
        (0, f"near duplicate of task {first.id}"), (1, f"near duplicate of task {first.id}"),
    ]  # fmt: skip
    # The pool's own near duplicates learn nothing of it.
    assert near_duplicates.find_duplicate(first) == ""


def test_the_budget_is_cut_in_the_order_of_the_expeditions() -> None:
    def slowest_first(number: int) -> None:
        time.sleep(0.02 * (3 - number))

    result = counted(Counter(lambda number: (f"count a{number}", f"count b{number}"), during=slowest_first), budget=3)
    assert [task.query for task in result.tasks] == ["count a0", "count b0", "count a1"]
    assert {(number, query) for number, query, _ in reasons(result)} == {
        (1, "count b1"),
        (2, "count a2"),
        (2, "count b2"),
    }
    assert {line for *_, line in reasons(result)} == {"superfluous: the 3 tasks wanted were already found"}


def test_a_batch_is_no_larger_than_the_tasks_still_wanted() -> None:
    result = counted(Counter(lambda number: (f"count a{number}",), width=8), count=8, budget=2)
    assert len(result.expeditions) == 2


def test_a_mistake_in_one_expedition_is_raised_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expeditions, "_GRACE_S", 0.1)
    release = threading.Event()

    def during(number: int) -> None:
        if number == 1:
            raise KeyError("a mistake")
        release.wait(patience(5))

    began = time.monotonic()
    with pytest.raises(KeyError, match="a mistake"):
        counted(Counter(lambda number: (), during=during))
    assert time.monotonic() - began < patience(2)
    release.set()


class Metered:
    """Has a budget; each of its expeditions finds tasks of its own."""

    def __init__(self, budget: Budget, number: int = -1, width: int = 3) -> None:
        self.budget, self.number, self.width = budget, number, width
        self.name, self.ending = "metered", "finish"

    def begin(self, evolution: tuple) -> None:
        pass

    def remaining_budget(self) -> Budget:
        return self.budget

    def figures(self) -> dict[str, Any]:
        return {}

    @contextlib.contextmanager
    def split(self, places: Sequence[tuple]) -> Iterator[list[Any]]:
        with self.budget.split(len(places)) as budgets:
            yield [Metered(budget, place[-1]) for budget, place in zip(budgets, places, strict=True)]

    def reflect(self, trajectory: Any, kind: Any, signal: Any) -> Any:
        raise NotImplementedError

    def explore(self, environment: Environment, task: Task, context: Any, seed: tuple, weights: Any) -> Exploration:
        return Exploration(task, context, seed)

    def abstract(self, exploration: Exploration, environment: Environment, limit: int) -> Any:
        for place in range(limit):
            query = f"{self.number} and {place}"
            yield TaskDraft("counter", {"target": 1}, "", query, (ADD, FINISH), "", (0,))


def test_an_expedition_examines_its_drafts_and_pays_for_it_from_its_own_share() -> None:
    paid: dict[str, tuple[int, int]] = {}

    def validate(draft: TaskDraft, known: Any, explorer: Any) -> tuple[Verdict, Task | None]:
        budget = explorer.remaining_budget()
        # What a task costs differs by expedition, and comes off its own share alone.
        cost = 10 * (explorer.number + 1)
        budget.check(cost)
        budget.pay(cost, 1)
        paid[draft.query] = (budget.tokens, budget.requests)
        return Verdict("accepted", ("paid",)), Task(draft.environment, draft.query, draft.setup, draft.solution)

    budget = Budget(300, 30)
    result = counted(Metered(budget), validate=validate)
    assert len(result.tasks) == 6
    assert paid == {
        "0 and 0": (90, 9), "0 and 1": (80, 8), "1 and 0": (80, 9), "1 and 1": (60, 8), "2 and 0": (70, 9),
        "2 and 1": (40, 8),
    }  # fmt: skip
    assert (budget.tokens, budget.requests) == (300 - 120, 30 - 6)
    assert not budget.is_closed


def test_one_that_is_stopped_is_left_at_once_and_pays_for_nothing_more() -> None:
    began, stopped, refused = threading.Barrier(4), threading.Event(), []

    def validate(draft: TaskDraft, known: Any, explorer: Any) -> tuple[Verdict, Task | None]:
        began.wait(patience(5))
        while True:  # until the budget says so
            try:
                explorer.remaining_budget().check(1)
            except ChatFailure as failure:
                refused.append(failure.kind)
                return Verdict("discarded", (str(failure),)), None
            time.sleep(0.005)

    def stop() -> bool:
        if not stopped.is_set() and began.n_waiting == 3:
            began.wait(patience(5))
            stopped.set()
        return stopped.is_set()

    budget, before = Budget(300, 30), time.monotonic()
    with pytest.raises(Interrupted):
        counted(Metered(budget), validate=validate, stop=stop)
    assert time.monotonic() - before < patience(3)
    assert await_background(5)
    assert refused == ["stopped"] * 3
    assert budget.is_closed


def test_a_stopped_expedition_takes_no_further_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expeditions, "_GRACE_S", 0.1)
    acted, release, stopped = [], threading.Event(), threading.Event()

    def during(number: int) -> None:
        acted.append(number)
        stopped.set()
        assert release.wait(patience(5))

    steps: list[int] = []
    environment = CounterEnvironment(on_step=lambda task, step: steps.append(step))
    with pytest.raises(Interrupted):
        counted(Counter(lambda number: (), width=1, during=during), environment=environment, stop=stopped.is_set)
    release.set()
    assert await_background(10)
    assert acted == [0]
    assert steps == []


def test_one_that_is_to_stop_from_the_start_goes_nowhere() -> None:
    with pytest.raises(Interrupted):
        desk(4, stop=lambda: True)

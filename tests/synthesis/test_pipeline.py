import collections
import dataclasses
import functools
import json
from collections.abc import Sequence

import pytest
from broken_desks import BrokenDesk, always, every
from records import call

import environments
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.pool import TaskPool
from cojax.signals.tools import tools_of
from cojax.similarity import NearDuplicates
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, Synthesis, initial_tasks, synthesize
from cojax.synthesis.evolutions import even
from cojax.types import Evaluation, Signal, Task, TaskDraft, Trajectory, from_json
from cojax.validation import Exclusions, Validation

DESK = environments.load("desk")
EXPLORER = ScriptedExplorer(neighbours=DESK.neighbours)
PARENTS = DESK.tasks("seed", 24, seed=5)


def signal(kind: str, task: str, episode: str = "e") -> Signal:
    return Signal(kind, task, episode, "line")  # type: ignore[arg-type]


def episodes() -> dict[str, Trajectory]:
    """Real episodes of the parents: the odd ones forget the first action."""
    played = {}
    for number, task in enumerate(PARENTS):
        actions = task.solution[number % 2 :]
        played[f"e{number}"] = play(DESK, task, follow(actions), max_turns=len(actions), episode=f"e{number}")
    return played


EPISODES = episodes()
SIGNALS = [
    Signal(kind, EPISODES[name].task.id, name, f"{kind} on {name}", ())
    for number, name in enumerate(EPISODES)
    for kind in [("forgetting", "boundary", "rare")[number % 3]]
]


def evolve(arm: str, environment=DESK, known=lambda id: False, budget: int = 8, seed: tuple = (0, 10)) -> Synthesis:
    inputs = EvolutionInputs(
        environment, EXPLORER, SIGNALS, list(EPISODES), EPISODES.__getitem__, DESK.popularity(), 20, seed
    )
    validate = Validation(environment)
    return synthesize(
        EVOLUTIONS[arm](inputs),
        environment,
        EXPLORER,
        validate,
        known,
        budget=budget,
        per_context=1,
        seed=seed,
        step=10,
    )


@functools.cache
def fed() -> Synthesis:
    return evolve("feedback")


def select(signals: Sequence[Signal], budget: int, seed: tuple) -> tuple[Signal, ...]:
    return even(signals, budget, seed, lambda signal: 0.5)


def test_scarce_kinds_are_kept_whole() -> None:
    signals = [signal("boundary", f"t{i}") for i in range(90)] + [signal("forgetting", f"t{i}") for i in range(4)]
    signals += [signal("rare", f"t{i}") for i in range(50)]
    chosen = select(signals, 24, (0,))
    assert collections.Counter(s.kind for s in chosen) == {"forgetting": 4, "boundary": 10, "rare": 10}
    assert chosen == select(signals, 24, (0,))
    assert chosen != select(signals, 24, (1,))


def test_one_signal_a_task_and_kind() -> None:
    signals = [signal("rare", "t", f"e{i}") for i in range(9)] + [signal("boundary", "t", f"e{i}") for i in range(9)]
    assert sorted(s.kind for s in select(signals, 10, (0,))) == ["boundary", "rare"]
    assert select([], 10, (0,)) == ()
    assert len(select(signals, 1, (0,))) == 1


def test_feedback_makes_tasks_with_their_whole_lineage() -> None:
    result = evolve("feedback", budget=12)
    assert len(result.tasks) == 12
    assert {task.origin for task in result.tasks} == {"forgetting", "boundary", "rare"}
    for task in result.tasks:
        lineage = task.lineage
        assert lineage is not None
        source = EPISODES[lineage.episode]
        assert lineage.parent == source.task.id
        assert task.setup == source.task.setup
        assert lineage.signal == f"{task.origin} on {lineage.episode}"
        assert (lineage.explorer, lineage.verdict, lineage.step) == ("scripted", "accepted", 10)
        assert len(lineage.runs) == 1
        assert lineage.evidence[-1].startswith("negative control: fails without") or task.solution[-1] != call("finish")
    assert len({task.id for task in result.tasks}) == 12


def test_every_draft_leaves_a_record() -> None:
    result = fed()
    assert len(result.drafts) == result.counts["drafts"]
    verdicts = collections.Counter(record["verdict"]["status"] for record in result.drafts)
    assert all(result.counts[status] == verdicts[status] for status in ("accepted", "retained", "discarded"))
    assert [record["task"] for record in result.drafts if record["task"]] == [task.id for task in result.tasks]
    record = json.loads(json.dumps(result.drafts[0]))
    assert from_json(TaskDraft, record["draft"]).query == record["draft"]["query"]
    assert record["step"] == 10


@pytest.mark.parametrize(
    ("arm", "origins", "guided"),
    [
        ("random", {"unguided"}, False),
        ("uniform", {"uniform"}, False),
        ("trajectory", {"trajectory"}, True),
        ("displaced", {"trajectory"}, True),
    ],
)
def test_the_other_arms_say_where_their_tasks_come_from(arm: str, origins: set[str], guided: bool) -> None:
    result = evolve(arm)
    assert len(result.tasks) == 8
    assert {task.origin for task in result.tasks} == origins
    assert all(
        bool(t.lineage and t.lineage.parent) == bool(t.lineage and t.lineage.episode) == guided for t in result.tasks
    )


def test_none_does_not_grow() -> None:
    result = evolve("none")
    assert result.tasks == result.drafts == ()
    assert set(result.counts.values()) == {0}


def test_the_seed_decides() -> None:
    assert evolve("feedback") == fed()
    assert fed().tasks != evolve("feedback", seed=(1, 10)).tasks


def test_what_the_pool_holds_does_not_come_again() -> None:
    pool = TaskPool.of(fed().tasks)
    again = evolve("feedback", known=lambda id: id in pool)
    assert not {task.id for task in again.tasks} & {task.id for task in pool}


def test_initial_tasks_are_short_and_skewed_to_popular_tools() -> None:
    evaluation = Exclusions.of(DESK.tasks("eval", 50))
    result = initial_tasks(DESK, EXPLORER, Validation(DESK, evaluation), 20, seed=(0,), weights=DESK.popularity())
    assert len({task.id for task in result.tasks}) == 20
    assert {task.origin for task in result.tasks} == {"unguided"}
    assert max(len(task.solution) for task in result.tasks) == 4
    assert not any(evaluation.find_rule(task) for task in result.tasks)
    used = collections.Counter(c.name for t in result.tasks for a in t.solution for c in a.calls if c.name != "finish")
    assert used["files_move"] == max(used.values())


def test_too_few_initial_tasks_name_the_reasons() -> None:
    generous = Validation(BrokenDesk(judge=lambda episode: Evaluation(1.0)))
    with pytest.raises(ValueError, match=r"3 initial tasks wanted, 0 found by 6 expeditions.*full reward \(\d+×\).*0×"):
        initial_tasks(DESK, EXPLORER, generous, 3, seed=(0,), weights=None, attempts=2)


class FewSetups(BrokenDesk):
    """The desk with `count` setups."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def tasks(self, split: str, count: int, seed: int = 0):
        return self.desk.tasks(split, min(count, self.count), 0)


def test_initial_tasks_are_found_on_few_setups_as_well() -> None:
    examined: list[str] = []
    result = initial_tasks(
        FewSetups(2), EXPLORER, Validation(DESK), 12, seed=(0,), weights=None, examined=lambda: examined.append("draft")
    )
    assert len(result.tasks) == 12
    assert len(examined) >= result.counts["drafts"] >= 12
    assert len({str(task.setup) for task in result.tasks}) == 2
    assert 12 <= result.counts["expeditions"] <= 120


class AllAlike(NearDuplicates):
    """The first task is enough: every other one is like it."""

    def fork(self) -> "AllAlike":
        return self

    def find_duplicate(self, task: Task) -> str:
        return "" if len(self._index_by_setup) < 2 else "near duplicate of task a: similarity 0.99, above 0.95"


def test_too_few_initial_tasks_name_what_can_help() -> None:
    with pytest.raises(ValueError, match=r"near dup.*higher validation\.pool_sim.*lower initial_tasks to 1, more"):
        initial_tasks(
            DESK, EXPLORER, Validation(DESK), 4, seed=(0,), weights=None, attempts=2, near_duplicates=AllAlike(0.95)
        )
    with pytest.raises(ValueError, match="0 found by 0 expeditions; commonest reasons: there are no setups;"):
        initial_tasks(FewSetups(0), EXPLORER, Validation(DESK), 20, seed=(0,), weights=None)


@pytest.mark.parametrize("where", ["reset", "step", "affordances", "evaluate", "phrase"])
def test_a_broken_environment_costs_the_evolution_and_nothing_else(where: str) -> None:
    result = evolve("feedback", BrokenDesk(on=always(where)))
    assert result.tasks == ()
    assert result.counts["expeditions"] == 20
    assert result.counts["failures"] + result.counts["runs_failed"] >= 20


def test_an_environment_that_breaks_now_and_then_still_yields_tasks() -> None:
    result = evolve("feedback", BrokenDesk(on=every("reset", 7)))
    assert len(result.tasks) == 8
    assert result.counts["runs_failed"] > 0


def test_displaced_signals_keep_kinds_and_numbers_of_tools_and_lose_their_places() -> None:
    told = [dataclasses.replace(signal, focus=("files_read",)) for signal in SIGNALS[:9]]
    inputs = EvolutionInputs(DESK, EXPLORER, told, list(EPISODES), EPISODES.__getitem__, None, 20, (0, 10))
    true = [trip.prepare(EXPLORER).context for trip in EVOLUTIONS["feedback"](inputs)]
    moved = [trip.prepare(EXPLORER).context for trip in EVOLUTIONS["displaced"](inputs)]
    assert moved == [trip.prepare(EXPLORER).context for trip in EVOLUTIONS["displaced"](inputs)]
    assert [context.kind for context in moved] == [context.kind for context in true]
    assert {context.episode for context in moved} != {context.episode for context in true}
    for kind in ("forgetting", "boundary", "rare"):
        episodes = [context.episode for context in moved if context.kind == kind]
        assert len({EPISODES[name].task.id for name in episodes}) == len(episodes)
    for context in moved:
        called = {name for turn in EPISODES[context.episode].turns for name in tools_of(turn.action)} - {"finish"}
        assert len(context.focus_patterns) == min(1, len(called)) or not called
        assert set(context.focus_patterns) <= called or not called

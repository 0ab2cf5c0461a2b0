"""Which signals are followed where there are more than contexts: stratified, confident first, or all."""

import collections
import dataclasses
import math
import random
from collections.abc import Iterable

import pytest
from records import task, trajectory

from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.signals import SIGNALS, Visit
from cojax.synthesis import EVOLUTIONS, EvolutionInputs
from cojax.synthesis.evolutions import SELECTIONS, in_groups, list_visits, make_confidence
from cojax.types import Signal, Task
from environments.tools import ToolEnvironment

KINDS = {name: make() for name, make in SIGNALS.items()}


def confidence(signal: Signal, visits: dict[str, list[Visit]]) -> float:
    return make_confidence(KINDS, visits)(signal)


def signal(kind: str, task: str, step: int = 9) -> Signal:
    return Signal(kind, task, f"{step}-{task}-0", "line")


def test_confidence_is_the_beta_posterior() -> None:
    # One success, one failure: p ~ Beta(2, 2), whose distribution function is 3x² - 2x³.
    once = {"t": [Visit(9, 1, 1)]}
    below = 3 * 0.1**2 - 2 * 0.1**3
    assert confidence(signal("boundary", "t"), once) == pytest.approx(1 - 2 * below)
    assert confidence(signal("rare", "t"), once) == pytest.approx(1 - below)
    # Before: two successes, Beta(3, 1), x³. Since: one failure, Beta(1, 2), 1 - (1 - x)².
    forgot = {"t": [Visit(3, 2, 0), Visit(9, 0, 1)]}
    assert confidence(signal("forgetting", "t"), forgot) == pytest.approx((1 - 0.5**3) * (1 - 0.5**2))
    assert confidence(signal("rare", "unseen"), once) == 0.5


def test_more_evidence_is_more_confidence() -> None:
    def boundary(solved: int, failed: int) -> float:
        return confidence(signal("boundary", "t"), {"t": [Visit(9, solved, failed)]})

    assert boundary(1, 7) < boundary(4, 4) < boundary(40, 40)
    assert boundary(1, 79) < boundary(1, 7)

    def forgetting(before: tuple[int, int], now: tuple[int, int]) -> float:
        return confidence(signal("forgetting", "t"), {"t": [Visit(1, *before), Visit(9, *now)]})

    assert forgetting((4, 4), (3, 5)) < forgetting((8, 0), (3, 5)) < forgetting((8, 0), (0, 8))
    noise = confidence(signal("rare", "t"), {"t": [Visit(9, 0, 80)]})
    assert noise < confidence(signal("rare", "t"), {"t": [Visit(9, 40, 40)]})


def test_the_confident_come_first_within_their_kind() -> None:
    signals = [signal("boundary", f"t{i}") for i in range(8)] + [signal("rare", "t0")]
    visits = {f"t{i}": [Visit(9, i, 16 - i)] for i in range(8)}
    chosen = SELECTIONS["confident"](signals, 4, (0,), make_confidence(KINDS, visits))
    assert collections.Counter(s.kind for s in chosen) == {"boundary": 3, "rare": 1}
    assert {s.task for s in chosen if s.kind == "boundary"} == {"t7", "t6", "t5"}
    assert SELECTIONS["confident"](signals, 4, (0,), make_confidence(KINDS, visits)) == chosen
    # Without a history all are worth the same, and chance decides as it does evenly.
    unknown = make_confidence(KINDS, {})
    assert SELECTIONS["confident"](signals, 4, (0,), unknown) == SELECTIONS["even"](signals, 4, (0,), unknown)


def test_all_signals_are_all_of_them() -> None:
    signals = [signal("boundary", "t") for _ in range(5)] + [signal("rare", "t")]
    chosen = SELECTIONS["all"](signals, 2, (0,), make_confidence(KINDS, {}))
    assert collections.Counter(s.kind for s in chosen) == {"boundary": 5, "rare": 1}


def test_visits_are_counted_from_episodes_and_remembered_scores() -> None:
    def episode(reward: float, outcome: str = "finished") -> dict:
        return {"reward": reward, "outcome": outcome}

    episodes = {
        "4-a-0": episode(1.0), "4-a-1": episode(0.0), "4-a-2": episode(0.0, "environment_error"),
        "6-a-0": episode(0.25),
        "6-b-0": episode(0.0, "engine_error"),
    }  # fmt: skip
    visits = list_visits(episodes, {"a": [1.0, 0.25, 0.5, 0.5], "c": [1.0]}, group_size=4)
    assert visits["a"] == [Visit(0, 4.0, 0.0), Visit(0, 1.0, 3.0), Visit(4, 1, 1), Visit(6, 0, 1)]
    assert visits["b"] == [Visit(6, 0, 0)]
    assert "c" not in visits


def test_a_kind_from_outside_is_judged_by_its_own_rule() -> None:
    class Slow:
        def confidence(self, signal: Signal, visits: list[Visit]) -> float:
            return visits[-1].failed

    signals = [signal("slow", f"t{i}") for i in range(4)]
    visits = {f"t{i}": [Visit(9, 1, i)] for i in range(4)}
    chosen = SELECTIONS["confident"](signals, 2, (0,), make_confidence({"slow": Slow()}, visits))
    assert [s.task for s in chosen] == ["t3", "t2"]


SEEDS = 4000
# How many signals, or visits, each task has: many of one against one of another, and one against eight tasks of many.
CROWDS = [{"a": 1, "b": 8}, {"b": 8, "a": 1}, {"a": 1, **{f"b{i}": 8 for i in range(8)}}]


def expect_share(hits: int, share: float) -> None:
    """Five standard deviations of a binomial: one in a million fair draws is outside."""
    assert abs(hits / SEEDS - share) < 5 * math.sqrt(share * (1 - share) / SEEDS)


def expect_equal_shares(drawn: Iterable[Iterable[str]], names: Iterable[str], budget: int) -> None:
    """Of all `names`, each is among the `budget` that are drawn in budget / number of names of the draws."""
    found = collections.Counter(name for names in drawn for name in names)
    names = list(names)
    assert found.keys() == set(names)
    for name in names:
        expect_share(found[name], budget / len(names))


def crowd(counts: dict[str, int]) -> list[Signal]:
    return [Signal("rare", name, f"9-{name}-{i}", "line") for name, count in counts.items() for i in range(count)]


@pytest.mark.parametrize("name", ["even", "confident"])
@pytest.mark.parametrize(("counts", "budget"), [*((counts, 1) for counts in CROWDS), (CROWDS[2], 4)])
def test_tasks_have_equal_chances_however_many_signals_they_have(name: str, counts: dict, budget: int) -> None:
    signals, unknown = crowd(counts), make_confidence(KINDS, {})
    drawn = [SELECTIONS[name](signals, budget, (seed,), unknown) for seed in range(SEEDS)]
    expect_equal_shares(([one.task for one in some] for some in drawn), counts, budget)
    # Of two signals that a task has in the order of the list, neither is preferred.
    kept = [one.episode for some in drawn for one in some if one.task == "b"]
    if kept:
        assert {kept.count(f"9-b-{i}") > len(kept) / 12 for i in range(8)} == {True}
        assert max(collections.Counter(kept).values()) < len(kept) / 6


def test_a_tie_of_confidence_is_as_fair_and_a_lead_is_kept() -> None:
    signals = [*crowd({"a": 1, "b": 8, "c": 8}), *crowd({"sure": 1})]
    visits = {"sure": [Visit(9, 8, 8)], **{name: [Visit(9, 1, 7)] for name in ("a", "b", "c")}}
    drawn = [SELECTIONS["confident"](signals, 2, (seed,), make_confidence(KINDS, visits)) for seed in range(SEEDS)]
    assert {one[0].task for one in drawn} == {"sure"}
    expect_equal_shares(([one[1].task] for one in drawn), "abc", 1)


def test_the_order_in_which_signals_are_given_does_not_matter() -> None:
    signals = [*crowd({"a": 1, "b": 8, "c": 3}), *(signal("boundary", name) for name in "abcd")]
    unknown = make_confidence(KINDS, {})
    for seed in range(20):
        mixed = random.Random(seed).sample(signals, len(signals))
        for name in ("even", "confident"):
            assert SELECTIONS[name](mixed, 5, (0,), unknown) == SELECTIONS[name](signals, 5, (0,), unknown)


def test_groups_and_their_items_are_drawn_alike() -> None:
    drawn = [in_groups(["a0", *(f"b{i}" for i in range(8))], lambda item: item[0], random.Random(i))
             for i in range(SEEDS)]  # fmt: skip
    assert all(sorted(map(len, groups)) == [1, 8] for groups in drawn)
    expect_equal_shares(([groups[0][0][0]] for groups in drawn), "ab", 1)
    expect_equal_shares(([max(groups, key=len)[0]] for groups in drawn), [f"b{i}" for i in range(8)], 1)


def press(world) -> None:
    world["pressed"] = True


def visited(counts: dict[str, int], lost: frozenset[str] = frozenset()) -> EvolutionInputs:
    """Inputs with so many trajectories of each task, those of the episodes `lost` invalid, and with one signal."""
    tasks = {name: task(name) for name in counts}
    played = {
        f"9-{tasks[name].id}-{i}": trajectory(
            tasks[name], 0.0, "files_read", episode=f"9-{tasks[name].id}-{i}",
            outcome="environment_error" if f"{name}{i}" in lost else "finished",
        )
        for name, count in counts.items() for i in range(count)
    }  # fmt: skip
    rooms = ToolEnvironment("rooms", [press], dict, [{"room": number} for number in range(9)])
    told = [Signal("rare", tasks["a"].id, f"9-{tasks['a'].id}-0", "line")]
    return EvolutionInputs(rooms, ScriptedExplorer(), told, list(played), played.__getitem__, None, 1, (0,))


@pytest.mark.parametrize("control", ["trajectory", "displaced"])
@pytest.mark.parametrize("counts", CROWDS)
def test_controls_give_tasks_equal_chances_however_often_they_were_visited(control: str, counts: dict) -> None:
    names = {task(name).id: name for name in counts}
    inputs, explored = visited(counts), list[Task]()
    for seed in range(SEEDS):
        explored += [trip.task for trip in EVOLUTIONS[control](dataclasses.replace(inputs, seed=(seed,)))]
    expect_equal_shares(([names[one.id]] for one in explored), counts, 1)


@pytest.mark.parametrize("control", ["random", "uniform"])
def test_unguided_controls_draw_setups_whatever_was_visited(control: str) -> None:
    rooms: collections.Counter[int] = collections.Counter()
    inputs = [visited(counts) for counts in ({"a": 1, "b": 8}, {"a": 8, "b": 1})]
    for seed in range(SEEDS):
        trips = [list(EVOLUTIONS[control](dataclasses.replace(one, seed=(seed,)))) for one in inputs]
        assert [trip.task for trip in trips[0]] == [trip.task for trip in trips[1]]
        rooms[trips[0][0].task.setup["room"]] += 1
    assert rooms.keys() == set(range(9))
    for hits in rooms.values():
        expect_share(hits, 1 / 9)


def test_of_a_task_a_valid_trajectory_is_taken_and_a_task_without_one_is_left_out() -> None:
    lost = frozenset({"a0", *(f"b{i}" for i in range(7))})
    inputs = visited({"a": 1, "b": 8, "c": 2}, lost)
    drawn = [[one.episode for one in inputs.trajectories(random.Random(seed))] for seed in range(SEEDS)]
    b, c = task("b").id, task("c").id
    assert {frozenset(one) for one in drawn} == {frozenset({f"9-{b}-7", f"9-{c}-{i}"}) for i in range(2)}
    expect_share(sum(one[0] == f"9-{b}-7" for one in drawn), 1 / 2)

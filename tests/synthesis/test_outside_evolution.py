"""An evolution from outside, with an origin of its own: its expeditions by a real explorer on the desk."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import environments
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.registry import RegistryError, find
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, make_expeditions, reads, reflect_on, synthesize
from cojax.synthesis.beliefs import solution_tools, tool_key
from cojax.types import Group, Signal
from cojax.validation import Validation

DOCS = Path(__file__).parents[2] / "docs" / "extending.md"
DESK = environments.load("desk")
EXPLORER = ScriptedExplorer(neighbours=DESK.neighbours)
EPISODES = {
    f"e{number}": play(DESK, task, follow(task.solution), max_turns=len(task.solution), episode=f"e{number}")
    for number, task in enumerate(DESK.tasks("seed", 24, seed=5))
}
FIRST = EPISODES["e0"]


def inputs(contexts: int) -> EvolutionInputs:
    return EvolutionInputs(
        DESK, EXPLORER, (), list(EPISODES), EPISODES.__getitem__, None, contexts, seed=(0, 10)
    )  # fmt: skip


def of_docs(beginning: str) -> str:
    """The one example of the docs that begins so."""
    (code,) = re.findall(rf"```python\n({beginning}.*?)```", DOCS.read_text(), re.DOTALL)
    return str(code)


def test_the_documented_evolution_with_beliefs_goes_to_the_weakest_tool() -> None:
    found: dict[str, Any] = {}
    exec(of_docs("import random\nfrom itertools"), found)
    evolve = found["weakest"]
    assert reads(evolve) == ("beliefs",)
    weak = solution_tools(FIRST.task.solution)[0]
    memory = {"steps": 1, "discount": 1.0, tool_key(weak): [0.0, 50.0, 1]}
    trips = list(make_expeditions(evolve, inputs(len(EPISODES)), memory))
    assert {trip.origin for trip in trips} == {"weak"}
    assert len(list(make_expeditions(evolve, inputs(3), memory))) == 3
    towards = [trip.prepare(EXPLORER).context.plan for trip in trips if trip.task == FIRST.task]
    assert towards == [(weak,)]


def test_the_documented_admission_keeps_the_shortest_that_were_solved() -> None:
    found: dict[str, Any] = {}
    exec(of_docs("import dataclasses\n\n\n@dataclasses"), found)
    groups = [
        Group(episode.task, (dataclasses.replace(episode, reward=float(number != 0)),))
        for number, episode in enumerate(EPISODES.values())
    ]
    chosen = found["Shortest"]().choose(groups, 3, (0,))
    lengths = sorted(len(group.task.solution) for group in groups[1:])
    assert [len(task.solution) for task in chosen] == lengths[:3]
    assert FIRST.task not in chosen


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda inputs: None, "returned None; expected an iterator of cojax.synthesis.Expedition"),
        (lambda inputs: [3], "gave 3; expected a cojax.synthesis.Expedition"),
    ],
)
def test_an_evolution_that_gives_something_else_is_named(given: Any, said: str) -> None:
    with pytest.raises(RegistryError, match=rf"^evolve '{__name__}:<lambda>' {said}$"):
        list(make_expeditions(given, inputs(2)))
    with pytest.raises(RegistryError, match=said):
        list(make_expeditions(functools.partial(given), inputs(2)))


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The evolution of the docs in a file of the current folder, by its name."""
    (tmp_path / "evolution_of_mine.py").write_text(of_docs("import itertools"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "evolution_of_mine:dreams"
    sys.modules.pop("evolution_of_mine", None)


def test_the_evolution_of_the_docs_finds_tasks_of_its_own_origin(documented: str) -> None:
    evolve = find("evolve", documented, EVOLUTIONS)
    assert reads(evolve) == ()
    found = synthesize(
        evolve(inputs(6)), DESK, EXPLORER, Validation(DESK), lambda id: False,
        budget=4, per_context=1, seed=(0, 10), step=10,
    )  # fmt: skip
    assert [task.origin for task in found.tasks] == ["dream"] * 4
    assert {line["origin"] for line in found.expeditions} == {"dream"}
    assert found.expeditions[0]["context"]["plan"] == ["notes_write"]
    assert found.expeditions[0]["context"]["objectives"] == ["find a task that needs notes_write"]
    assert sum("notes_write" in solution_tools(task.solution) for task in found.tasks) >= 3


def signal(kind: str) -> Signal:
    return Signal(kind, FIRST.task.id, "e0", "dreamt of", ("mail_send",))


@pytest.mark.parametrize(
    ("given", "plan", "kind", "focus"),
    [
        (signal("dream"), ["mail_send"], "posterior", ("mail_send",)),
        (signal("rare"), ["mail_send"], "posterior", ("mail_send",)),
        (signal("frontier"), ["mail_send"], "frontier", ("mail_send",)),
        (signal("rare"), [], "rare", ("mail_send",)),
        (None, ["notes_write", "mail_send", "notes_write"], "posterior", ("notes_write", "mail_send")),
    ],
)
def test_signal_and_plan_decide_what_is_asked(given, plan, kind, focus) -> None:
    context = reflect_on(FIRST, given, plan)(EXPLORER)
    assert (context.kind, context.focus_patterns, context.plan) == (kind, focus, tuple(plan))


def test_without_signal_and_plan_variations_are_asked_for() -> None:
    context = reflect_on(FIRST)(EXPLORER)
    assert (context.kind, context.plan, context.instability_pattern) == ("trajectory", (), "")


def test_a_signal_that_no_detector_raises_needs_a_plan() -> None:
    said = "no guidance for contexts of kind 'dream'; expected one of .*; an expedition with a plan"
    with pytest.raises(ValueError, match=said):
        reflect_on(FIRST, signal("dream"))(EXPLORER)

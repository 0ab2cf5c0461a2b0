"""An evolution from outside, with an origin of its own: its expeditions by a real explorer on the desk."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import environments
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.registry import find
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, reads, reflect_on, synthesize
from cojax.synthesis.beliefs import solution_tools
from cojax.types import Signal
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


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The evolution of the docs in a file of the current folder, by its name."""
    (code,) = re.findall(r"```python\n(import itertools\n.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "evolution_of_mine.py").write_text(code)
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
    assert sum("notes_write" in solution_tools(task) for task in found.tasks) >= 3


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

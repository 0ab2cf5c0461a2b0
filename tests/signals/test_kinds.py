"""What a kind of signal must have, and how far it is trusted."""

from __future__ import annotations

import pytest
from records import group, task

from cojax import signals
from cojax.explorer import make_context
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.signals import SIGNALS, Guidance, Visit, above, check
from cojax.synthesis import MEMORIES
from cojax.types import Signal

A = task("a")


class Slow:
    """As a signal from outside is."""

    name = "slow"
    colour = "#228833"
    guidance = Guidance(("do {tools} in fewer steps",), "It took long.", "Purpose: speed.")

    def init(self):
        return {}

    def update(self, memory, groups):
        return {}, [Signal(self.name, group.task.id, t.episode, "long", ()) for group in groups for t in group.valid]

    def confidence(self, signal, visits):
        return above(0.5, visits)


def test_our_own_kinds_are_whole_and_called_as_the_registry_calls_them() -> None:
    for name, make in SIGNALS.items():
        assert check(make()).name == name
    assert len({make().colour for make in SIGNALS.values()}) == 3


def test_a_kind_from_outside_is_whole() -> None:
    kind = check(Slow())
    changes, found = signals.detect({"slow": kind}, {"slow": {}}, [group(A, 1, 0)])
    assert (changes, [signal.kind for signal in found]) == ({"slow": {}}, ["slow", "slow"])
    told = signals.guidance({"slow": kind})
    assert set(told) == {"slow", "trajectory", "frontier", "posterior"}
    of_group = group(A, 0).trajectories[0]
    assert make_context(of_group, "slow", found[0], "finish", told).objectives == (
        "do the tools of the task in fewer steps",
    )
    explorer = ScriptedExplorer(guidance=told)
    assert explorer.reflect(of_group, "slow", found[0]).kind == "slow"
    with pytest.raises(ValueError, match="no guidance for contexts of kind 'rare'; expected one of slow, trajectory"):
        explorer.reflect(of_group, "rare", found[0])
    assert signals.list_names({"slow": kind, "rare": kind}) == ["boundary", "forgetting", "rare", "slow"]


@pytest.mark.parametrize("memory", MEMORIES)
def test_no_signal_has_the_name_of_a_memory(memory):
    taken = Slow()
    taken.name = memory
    with pytest.raises(ValueError, match=f"its name is '{memory}'; expected a lower-case word other than"):
        check(taken, MEMORIES)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("name", "Slow One", "its name is 'Slow One'; expected a lower-case word"),
        ("name", "trajectory", "its name is 'trajectory'; expected a lower-case word other than frontier, "),
        ("colour", "red", "its colour is 'red'; expected one like #d6504b"),
        ("colour", "#000000;x", "its colour is"),
        ("guidance", "be quick", "its guidance is a str; expected cojax.signals.Guidance"),
    ],
)
def test_a_part_that_cannot_work_is_named(part: str, value: object, said: str) -> None:
    kind = type("Odd", (Slow,), {part: value})()
    with pytest.raises(ValueError, match=said):
        check(kind)


def test_missing_parts_are_named() -> None:
    class Half:
        name = "half"

        def init(self):
            return {}

    with pytest.raises(
        ValueError, match="a Half is not a signal: it lacks colour, guidance, confidence, update; a signal has"
    ):
        check(Half())


def test_a_signal_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="the detector of 'quick' raised a signal of kind 'slow'"):
        signals.detect({"quick": Slow()}, {"quick": {}}, [group(A, 1)])


def test_guidance_that_cannot_be_worded_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"the only field of an objective is \{tools\}, found 'task'"):
        Guidance(("again {task}",), "", "")
    with pytest.raises(ValueError, match="rehearse is 2; expected a share"):
        Guidance(("again",), "", "", rehearse=2)


def test_above_is_the_beta_distributions_tail() -> None:
    assert above(0.5, []) == pytest.approx(0.5)
    assert above(0.5, [Visit(1, 1, 0)]) == pytest.approx(0.75)  # 1 - x² at one half

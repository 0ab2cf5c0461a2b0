"""An evolution that makes no expedition says why, in the words of what it reads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from counter_environment import CounterEnvironment

from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.registry import find
from cojax.signals import SIGNALS
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, explain_idle
from cojax.types import Signal

SIGNAL = Signal("rare", "t", "1-t-0", "line")
KINDS = {"rare": SIGNALS["rare"]()}


def inputs(**given: Any) -> EvolutionInputs:
    whole: dict[str, Any] = {
        "environment": CounterEnvironment(), "explorer": ScriptedExplorer(neighbours=lambda tool: ()), "signals": (),
        "episodes": (), "find": dict, "popularity": None, "contexts": 2, "seed": (0, 0), "kinds": KINDS,
    }  # fmt: skip
    return EvolutionInputs(**{**whole, **given})


def said(name: str, failed: bool = False, used_up: bool = False, **given: Any) -> str:
    return explain_idle(find("evolve", name, EVOLUTIONS), inputs(**given), environment_failed=failed, used_up=used_up)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("none", {}, "evolve=none makes none"),
        ("feedback", {"episodes": ("a", "b")}, "no signals in 2 episodes since the last evolution"),
        ("feedback", {"kinds": {}}, "no signal is switched on (signals)"),
        ("feedback", {"signals": (SIGNAL,)}, "none of 1 signals was followed"),
        (
            "feedback",
            {"used_up": True},
            "no signals in 0 episodes since the last evolution; the run's episodes or environment_steps are used up",
        ),
        ("displaced", {"episodes": ("a",)}, "no signals in 1 episodes since the last evolution"),
        ("trajectory", {}, "no episodes since the last evolution"),
        ("trajectory", {"episodes": ("a",)}, "none of 1 episodes is valid"),
        ("random", {}, "no setup in the split 'seed'"),
        ("uniform", {"closed": frozenset("x")}, "no setup in the split 'seed' that is not reserved for evaluation"),
        ("uniform", {"failed": True}, "the environment failed to give a setup"),
        (
            "credited",
            {"episodes": ("a",)},
            "no signals in 1 episodes since the last evolution and no setup in the split 'seed'",
        ),
    ],
)
def test_the_reason_is_what_there_was_to_read(name: str, given: dict[str, Any], expected: str) -> None:
    assert said(name, **given) == expected


def test_every_evolution_of_ours_has_its_reason() -> None:
    assert all("begins_at" in vars(find("evolve", name, EVOLUTIONS)) for name in EVOLUTIONS if name != "none")


def test_settings_of_an_evolution_and_one_from_outside() -> None:
    bound: Callable[..., Any] = functools.partial(EVOLUTIONS["uniform"], setting=1)
    assert explain_idle(bound, inputs(), environment_failed=False, used_up=False) == "no setup in the split 'seed'"
    own = explain_idle(lambda inputs: iter(()), inputs(), environment_failed=False, used_up=False)
    assert own.startswith("no signals in 0 episodes")
    assert own.endswith("and no setup in the split 'seed'")

"""The campaign's episodes `mcp`: honest servers break nothing, and a planted break of each rule is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from campaign import __main__ as command
from campaign import mcp, playing
from campaign.cases import Canary, Case

from cojax.environment import EnvironmentFailure, Traits
from cojax.environment.wrapping import Wrapped, WrappedEpisode
from cojax.types import Evaluation
from environments import soundness

pytestmark = [pytest.mark.real, pytest.mark.nightly]


def cases_of(trick: str, count: int, made: Callable[[], Any]) -> tuple[mcp.McpCases, list[Case]]:
    cases = object.__new__(mcp.McpCases)
    cases.canary, cases.environment = Canary("x"), made()
    every = (cases.case(f"e{number}", 0) for number in range(400))
    return cases, [case for case in every if case.trick == trick][:count]


def test_honest_servers_break_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status = command.main(["--episodes=10", "--faults=0", "--only=mcp", "--json"])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (status, told["violations"], told["kinds"]) == (0, [], {"mcp": 10})


class Erasing(WrappedEpisode):
    """Calls what its policy broke an infrastructure failure."""

    def evaluate(self) -> Evaluation:
        try:
            return self.episode.evaluate()
        except Exception as error:
            raise EnvironmentFailure(str(error)) from error


def test_an_environment_that_lets_a_server_erase_its_episode_is_found() -> None:
    honest = mcp._made("")
    cases, (case,) = cases_of("end", 1, lambda: Wrapped(honest, lambda task: Erasing(honest.start(task))))
    try:
        (violation,) = cases.examine(case, 0)
        assert (violation.count, "is erased" in violation.reason) == ("forged", True)
    finally:
        mcp._worker(honest).close()


def test_servers_that_serve_several_episodes_leave_traces() -> None:
    with mcp._reusing() as reused:
        cases, (first, second) = cases_of("honest", 2, lambda: reused)
        for case in (first, first):  # the server that plays the solution is ended
            playing.play(reused, case)
        (violation, *_) = cases.examine(second, 0)
        assert (violation.count, f"shows what case {first.id} left" in violation.reason) == ("traces", True)


@pytest.mark.parametrize(
    ("module", "name", "broken", "reason"),
    [
        (mcp, "traits_of", lambda environment: Traits(), "an evaluation shows what training left"),
        (soundness, "_find_leak", lambda *_: "", "what a server keeps goes unnoticed by the check"),
    ],
)
def test_reused_servers_that_go_unnoticed_are_found(
    module: Any, name: str, broken: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    cases, (case,) = cases_of(mcp._REUSED, 1, lambda: None)
    assert [(one.count, reason in one.reason) for one in cases.examine(case, 0)] == [("traces", True)]

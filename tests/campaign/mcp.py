"""Cases of an MCP server whose state is read by calls: honest ones, those that break it, and words beside the state."""

import contextlib
import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from campaign import playing
from campaign.cases import Canary, Case, Violation, draw
from cojax.environment import traits_of
from cojax.types import Action, Call, Task
from environments.mcp import RECIPE, make
from environments.mcp.world import NAME, Opener
from environments.soundness import SetupReport
from environments.tools import ToolEnvironment
from environments.worker import IsolatedEnvironment
from environments.worker.venv import interpreter

_SERVER = Path(__file__).with_name("mcp_server.py")
# Seconds that a call may take.
_DEADLINE = 4.0
_FINISH = Action(calls=(Call("finish"),))
# How a call breaks the server: at once, after its answer, or when the state is read.
_WAYS = ("now", "hang", "after", "end", "stall", "long", "random", "deep", "refuse", "endless")
# The trick about servers that serve several episodes, and its share of the honest cases.
_REUSED, _SHARE = "reused", 0.1


class McpCases:
    """Half of the cases are honest; all of them keep their word where a later episode might find it."""

    def __init__(self, canary: Canary) -> None:
        self.environment, self.canary = _made(""), canary

    def supervisors(self) -> tuple[int, ...]:
        return (_worker(self.environment).supervisor,)

    def close(self) -> None:
        _worker(self.environment).close()

    def case(self, id: str, seed: int) -> Case:
        rng = draw(seed, id)
        word = self.canary.word(id)
        kept = (_call("hide", text=word), _call("recall"))
        solution = (_call("add", text=word), _FINISH)
        task = Task(NAME, "add the word", {}, solution)
        if rng.random() < 0.5:
            trick = _REUSED if rng.random() < _SHARE else "honest"
            return Case(id, trick, task, (*kept, *solution), "full")
        way = rng.choice(_WAYS)
        added = solution[:1] if rng.random() < 0.5 else ()
        return Case(id, way, task, (*kept, *added, _call("spoil", way=way), _call("recall"), _FINISH), "less")

    def examine(self, case: Case, seed: int) -> list[Violation]:
        if case.trick != _REUSED:
            return playing.judge(case, playing.play(self.environment, case), self.canary)
        return list(self._reused(case))

    def _reused(self, case: Case) -> Iterator[Violation]:
        """Servers that serve several episodes: the check notices what one keeps, and no evaluation sees it."""
        word = self.canary.word(case.id)
        with _reusing() as trained:
            if (played := playing.play(trained, case)).reward < 1.0:
                yield Violation("forged", case.id, f"{case.trick}: the verdict is denied ({played.outcome})")
            with _reusing() if traits_of(trained).reuses else contextlib.nullcontext(trained) as evaluated:
                asking = dataclasses.replace(case, actions=(_call("recall"), *case.task.solution))
                seen = playing.play(evaluated, asking)
                if any(word in turn.observation.text for turn in seen.turns[:1]):
                    yield Violation("traces", case.id, f"{case.trick}: an evaluation shows what training left")
            report = SetupReport()
            report.check_setup(trained, Task(NAME, "", {}), throws_garbage=True)
            if not any("expected episodes that see nothing of each other" in fault for fault in report.plays.faults):
                yield Violation("traces", case.id, f"{case.trick}: what a server keeps goes unnoticed by the check")


def _call(name: str, **arguments: Any) -> Action:
    return Action(calls=(Call(name, arguments),))


def _made(mode: str, **settings: Any) -> ToolEnvironment:
    command = shlex.join([interpreter(NAME, RECIPE), str(_SERVER), *filter(None, [mode])])
    return make(command=command, state="everything", deadline=_DEADLINE, **settings)


@contextlib.contextmanager
def _reusing() -> Iterator[ToolEnvironment]:
    environment = _made("reused", reuse=True, reset="clear", concurrency=1)
    try:
        yield environment
    finally:
        _worker(environment).close()


def _worker(environment: ToolEnvironment) -> IsolatedEnvironment:
    opener = environment._open_world
    assert isinstance(opener, Opener)
    return opener.worker

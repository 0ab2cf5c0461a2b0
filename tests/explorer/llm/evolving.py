"""One evolution of a small desk by a scripted model, over real HTTP."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from chat_server import ChatServer, Script, serving
from models import TOUR, stage
from records import DESK, call

import environments
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.chat_model import Journal
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.explorer.llm.explorer import judge as ask_judge
from cojax.settings.tree import LLMSettings
from cojax.similarity import NearDuplicates
from cojax.synthesis import EVOLUTIONS, EvolutionInputs, Expedition, Synthesis, synthesize
from cojax.types import Signal, Task, Trajectory, Verdict
from cojax.validation import Attempts, Exclusions, Validation

OFFICE = environments.load("desk")
PARENT = Task("desk", "move report to taxes", DESK, (call("files_move", file="report", folder="taxes"), call("finish")))
FAILED = call("files_move", file="ghost", folder="taxes")
EPISODE = play(OFFICE, PARENT, follow((FAILED, call("finish"))), max_turns=2, episode="3-x-0")
SIGNALS = [
    Signal(kind, PARENT.id, "3-x-0", f"{kind} here", ("files_move",))  # type: ignore[arg-type]
    for kind in ("boundary", "forgetting", "rare")
]
ACTING = MappingProxyType({"steps": len(TOUR)})


@dataclasses.dataclass
class Evolved:
    result: Synthesis
    server: ChatServer
    explorer: LLMExplorer
    journal: Journal

    def verdict(self, query: str) -> Verdict:
        """The verdict on the draft of this query."""
        (record,) = [record for record in self.result.drafts if record["draft"]["query"] == query]
        return Verdict(**{**record["verdict"], "evidence": tuple(record["verdict"]["evidence"])})

    def bodies(self, at: str) -> list[dict[str, Any]]:
        return [body for body in self.server.bodies if stage(body) == at]


def evolve(
    script: Script,
    *,
    signals: list[Signal] = SIGNALS[:1],
    environment: Any = OFFICE,
    episode: Trajectory = EPISODE,
    acting: Mapping[str, Any] = ACTING,
    runs: int = 2,
    attempts: int = 1,
    judge: bool | None = None,
    exclusions: Exclusions = Exclusions(),  # noqa: B008
    budget: int = 20,
    per_context: int = 10,
    known: Callable[[str], bool] = lambda id: False,
    near_duplicates: NearDuplicates | None = None,
    journal: Journal | None = None,
    width: int = 3,
    expeditions: list[Expedition] | None = None,
    tries: int = 2,
    **settings: Any,
) -> Evolved:
    """`signals` are of `episode`, `acting` are the settings of the explorer, and `settings` those of the client."""
    journal = journal or Journal()
    with serving(script) as server:
        most = {"max_tokens_per_evolution": 2_000_000, "max_requests_per_evolution": 4_000}
        own = LLMSettings(server.url, "m", **{"timeout": 5.0, "max_tokens": 200, **most, **settings})
        chat_model = ChatClient(own, journal, attempts=tries)
        explorer = LLMExplorer(chat_model, runs=runs, width=width, attempt_turns=6, **acting)
        validate = Validation(
            environment,
            exclusions,
            attempts=Attempts(LLMExplorer.attempters, attempts, 6) if attempts else None,
            judge=None if judge is None else functools.partial(ask_judge, chat_model, judge),
            safe=True,
        )
        inputs = EvolutionInputs(
            environment, explorer, signals, ["3-x-0"], lambda id: episode, OFFICE.popularity(), 8, (0, 9)
        )
        result = synthesize(
            EVOLUTIONS["feedback"](inputs) if expeditions is None else expeditions,
            environment,
            explorer,
            validate,
            known,
            budget=budget,
            per_context=per_context,
            seed=(0, 9),
            step=10,
            near_duplicates=near_duplicates,
        )
        return Evolved(result, server, explorer, journal)

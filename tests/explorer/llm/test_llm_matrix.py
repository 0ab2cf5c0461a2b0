"""Whatever a model, its endpoint or an environment does wrong, on real benchmarks: each case ends in the right verdict
with its evidence, none enters the pool wrongly, budgets hold and nothing hangs."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from chat_server import Answer, ChatServer, Script, asked, says
from evolving import Evolved, evolve
from injecting import Injecting, between_marks
from models import model, stage, told
from patience import patience
from scenes import SCENES, UNSOLVED, Expected, Scene

pytestmark = pytest.mark.real
TOKENS, REQUESTS = 2_000_000, 300


@pytest.fixture(scope="module", params=list(SCENES))
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    made = SCENES[request.param]()
    yield made
    made.environment.close()  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A reply that cannot be used: the failure it ends in, after so many requests, and what the client was set to."""

    answer: Answer
    kind: str
    requests: int = 2
    settings: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"timeout": 5.0})
    text: bool = False  # where actions are text, it is one


CALLED = [{"id": "1", "type": "function", "function": {"name": "touch", "arguments": '{"file_name": "plum.txt"}'}}]
WRONG = {
    "malformed JSON": Wrong(Answer('{"drafts": '), "invalid", text=True),
    "wrong schema": Wrong(Answer('{"tool": 7, "drafts": {}, "summary": []}'), "invalid", text=True),
    "empty": Wrong(Answer(""), "empty"),
    "a call in place of text": Wrong(Answer(None, tool_calls=CALLED, finish="tool_calls"), "empty"),
    "truncated": Wrong(Answer('{"summary": "x", "tool": "touch", "drafts": []}', finish="length"), "truncated"),
    "500": Wrong(Answer("down", status=500), "server"),
    "429, soon again": Wrong(Answer("slow down", status=429, headers={"Retry-After": "0.02"}), "rate"),
    "429, much later": Wrong(Answer("slow down", status=429, headers={"Retry-After": "600"}), "rate", requests=1),
    "stall": Wrong(Answer("late", stall=60.0), "timeout", settings={"timeout": 0.6}),
}


def explored(scene: Scene, script: Script, expeditions: int = 1, **settings: Any) -> Evolved:
    """One evolution, whose budget and pool are what its records say they are."""
    began = time.monotonic()
    done = evolve(
        script, signals=scene.signals[:expeditions], episode=scene.episode, acting=scene.acting, runs=1,
        exclusions=scene.held_out,
        **{"environment": scene.environment, "max_tokens_per_evolution": TOKENS,
           "max_requests_per_evolution": REQUESTS, "judge": True, "budget": 40, "per_context": 40, **settings},
    )  # fmt: skip
    assert time.monotonic() - began < patience(240)  # every one of four attempts waited for, a stall would take longer
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("expedition ")]
    figures, budget = done.result.figures, done.explorer.budget
    assert budget is not None
    spent = figures["tokens_in"] + figures["tokens_out"] + figures["tokens_lost"]
    allowed = settings.get("max_tokens_per_evolution", TOKENS), settings.get("max_requests_per_evolution", REQUESTS)
    assert spent == allowed[0] - budget.tokens <= allowed[0]
    assert done.server.requests == figures["requests"] == allowed[1] - budget.requests <= allowed[1]
    accepted = [record for record in done.result.drafts if record["verdict"]["status"] == "accepted"]
    assert [record["task"] for record in accepted] == [task.id for task in done.result.tasks]
    assert all(record["verdict"]["evidence"] for record in done.result.drafts)
    assert sum(done.result.counts[status] for status in ("accepted", "retained", "discarded")) == len(
        done.result.drafts
    )
    assert all(between_marks(body) for body in done.server.bodies)
    return done


def playing(scene: Scene, drafts: Sequence[Mapping[str, Any]], **instead: Any) -> Script:
    """A model that explores by the tour and solves the good task alone, but for what it does instead."""

    def explore(body: dict[str, Any], at: int) -> Answer:
        return scene.tour[min(at, len(scene.tour) - 1)]

    def solve(body: dict[str, Any], at: int) -> Answer:
        return scene.solution[min(at, len(scene.solution) - 1)]

    return model(drafts, **{"explore": explore, "solve": solve, **instead})


def ended(done: Evolved, query: str, expected: Expected) -> bool:
    """Whether the draft of this query came to that end, for these last reasons."""
    verdict, (status, *lines) = done.verdict(query), expected
    said = zip(lines, verdict.evidence[-len(lines) :], strict=True)
    return verdict.status == status and all(re.match(line, evidence) for line, evidence in said)


@pytest.mark.parametrize("at", ["reflect", "explore", "abstract"])
@pytest.mark.parametrize("name", WRONG)
def test_a_reply_that_cannot_be_used_ends_its_stage(scene: Scene, name: str, at: str) -> None:
    wrong = WRONG[name]
    script = playing(scene, [scene.good], **{at: lambda body, turn: wrong.answer})
    done = explored(scene, script, **wrong.settings)
    assert done.result.tasks == done.result.drafts == ()
    (record,) = done.result.expeditions
    before = {"reflect": 0, "explore": 1, "abstract": 1 + len(scene.tour)}[at]
    if at == "explore" and scene.speaks and wrong.text:
        # What is no code is an action that fails.
        assert record["runs"] == [{"run": 0, "actions": len(scene.tour), "ok": 0}]
        assert done.server.requests == before + len(scene.tour)
        return
    assert done.server.requests == before + wrong.requests
    assert done.result.figures["failures"] == {wrong.kind: 1}
    if at == "explore":
        assert record["failures"][0].startswith(f"run 0: {wrong.kind}: ")
        assert (record["runs"], record["error"]) == ([], "")
    else:
        assert record["error"].startswith(f"{wrong.kind}: ")
        assert done.result.counts["explorer_failures"] == 1
    assert done.result.reasons()[0].startswith(f"{wrong.kind}: ")
    # Nobody knows what a request cost that was not answered: it is paid as if it had been, in full.
    assert bool(done.result.figures["tokens_lost"]) == (wrong.kind == "timeout")


def test_an_endpoint_that_stalls_costs_the_time_of_an_evolution_and_no_more(scene: Scene) -> None:
    stalling = playing(scene, [scene.good], explore=lambda body, turn: Answer("late", stall=60.0))
    began = time.monotonic()
    done = explored(scene, stalling, timeout=60.0, deadline=1.5)
    assert time.monotonic() - began < patience(6)
    assert (done.result.tasks, done.result.drafts) == ((), ())
    # One where the machine is too busy to get to the second within the evolution's time.
    assert done.server.requests in (1, 2)
    assert done.result.expeditions[0]["failures"][0].startswith("run 0: timeout: ")


def test_drafts_get_the_verdict_they_deserve_whatever_observations_say(scene: Scene) -> None:
    drafts = [draft for draft, _ in scene.drafts.values()]
    script = recovering(playing(scene, [*drafts, scene.good]))
    done = explored(scene, script, environment=Injecting(scene.environment), timeout=1.5)
    assert [task.query for task in done.result.tasks] == [scene.good["query"]]
    queries = {name: query_of(scene, draft) for name, (draft, _) in scene.drafts.items()}
    wrong = {
        name: done.verdict(query) for name, query in queries.items() if not ended(done, query, scene.drafts[name][1])
    }
    assert not wrong
    assert len(done.result.quarantined_drafts) == 1
    assert scene.secret not in json.dumps([record["verdict"] for record in done.result.drafts])
    (record,) = done.result.expeditions
    assert (record["error"], record["failures"]) == ("", [])
    assert record["runs"] == [{"run": 0, "actions": len(scene.tour), "ok": len(scene.tour) - 2}]
    # Of the same words twice the first draft counts.
    assert len(done.result.drafts) == len(drafts)
    assert done.result.figures["retries"] == 3
    assert done.result.figures["failures"] == {}
    told_how = asked(done.bodies("explore")[0])
    assert ("You act by writing" in told_how) == scene.speaks
    assert '"name": "mv"' not in told_how


def query_of(scene: Scene, draft: Mapping[str, Any]) -> str:
    separator = scene.acting.get("separator", "")
    parts = [draft["query"], *(later["query"] for later in draft.get("later", ()))]
    return separator.join(" ".join(part.split()) for part in parts) if separator else draft["query"]


def recovering(script: Script) -> Script:
    """The first request of each stage goes wrong in a way that passes."""
    first = {
        "reflect": WRONG["429, soon again"].answer,
        "explore": WRONG["500"].answer,
        "abstract": WRONG["malformed JSON"].answer,
        "solve": WRONG["stall"].answer,
    }

    def answer(body: dict[str, Any], server: ChatServer) -> Answer:
        return first.pop(stage(body), None) or script(body, server)

    return answer


def test_solvers_that_fail_do_nothing_or_cannot_be_understood_prove_nothing(scene: Scene) -> None:
    names = ["wrong schema", "truncated", "stall"]
    if not scene.speaks:  # where a run takes seconds, these three will do
        names += ["empty", "500", "429, much later"]
    plans = {name: [WRONG[name].answer] for name in names} | {f"one who {name}": s for name, s in scene.solvers.items()}
    drafts = {name: {**scene.good, "query": f"{scene.good['query']} Case {name!r} of it."} for name in plans}

    def solve(body: dict[str, Any], at: int) -> Answer:
        (plan,) = [plan for name, plan in plans.items() if f"Case {name!r} of" in told(body)]
        return plan[min(at, len(plan) - 1)]

    # Two expeditions at once, each with its share.
    queue = list(drafts.values())
    shares = [queue[::2], queue[1::2]]
    script = playing(scene, [], solve=solve, abstract=lambda body, at: says({"drafts": shares.pop()}))
    done = explored(scene, script, 2, environment=Injecting(scene.environment), timeout=1.0)
    assert done.result.tasks == ()
    failures = 0
    for name, draft in drafts.items():
        lost = name in WRONG and not (scene.speaks and WRONG[name].text)
        unproved = f"no attempt on the query alone came to an end: {WRONG[name].kind}: " if lost else ""
        assert ended(done, draft["query"], ("discarded", unproved) if lost else UNSOLVED), done.verdict(draft["query"])
        failures += lost
    assert sum(done.result.figures["failures"].values()) == failures


@pytest.mark.parametrize(
    ("limits", "requests", "advice"),
    [
        ({"max_tokens_per_evolution": 1}, 0, "raise llm.max_tokens_per_evolution"),
        ({"max_requests_per_evolution": 3}, 3, "raise llm.max_requests_per_evolution"),
        ({"max_requests_per_evolution": 7}, 7, "raise llm.max_requests_per_evolution"),
    ],
)
def test_a_budget_that_ends_ends_the_evolution_and_says_what_to_raise(
    scene: Scene, limits: dict[str, int], requests: int, advice: str
) -> None:
    done = explored(scene, playing(scene, [scene.good]), **limits)
    assert done.server.requests == requests
    assert done.result.tasks == ()
    assert done.result.figures["failures"].keys() == {"budget"}
    assert any(advice in reason for reason in done.result.reasons())

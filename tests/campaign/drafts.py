"""Cases of an explorer whose model is hostile: bad drafts, which must not enter the pool, and unusable replies.

Each case is a real evolution of one signal at the desk, by the real explorer over HTTP and the real validation. The
model solves whatever it drafted, so that only the rules keep a bad draft out.
"""

import dataclasses
import json
import random
import socket
import threading
from typing import Any

from campaign.cases import Canary, Case, Violation, draw
from campaign.endpoint import Script, answered, completion, serving
from campaign.hostile_replies import BEHAVIOURS, DISGUISES, STAGES, Behaviour, look, refused
from cojax.environment import play
from cojax.environment.replay import follow
from cojax.explorer.llm.chat_client import ChatClient
from cojax.explorer.llm.explorer import LLMExplorer
from cojax.settings.tree import LLMSettings
from cojax.synthesis import EvolutionInputs, Synthesis, synthesize
from cojax.synthesis.evolutions import around_signals
from cojax.types import Action, Call, Signal, Task
from cojax.validation import Attempts, Exclusions, Validation
from environments.desk import Desk

_REFLECTION = {"summary": "it failed", "failure_cause": "it stopped too early", "focus_patterns": [], "objectives": [],
               "do_not_repeat": []}  # fmt: skip
# Seconds of one request, and of all.
_TIMEOUT, _PATIENCE = 2.0, 60.0
_EVALUATED = 60


class DraftCases:
    """Evolutions of the desk."""

    def __init__(self, canary: Canary) -> None:
        self.environment = Desk()
        self.evaluated = self.environment.tasks("eval", _EVALUATED)
        self.exclusions = Exclusions.of(self.evaluated)
        self.tasks = [
            task
            for task in self.environment.tasks("seed", 200)
            if 3 <= len(task.solution) <= 6 and not self.exclusions.find_rule(task)
        ]
        self.popularity = self.environment.popularity()

    def supervisors(self) -> tuple[int, ...]:
        return ()

    def close(self) -> None:
        pass

    def case(self, id: str, seed: int) -> Case:
        model = self._behaviour(draw(seed, id))
        return Case(id, model.trick, Task("desk", "", model.setup), (), "any")

    def examine(self, case: Case, seed: int) -> list[Violation]:
        """Runs the evolution; a violation where too many or too few of its drafts became tasks."""
        model = self._behaviour(draw(seed, case.id))
        found: list[Synthesis] = []
        errors: list[str] = []

        def evolve() -> None:
            try:
                found.append(self._evolve(model))
            except BaseException as error:
                errors.append(f"{type(error).__name__}: {error}"[:300])

        worker = threading.Thread(target=evolve, daemon=True)
        worker.start()
        worker.join(_PATIENCE)
        name = f"draft, {model.trick}"
        if errors or not found:
            reason = errors[0] if errors else f"no end within {_PATIENCE:.0f} s"
            return [Violation("lost", case.id, f"{name}: {reason}")]
        most, least = model.enters
        count = len(found[0].tasks)
        if not least <= count <= most:
            verdicts = [
                f"{record['draft']['query'][:100]!r}: {record['verdict']['evidence'][-1]}" for record in found[0].drafts
            ]
            return [Violation("forged", case.id, f"{name}: {count} tasks enter the pool; {'; '.join(verdicts)}")]
        return []

    def _evolve(self, model: Behaviour) -> Synthesis:
        solution = [*model.tour, Call("finish", _answer(model))]
        parent = Task("desk", "do something", model.setup, tuple(Action(calls=(call,)) for call in solution))
        failed = (
            Action(calls=(Call("files_move", {"file": "ghost", "folder": "taxes"}),)),
            Action(calls=(solution[-1],)),
        )
        episode = play(self.environment, parent, follow(failed), max_turns=2, episode="3-x-0")
        signal = Signal("boundary", parent.id, "3-x-0", "1 of 4 runs earned full reward", ())
        with serving(_script(model, solution)) as server:
            settings = LLMSettings(f"{server.url}/v1", "m", timeout=_TIMEOUT, max_tokens=200)
            explorer = LLMExplorer(
                ChatClient(settings, attempts=2),
                runs=1,
                width=1,
                steps=len(model.tour),
                attempt_turns=len(solution) + 1,
            )
            validate = Validation(
                self.environment, self.exclusions, attempts=Attempts(LLMExplorer.attempters, 1, 8), safe=True
            )
            inputs = EvolutionInputs(
                self.environment, explorer, [signal], ["3-x-0"], lambda id: episode, self.popularity, 8, (0, 9)
            )
            return synthesize(
                around_signals(inputs), self.environment, explorer, validate, lambda id: False,
                budget=9, per_context=9, seed=(0, 9), step=10,
            )  # fmt: skip

    def _behaviour(self, rng: random.Random) -> Behaviour:
        task = rng.choice(self.tasks)
        tour = tuple(call for action in task.solution[:-1] for call in action.calls)
        answer = dict(task.solution[-1].calls[0].arguments).get("answer", "")
        draft = {"description": "x", "query": task.query, "steps": list(range(1, len(tour) + 1)), "answer": answer,
                 "criterion": "it is done"}  # fmt: skip
        # A look-up that only decides between two branches, or is made twice, is superfluous by the letter of the rule.
        plain = not any(part.startswith("if ") for part in task.query.split(", then ")) and len(tour) == len(
            {json.dumps([call.name, dict(call.arguments)], sort_keys=True) for call in tour}
        )
        honest = Behaviour("honest", task.setup, tour, (draft,), {}, (1, int(plain)))
        own = (self.honest, self.disguised, self.disguised, self.planned, self.unrelated)
        return rng.choice((*own, *BEHAVIOURS))(rng, honest, draft)

    def honest(self, rng: random.Random, model: Behaviour, draft: dict[str, Any]) -> Behaviour:
        return dataclasses.replace(model, drafts=(draft,) * rng.choice((1, 3)))

    def disguised(self, rng: random.Random, model: Behaviour, draft: dict[str, Any]) -> Behaviour:
        """An evaluation task's query in disguise."""
        query = rng.choice(self.evaluated).query
        name = rng.choice(sorted(DISGUISES))
        return refused(model, f"an evaluation task's query, {name}", {**draft, "query": DISGUISES[name](query)})

    def planned(self, rng: random.Random, model: Behaviour, draft: dict[str, Any]) -> Behaviour:
        """An evaluation task's plan behind a harmless look-up."""
        task = rng.choice([task for task in self.evaluated if len(task.solution) > 1])
        calls = tuple(call for action in task.solution[:-1] for call in action.calls)
        tour = (look(rng, task.setup), *calls)
        answer = dict(task.solution[-1].calls[0].arguments).get("answer", "")
        words = ", and ".join(
            " ".join((call.name.replace("_", " "), *map(str, call.arguments.values()))) for call in tour
        )
        stolen = {**draft, "query": words, "steps": list(range(1, len(tour) + 1)), "answer": answer}
        planned = refused(model, "an evaluation task's plan behind a look-up", stolen)
        return dataclasses.replace(planned, setup=task.setup, tour=tour)

    def unrelated(self, rng: random.Random, model: Behaviour, draft: dict[str, Any]) -> Behaviour:
        """The query of another task, none of which the solution does."""
        mine = {str(value) for call in model.tour for value in call.arguments.values()}
        others = [task.query for task in self.tasks if not mine & set(task.query.replace(",", " ").split())]
        return refused(model, "an unrelated query", {**draft, "query": rng.choice(others or ["what a fine day"])})


def _answer(model: Behaviour) -> dict[str, str]:
    answer = model.drafts[0].get("answer", "") if model.drafts else ""
    return {"answer": answer} if answer else {}


def _script(model: Behaviour, solution: list[Call]) -> Script:
    """The model, at whatever stage it is asked."""

    def script(path: str, body: Any, before: int, connection: socket.socket) -> bytes | None:
        asked = body["messages"][0]["content"]
        stage = next((name for name, words in STAGES.items() if asked.startswith(words)), "")
        if stage in model.instead:
            return model.instead[stage] or None
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        calls = list(model.tour) if stage == "explore" else solution
        call = calls[min(turn, len(calls) - 1)]
        move = {"thought": "next", "tool": call.name, "arguments": dict(call.arguments)}
        value = {"reflect": _REFLECTION, "abstract": {"drafts": list(model.drafts)}}.get(stage, move)
        return answered(completion(json.dumps(value)))

    return script

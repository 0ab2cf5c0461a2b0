"""Suite `attackers`: what each attacker refuses of the drafts that validation accepts, and what it costs.

Drafts are those of the desk's explorers, judged by the desk and by judges with a hole, which only attackers notice.
"""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.results import Row
from cojax import worlds
from cojax.environment import Charted, Environment, Episode
from cojax.environment.wrapping import Wrapped
from cojax.explorer.scripted.explorer import ScriptedExplorer
from cojax.types import Check, Evaluation, Task, TaskDraft
from cojax.validation import Validation
from environments.audit.attackers import ATTACKERS
from environments.audit.examination import FOR_DRAFTS, Examination
from environments.desk.office import FINISH
from experiments.study.careless import CarelessExplorer

# The share of drafts that the careless explorer confuses, as in the study.
_MISTAKES = 0.5


def _takes_part_of_answer(task: Task, state: Mapping[str, Any], check: Check) -> bool:
    answers = [call.arguments.get("answer") for action in task.solution for call in action.calls if call.name == FINISH]
    return check.passed or (check.name == "answer" and str(state["answer"]) in str(answers[-1]))


# Judge → whether it holds a check of the desk's for passed.
JUDGES: Mapping[str, Callable[[Task, Mapping[str, Any], Check], bool]] = {
    "sound": lambda task, state, check: check.passed,
    "takes a part of the answer": _takes_part_of_answer,
    "forgets what else changed": lambda task, state, check: check.passed or check.name == "nothing else changed",
}
_METHODS = ("reset", "tools", "step", "state", "affordances", "close")


def attackers(*, drafts: int = 200) -> list[Row]:
    """`drafts` drafts of each explorer before each judge: accepted without attackers, and refused by each of them.

    Seconds are those of a draft that is accepted. The attackers share a survey of the task.
    """
    return [row for judge in JUDGES for row in _measure_judge(judge, drafts)]


def _measure_judge(judge: str, draft_count: int) -> Iterator[Row]:
    environment, desk = _judge_otherwise(judge), cast(Charted, worlds.load("desk"))
    careful = ScriptedExplorer(neighbours=desk.neighbours)
    careless = CarelessExplorer(neighbours=desk.neighbours, mistakes=_MISTAKES, name="careless")
    for explorer in (careful, careless):
        validate, refusals, seconds = Validation(environment), Counter[str](), Counter[str]()
        drafts = list(itertools.islice(_list_drafts(environment, explorer, desk.popularity()), draft_count))
        started_at = time.perf_counter()
        tasks = [task for draft in drafts if (task := validate(draft, lambda id: False, explorer)[1])]
        validation_s = time.perf_counter() - started_at
        for task in tasks:
            examination = Examination(environment, {name: ATTACKERS[name] for name in FOR_DRAFTS})
            examination.examine([task])
            refusals.update({finding.attacker for finding in examination.findings})
            refusals["any"] += bool(examination.findings)
            seconds.update(examination.player.seconds)
        row: dict[str, object] = {"judge": judge, "explorer": explorer.name, "accepted": len(tasks)}
        row |= {f"refused_by_{name}": refusals[name] for name in (*FOR_DRAFTS, "any")}
        row |= {"validation_seconds": validation_s / len(drafts)}
        yield row | {f"{name}_seconds": seconds[name] / len(tasks) for name in ("survey", *FOR_DRAFTS)}


def _list_drafts(
    environment: Environment, explorer: ScriptedExplorer, weights: Mapping[str, float]
) -> Iterator[TaskDraft]:
    """Drafts with different queries, two of each exploration at most."""
    queries: set[str] = set()
    for number, setup in enumerate(itertools.cycle(environment.tasks("seed", 400))):
        task = dataclasses.replace(setup, query="", solution=())
        exploration = explorer.explore(environment, task, None, ("attackers", number), weights)
        for draft in explorer.abstract(exploration, environment, 2):
            if draft.query not in queries:
                queries.add(draft.query)
                yield draft


def _judge_otherwise(judge: str) -> Environment:
    desk, holds = worlds.load("desk"), JUDGES[judge]

    def start(task: Task) -> Episode:
        episode = desk.start(task)

        def evaluate() -> Evaluation:
            verdict = episode.evaluate()
            passed = [holds(task, episode.state(), check) for check in verdict.checks]
            return dataclasses.replace(verdict, reward=float(bool(passed) and all(passed)))

        calls = {method: getattr(episode, method) for method in _METHODS}
        return cast(Episode, SimpleNamespace(**calls, evaluate=evaluate))

    return Wrapped(desk, start)

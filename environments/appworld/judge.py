"""The worker that reaches verdicts: on a root with ground truth, in worlds where no model's code ever ran.

It replays a model's calls and judges them by their effects. So the process that ran the code can claim only calls that
honest code could have made.

The effects are the changes in the databases of a world, as JSON. Equal actions give equal JSON. So the effects leave
out everything that may differ between two worlds after equal actions:

- the id of an added row, and ids that refer to it: the row's content takes their place
- times (`…_at`, of which only their presence counts, for example for a denied request), unless a user chooses them
  (`scheduled_send_at`); `…_expiry` and `last_logged_in`
- codes drawn at random (invitations, confirmations, verifications) and contents of made-up binary files
- the order of rows

A row did not change if only these columns did. Like the benchmark, this ignores the instruction's own row and the cards
of the people behind it.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cojax.types import Call, Check, Evaluation, Message, Observation, Task, canonical
from ..worker.served import Episodes, PlainEpisode
from . import world
from .report import finite, partial_reward
from .world import World


def make(data: str) -> Episodes:
    """The environment that replays calls and judges, on a data folder with ground truth.

    An action's calls are recorded calls, which are replayed in order. The setup is {"task": id}. A check may give a
    whole split, {"dataset": split, "made": task id → its calls as [name, arguments of the replay]}. Then the state is
    the benchmark's own verdict: `task_goal_completion` and `scenario_goal_completion`, in percent.
    """
    world.warm(data)

    def start(task: Task) -> PlainEpisode:
        world.settle(data)
        if "dataset" in task.setup:
            return PlainEpisode(lambda action: Observation(), state=lambda: _figures(data, **task.setup))
        app_world = World(data, task.setup["task"])
        return PlainEpisode(
            lambda action: replay(app_world, action.calls),
            state=lambda: changes(app_world.stock),
            evaluate=functools.partial(_verdict, app_world),
        )

    return Episodes("appworld", start)


def _verdict(app_world: World) -> Evaluation:
    """Runs the benchmark's own tests, each of which is a check; the reward is 1.0 if all pass.

    The benchmark labels the tests that an episode without any action passes (`no_op_pass`). In the partial reward,
    failures of these count as forbidden changes, and the other tests are the targets.
    """
    from appworld.evaluator import evaluate_task
    from appworld.ground_truth import GroundTruth

    app_world.save()
    tests = GroundTruth.load(task_id=app_world.id).test_data
    try:
        tracker = evaluate_task(app_world.id, app_world.stock.experiment_name, save_report=False)
    except Exception as error:
        # The calls can leave a state that a test does not expect.
        return Evaluation(0.0, (Check(f"the tests ran ({type(error).__name__})", False),))
    successes = [test["requirement"] for test in tracker.passes]
    checks = tuple(Check(test["requirement"], test["requirement"] in successes) for test in tests)
    guards = [test["label"] == "no_op_pass" for test in tests]
    results = list(zip(guards, (check.passed for check in checks), strict=True))
    partial = partial_reward(results.count((False, True)), guards.count(False), results.count((True, False)))
    return Evaluation(float(tracker.success), checks, partial)


def _figures(data: str, dataset: str, made: Mapping[str, Sequence[Any]]) -> Mapping[str, Any]:
    from appworld.evaluator import evaluate_dataset

    for task, calls in made.items():
        app_world = World(data, task)
        replay(app_world, [Call(name, arguments) for name, arguments in calls])
        app_world.save()
        app_world.close()
    return evaluate_dataset(app_world.stock.experiment_name, dataset, save_reports=False)["aggregate"]


def replay(app_world: World, calls: Sequence[Call]) -> Observation:
    """Replays the calls; a message names each call that is answered differently than before.

    It skips a call that no code could have made, and the observation is then not ok.
    """
    differing, ok = [], True
    for call in calls:
        app, _, api = call.name.partition(".")
        try:
            # Without a digest, the code saw no reply, for example because its time was over.
            is_alike = call.arguments["digest"] in (app_world.call(app, api, call.arguments["arguments"]), "")
        except (ValueError, TypeError, KeyError):
            is_alike = ok = False
        if not is_alike:
            differing.append(Message("differing", call.name))
    return Observation(tuple(differing), ok, app_world.is_complete)


_VOLATILE = re.compile(
    r"^(id|record_hash|last_logged_in|.*_expiry|(verification|password_reset|invitation|invite|confirmation)_code)$"
)
_WHEN = re.compile(r"^(?!scheduled_send).*_at$")
# The package draws these in place of contents that it does not store.
_MADE_UP = re.compile(r"binary:\w{10}\.\.\.")
# References between new rows are followed to this depth.
_DEPTH = 4
# The answer that `complete_task` stores if it gets none.
_NO_ANSWER = '"<<NOT_GIVEN>>"'


def changes(stock: Any) -> dict[str, Any]:
    """The rows added, removed and changed since the world was opened, by table; and the answer and status of its task.

    `stock` is an open AppWorld, which stays unchanged.
    """
    from appworld.collections.models import ModelCollectionPair

    stock.models.clear_ids_record_hashes()
    start = stock.task.model_collection
    pair = ModelCollectionPair(start.from_db_home_path, start, stock.models.to_db_home_path, stock.models)
    try:
        tables = {name: pair.changed_records(name) for name in sorted(pair.changed_model_names())}
        new_rows = {(name, row.id): row for name, (rows, _, _) in tables.items() for row in rows}
        entries = {name: entry for name, rows in tables.items() if (entry := _table(pair, name, rows, new_rows))}
        task = pair.end.supervisor.Task.all()[0]
    finally:
        # Reading the start state pointed every model at it.
        stock.models.reset_db_home_path()
    answer = None if task.answer == _NO_ANSWER else json.loads(task.answer, parse_constant=str, parse_float=finite)
    return {"tables": entries, "answer": answer, "status": task.status}


Added = Mapping[tuple[str, Any], Any]  # a table and an id → the added row


def _table(pair: Any, name: str, rows: tuple[list[Any], list[Any], list[Any]], new: Added) -> dict[str, list[Any]]:
    """The rows added, changed (id and new values) and removed (id); a part without rows is left out."""
    app, _, kind = name.partition(".")
    additions, updates, removals = rows
    old_rows = {row.id: row for row in pair.start[app][kind].by_ids([row.id for row in updates])}
    differences = []
    for row in updates:
        old, current = _columns(app, old_rows[row.id], new), _columns(app, row, new)
        if differing := {column: current[column] for column in current if current[column] != old[column]}:
            differences.append({"id": row.id, **differing})
    entry = {
        "added": [_columns(app, row, new) for row in additions],
        "changed": differences,
        "removed": [{"id": row.id} for row in removals],
    }
    return {part: sorted(records, key=canonical) for part, records in entry.items() if records}


def _columns(app: str, row: Any, new: Added, depth: int = 0) -> dict[str, Any]:
    """A row's columns, without those that may differ between equal worlds."""
    from appworld.common.utils import modelize

    mapping = type(row).field_mapping()

    def reference(stem: str, value: Any) -> Any:
        """The id of an original row, or the content of an added row."""
        name = mapping.get(f"{stem}_id", mapping.get(f"{stem}_ids", stem))
        kind = modelize(name.removesuffix("_ids").removesuffix("_id"))
        if (added_row := new.get((f"{app}.{kind}", value))) is None:
            return value
        return "new" if depth >= _DEPTH else {"new": _columns(app, added_row, new, depth + 1)}

    def plain(column: str, value: Any) -> Any:
        if _WHEN.match(column):
            return value is not None
        if isinstance(value, str) and _MADE_UP.fullmatch(value):
            return "binary"
        if isinstance(value, dict):
            return {name: plain(name, inner) for name, inner in value.items()}
        if column.endswith("_ids") and isinstance(value, list):
            return [reference(column.removesuffix("_ids"), item) for item in value]
        return reference(column.removesuffix("_id"), value) if column.endswith("_id") else value

    values = json.loads(json.dumps(row.dict(), default=str))
    return {column: plain(column, value) for column, value in sorted(values.items()) if not _VOLATILE.match(column)}

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
from .report import finite, score_partially
from .world import World


def make(data: str) -> Episodes:
    """The environment that replays calls and judges, on a data folder with ground truth.

    An action's calls are recorded calls, which are replayed in order. The setup is {"task": id}. A check may give a
    whole split, {"dataset": split, "replays": task id → its calls as [name, arguments of the replay]}. Then the state
    is the benchmark's own verdict: `task_goal_completion` and `scenario_goal_completion`, in percent.
    """
    world.import_package(data)

    def start(task: Task) -> PlainEpisode:
        world.make_own_root(data)
        if "dataset" in task.setup:
            return PlainEpisode(lambda action: Observation(), state=lambda: _evaluate_split(data, **task.setup))
        app_world = World(data, task.setup["task"])
        return PlainEpisode(
            lambda action: replay(app_world, action.calls),
            state=lambda: diff_world(app_world.stock),
            evaluate=functools.partial(_run_tests, app_world),
        )

    return Episodes("appworld", start)


def _run_tests(app_world: World) -> Evaluation:
    """Runs the benchmark's own tests, each of which is a check; the reward is 1.0 if all pass.

    The benchmark labels the tests that an episode without any action passes (`no_op_pass`). In the partial reward,
    failures of these count as forbidden changes, and the other tests are the targets.
    """
    from appworld.evaluator import evaluate_task
    from appworld.ground_truth import GroundTruth

    app_world.save()
    test_data = GroundTruth.load(task_id=app_world.id).test_data
    try:
        tracker = evaluate_task(app_world.id, app_world.stock.experiment_name, save_report=False)
    except Exception as error:
        # The calls can leave a state that a test does not expect.
        return Evaluation(0.0, (Check(f"the tests ran ({type(error).__name__})", False),))
    passed_requirements = [test["requirement"] for test in tracker.passes]
    checks = tuple(Check(test["requirement"], test["requirement"] in passed_requirements) for test in test_data)
    guard_flags = [test["label"] == "no_op_pass" for test in test_data]
    outcomes = list(zip(guard_flags, (check.passed for check in checks), strict=True))
    partial = score_partially(outcomes.count((False, True)), guard_flags.count(False), outcomes.count((True, False)))
    return Evaluation(float(tracker.success), checks, partial)


def _evaluate_split(data_folder: str, dataset: str, replays: Mapping[str, Sequence[Any]]) -> Mapping[str, Any]:
    from appworld.evaluator import evaluate_dataset

    for task_id, call_records in replays.items():
        app_world = World(data_folder, task_id)
        replay(app_world, [Call(call_name, arguments) for call_name, arguments in call_records])
        app_world.save()
        app_world.close()
    return evaluate_dataset(app_world.stock.experiment_name, dataset, save_reports=False)["aggregate"]


def replay(app_world: World, calls: Sequence[Call]) -> Observation:
    """Replays the calls; a message names each call that is answered differently than before.

    It skips a call that no code could have made, and the observation is then not ok.
    """
    messages, ok = [], True
    for call in calls:
        app, _, api = call.name.partition(".")
        try:
            # Without a digest, the code saw no reply, for example because its time was over.
            is_alike = call.arguments["digest"] in (app_world.call(app, api, call.arguments["arguments"]), "")
        except (ValueError, TypeError, KeyError):
            is_alike = ok = False
        if not is_alike:
            messages.append(Message("differing", call.name))
    return Observation(tuple(messages), ok, app_world.is_complete)


_VOLATILE = re.compile(
    r"^(id|record_hash|last_logged_in|.*_expiry|(verification|password_reset|invitation|invite|confirmation)_code)$"
)
_TIME_COLUMN = re.compile(r"^(?!scheduled_send).*_at$")
# The package draws these in place of contents that it does not store.
_MADE_UP_CONTENT = re.compile(r"binary:\w{10}\.\.\.")
# References between new rows are followed to this depth.
_MAX_REFERENCE_DEPTH = 4
# The answer that `complete_task` stores if it gets none.
_NO_ANSWER_JSON = '"<<NOT_GIVEN>>"'


def diff_world(stock: Any) -> dict[str, Any]:
    """The rows added, removed and changed since the world was opened, by table; and the answer and status of its task.

    `stock` is an open AppWorld, which stays unchanged.
    """
    from appworld.collections.models import ModelCollectionPair

    stock.models.clear_ids_record_hashes()
    start_models = stock.task.model_collection
    pair = ModelCollectionPair(start_models.from_db_home_path, start_models, stock.models.to_db_home_path, stock.models)
    try:
        tables = {table: pair.changed_records(table) for table in sorted(pair.changed_model_names())}
        added_rows = {(table, row.id): row for table, (rows, _, _) in tables.items() for row in rows}
        entries = {
            table: entry for table, rows in tables.items() if (entry := _diff_table(pair, table, rows, added_rows))
        }
        task = pair.end.supervisor.Task.all()[0]
    finally:
        # Reading the start state pointed every model at it.
        stock.models.reset_db_home_path()
    answer = None if task.answer == _NO_ANSWER_JSON else json.loads(task.answer, parse_constant=str, parse_float=finite)
    return {"tables": entries, "answer": answer, "status": task.status}


Rows = Mapping[tuple[str, Any], Any]  # a table and an id → the added row


def _diff_table(
    pair: Any, table: str, rows: tuple[list[Any], list[Any], list[Any]], added: Rows
) -> dict[str, list[Any]]:
    """The rows added, changed (id and new values) and removed (id); a part without rows is left out."""
    app, _, model_name = table.partition(".")
    added_rows, updated_rows, removed_rows = rows
    old_rows = {row.id: row for row in pair.start[app][model_name].by_ids([row.id for row in updated_rows])}
    changed_rows = []
    for row in updated_rows:
        before, after = _stable_columns(app, old_rows[row.id], added), _stable_columns(app, row, added)
        if changed_columns := {column: after[column] for column in after if after[column] != before[column]}:
            changed_rows.append({"id": row.id, **changed_columns})
    entry = {
        "added": [_stable_columns(app, row, added) for row in added_rows],
        "changed": changed_rows,
        "removed": [{"id": row.id} for row in removed_rows],
    }
    return {change_kind: sorted(kind_rows, key=canonical) for change_kind, kind_rows in entry.items() if kind_rows}


def _stable_columns(app: str, row: Any, added: Rows, depth: int = 0) -> dict[str, Any]:
    """A row's columns, without those that may differ between equal worlds."""
    from appworld.common.utils import modelize

    field_mapping = type(row).field_mapping()

    def resolve_id(id_field: str, value: Any) -> Any:
        """The id of an original row, or the content of an added row."""
        model_field = field_mapping.get(f"{id_field}_id", field_mapping.get(f"{id_field}_ids", id_field))
        model_name = modelize(model_field.removesuffix("_ids").removesuffix("_id"))
        if (added_row := added.get((f"{app}.{model_name}", value))) is None:
            return value
        return "new" if depth >= _MAX_REFERENCE_DEPTH else {"new": _stable_columns(app, added_row, added, depth + 1)}

    def clean(column: str, column_value: Any) -> Any:
        if _TIME_COLUMN.match(column):
            return column_value is not None
        if isinstance(column_value, str) and _MADE_UP_CONTENT.fullmatch(column_value):
            return "binary"
        if isinstance(column_value, dict):
            return {field: clean(field, nested_value) for field, nested_value in column_value.items()}
        if column.endswith("_ids") and isinstance(column_value, list):
            return [resolve_id(column.removesuffix("_ids"), row_id) for row_id in column_value]
        return resolve_id(column.removesuffix("_id"), column_value) if column.endswith("_id") else column_value

    values_by_column = json.loads(json.dumps(row.dict(), default=str))
    return {
        column: clean(column, value)
        for column, value in sorted(values_by_column.items())
        if not _VOLATILE.match(column)
    }

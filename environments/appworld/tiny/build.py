"""A data root: API documentation, databases, tasks with ground truth, splits, laid out as APPWORLD_ROOT."""

import json
import random
import re
import textwrap
from pathlib import Path
from typing import Any

from appworld.apps import get_all_apps
from appworld.collections.api_docs import ApiDocCollection
from appworld.collections.models import ModelCollection, ModelCollectionPair
from appworld.common.constants import CANARY_STRING, DB_VERSION
from appworld.common.utils import freeze_time
from appworld.evaluator import TestTracker
from munch import munchify

from .rows import ACCOUNTS, NOW, SUPERVISORS, Person, fill
from .scenarios import SCENARIOS, Scenario, TaskContent

SPLITS = ("train", "dev", "test_normal", "test_challenge")
TASKS_PER_SCENARIO = 3


def build(root: Path) -> list[str]:
    """Makes `root`/data, which must not exist yet, and returns the ids of its tasks.

    APPWORLD_ROOT must have been `root` at the first import of appworld, so a process can build only one root.
    """
    data = root / "data"
    data.mkdir()
    api_docs = ApiDocCollection.build(tuple(get_all_apps(skip_admin=True)))
    for app, app_docs in api_docs.items():
        marked_docs = {function: {**doc, "canary_string": CANARY_STRING} for function, doc in app_docs.items()}
        _write_file(data / "api_docs" / "standard" / f"{app}.json", marked_docs)
    with freeze_time(NOW):
        _write_base(data, api_docs)
        ids_by_scenario = {
            scenario: [_write_task(data, scenario, position, task_index) for task_index in range(TASKS_PER_SCENARIO)]
            for position, scenario in enumerate(SCENARIOS)
        }
    for split in SPLITS:
        ids = [task_id for scenario, ids in ids_by_scenario.items() if scenario.split == split for task_id in ids]
        _write_file(data / "datasets" / f"{split}.txt", "".join(f"{task_id}\n" for task_id in ids))
    return [task_id for ids in ids_by_scenario.values() for task_id in ids]


def _write_base(data: Path, api_docs: Any) -> None:
    """Writes the databases that all tasks start from."""
    app_names = get_all_apps()
    models = _load(":memory:base", ":memory:base", create_db=True)
    doc_rows = [
        models.api_docs.ApiDoc.create(app_name_=doc["app_name"], **{key: doc[key] for key in doc if key != "app_name"})
        for app_docs in api_docs.values()
        for doc in app_docs.values()
    ]
    models.api_docs.ApiDoc.save_all(doc_rows)
    fill(models)
    models.save(str(data / "base_dbs"), app_names=list(app_names), delete_if_exists=True, save_model_hashes=True)
    models.close()


def _write_task(data: Path, scenario: Scenario, position: int, task_index: int) -> str:
    """Writes one task of the scenario at `position`, and returns its id."""
    task_id = f"{scenario.id}_{task_index + 1}"
    task_folder = data / "tasks" / task_id
    person = SUPERVISORS[(position + task_index) % len(SUPERVISORS)]
    models = _load(f":memory:input-{task_id}", str(data / "base_dbs"))
    content = scenario.draw(models, person, task_index, random.Random(task_id))
    instruction = scenario.instruction.format(**content[0])
    _add_supervisor(models, person, instruction)
    models.save(str(task_folder / "dbs"), app_names=list(get_all_apps()), format="changes", save_model_hashes=True)
    models.close()
    specs = {
        "instruction": instruction,
        "supervisor": person.contact,
        "datetime": NOW.isoformat(),
        "db_version": DB_VERSION,
        "canary_string": CANARY_STRING,
    }
    _write_file(task_folder / "specs.json", specs)
    _write_ground_truth(task_folder, scenario, content, person)
    return task_id


def _load(to: str, source: str, **options: Any) -> Any:
    return ModelCollection.load(to_db_home_path=to, from_db_home_path=source, load_apps=list(get_all_apps()), **options)


def _add_supervisor(models: Any, person: Person, instruction: str) -> None:
    supervisor = models.supervisor.Supervisor.create_save(**person.contact, birthday=person.birthday, sex=person.sex)
    for app in ACCOUNTS:
        models.supervisor.AccountPassword.create_save(
            supervisor_id=supervisor.id, account_name=app, password=person.password(app)
        )
    models.supervisor.Task.create_save(supervisor_id=supervisor.id, instruction=instruction)


def _write_ground_truth(task_folder: Path, scenario: Scenario, content: TaskContent, person: Person) -> None:
    truth_folder, (public_data, private_data, answer) = task_folder / "ground_truth", content
    blocks = scenario.blocks(public_data)
    code = "def solution(apis, requester):\n" + textwrap.indent("\n".join(blocks), "    ")
    for file_stem, file_content in {
        "public_data": public_data,
        "private_data": private_data,
        "answer": answer,
        "required_apps": scenario.apps,
        "blocks": blocks,
        "metadata": {
            "mode": "full",
            "difficulty": scenario.difficulty,
            "num_apps": len(scenario.apps),
            "num_apis": len(set(re.findall(r"apis\.\w+\.\w+", code))),
            "num_solution_code_lines": code.count("\n"),
        },
        "test_data": _test_data(task_folder, scenario, content, person),
    }.items():
        _write_file(truth_folder / f"{file_stem}.json", file_content)
    for file_stem, source in {"evaluation": scenario.evaluation, "solution": code, "compiled_solution": code}.items():
        _write_file(truth_folder / f"{file_stem}.py", source)


def _test_data(folder: Path, scenario: Scenario, content: TaskContent, person: Person) -> list[dict[str, str]]:
    """Returns the requirements that the evaluation tests; a label says whether one is met if nothing was done."""
    dbs = str(folder / "dbs")
    start_models, end_models = _load(f":memory:start-{folder.name}", dbs), _load(f":memory:end-{folder.name}", dbs)
    models = ModelCollectionPair(start_models.from_db_home_path, start_models, end_models.to_db_home_path, end_models)
    tracker, evaluation_module, (public_data, private_data, answer) = TestTracker(), dict[str, Any](), content
    exec(scenario.evaluation, evaluation_module)
    evaluation_module["evaluate"](
        test=tracker,
        public_data=munchify(public_data),
        private_data=munchify(private_data),
        main_user=models.start.admin.MainUser.find_one(**person.contact),
        models=models,
        ground_truth_answer=answer,
    )
    start_models.close()
    end_models.close()
    by_label = {"no_op_fail": tracker.failures, "no_op_pass": tracker.passes}
    return [{"requirement": test["requirement"], "label": label} for label, tests in by_label.items() for test in tests]


def _write_file(path: Path, value: Any) -> None:
    """Writes JSON to a .json file, and text to any other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if path.suffix != ".json" else json.dumps(value, indent=1))

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
    docs = ApiDocCollection.build(tuple(get_all_apps(skip_admin=True)))
    for app, functions in docs.items():
        documents = {name: {**doc, "canary_string": CANARY_STRING} for name, doc in functions.items()}
        _write(data / "api_docs" / "standard" / f"{app}.json", documents)
    with freeze_time(NOW):
        _base(data, docs)
        tasks = {
            scenario: [_task(data, scenario, place, number) for number in range(TASKS_PER_SCENARIO)]
            for place, scenario in enumerate(SCENARIOS)
        }
    for split in SPLITS:
        ids = [task for scenario, ids in tasks.items() if scenario.split == split for task in ids]
        _write(data / "datasets" / f"{split}.txt", "".join(f"{task}\n" for task in ids))
    return [task for ids in tasks.values() for task in ids]


def _base(data: Path, docs: Any) -> None:
    """The databases that all tasks start from."""
    apps = get_all_apps()
    models = _load(":memory:base", ":memory:base", create_db=True)
    rows = [
        models.api_docs.ApiDoc.create(app_name_=doc["app_name"], **{key: doc[key] for key in doc if key != "app_name"})
        for functions in docs.values()
        for doc in functions.values()
    ]
    models.api_docs.ApiDoc.save_all(rows)
    fill(models)
    models.save(str(data / "base_dbs"), app_names=list(apps), delete_if_exists=True, save_model_hashes=True)
    models.close()


def _task(data: Path, scenario: Scenario, place: int, number: int) -> str:
    """Writes one task of a scenario, the `place`-th, and returns its id."""
    task = f"{scenario.id}_{number + 1}"
    folder = data / "tasks" / task
    person = SUPERVISORS[(place + number) % len(SUPERVISORS)]
    models = _load(f":memory:input-{task}", str(data / "base_dbs"))
    content = scenario.draw(models, person, number, random.Random(task))
    instruction = scenario.instruction.format(**content[0])
    _supervise(models, person, instruction)
    models.save(str(folder / "dbs"), app_names=list(get_all_apps()), format="changes", save_model_hashes=True)
    models.close()
    specs = {
        "instruction": instruction,
        "supervisor": person.contact,
        "datetime": NOW.isoformat(),
        "db_version": DB_VERSION,
        "canary_string": CANARY_STRING,
    }
    _write(folder / "specs.json", specs)
    _ground_truth(folder, scenario, content, person)
    return task


def _load(to: str, source: str, **options: Any) -> Any:
    return ModelCollection.load(to_db_home_path=to, from_db_home_path=source, load_apps=list(get_all_apps()), **options)


def _supervise(models: Any, person: Person, instruction: str) -> None:
    supervisor = models.supervisor.Supervisor.create_save(**person.contact, birthday=person.birthday, sex=person.sex)
    for app in ACCOUNTS:
        models.supervisor.AccountPassword.create_save(
            supervisor_id=supervisor.id, account_name=app, password=person.password(app)
        )
    models.supervisor.Task.create_save(supervisor_id=supervisor.id, instruction=instruction)


def _ground_truth(folder: Path, scenario: Scenario, content: TaskContent, person: Person) -> None:
    truth, (public, private, answer) = folder / "ground_truth", content
    blocks = scenario.blocks(public)
    code = "def solution(apis, requester):\n" + textwrap.indent("\n".join(blocks), "    ")
    for name, value in {
        "public_data": public,
        "private_data": private,
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
        "test_data": _test_data(folder, scenario, content, person),
    }.items():
        _write(truth / f"{name}.json", value)
    for name, source in {"evaluation": scenario.evaluation, "solution": code, "compiled_solution": code}.items():
        _write(truth / f"{name}.py", source)


def _test_data(folder: Path, scenario: Scenario, content: TaskContent, person: Person) -> list[dict[str, str]]:
    """The requirements that the evaluation tests, each with its label: whether it is met if nothing was done."""
    dbs = str(folder / "dbs")
    start, end = _load(f":memory:start-{folder.name}", dbs), _load(f":memory:end-{folder.name}", dbs)
    models = ModelCollectionPair(start.from_db_home_path, start, end.to_db_home_path, end)
    tracker, module, (public, private, answer) = TestTracker(), dict[str, Any](), content
    exec(scenario.evaluation, module)
    module["evaluate"](
        test=tracker,
        public_data=munchify(public),
        private_data=munchify(private),
        main_user=models.start.admin.MainUser.find_one(**person.contact),
        models=models,
        ground_truth_answer=answer,
    )
    start.close()
    end.close()
    labels = {"no_op_fail": tracker.failures, "no_op_pass": tracker.passes}
    return [{"requirement": test["requirement"], "label": label} for label, tests in labels.items() for test in tests]


def _write(path: Path, value: Any) -> None:
    """Writes JSON to a .json file, and text to any other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if path.suffix != ".json" else json.dumps(value, indent=1))

"""Reads the installed wheel: tasks, documentation, APIs and checker. Only this file imports the wheel.

`load` reads everything, so that children forked later open no file. The official store of instances is never
used: it is not cleared between visits, so that correct replays fail on a second visit.
"""

import copy
import dataclasses
import datetime
import importlib
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..tools.toolset import to_document

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
CLASSES = (
    "GorillaFileSystem", "MathAPI", "MessageAPI", "TwitterAPI", "TicketAPI", "TradingBot", "TravelAPI",
    "VehicleControlAPI",
)  # fmt: skip
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_CHECKER_PACKAGE = "bfcl_eval.eval_checker.multi_turn_eval"


@dataclasses.dataclass(frozen=True)
class Official:
    """The content of the wheel. `documentation` is by class, in the official order, in OpenAI function format.

    `entries` are by category. Each is an official task and its answer, as in the wheel's files.
    """

    documentation: Mapping[str, tuple[Mapping[str, Any], ...]]
    entries: Mapping[str, tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]]
    apis: Mapping[str, type]
    max_steps: int  # steps with calls in a turn before the dialogue is cut
    same_state: Callable[[dict, dict], Mapping[str, Any]]
    same_responses: Callable[[list, list, int], Mapping[str, Any]]

    def make_instances(self, classes: Sequence[str], config: Mapping[str, Any], is_long: bool) -> dict[str, Any]:
        """New instances of these classes. Raises ValueError for an unknown class, or a `config` that does not load."""
        if unknown := set(classes) - set(self.apis):
            raise ValueError(f"setup names the classes {sorted(unknown)}; the benchmark has {', '.join(CLASSES)}")
        instances = {}
        for class_name in classes:
            instance = self.apis[class_name]()
            if class_name != "MathAPI":
                try:
                    instance._load_scenario(copy.deepcopy(config.get(class_name, {})), long_context=is_long)
                except Exception as error:
                    raise ValueError(f"{class_name} does not load the setup's configuration: {error}") from error
            instances[class_name] = instance
        # Long scenarios share objects of their module: a booking in one episode would be visible in the next.
        return copy.deepcopy(instances)

    def parameters(self, class_name: str, tool_name: str) -> tuple[str, ...]:
        """The parameters of a tool of the class `class_name`, in the order of the tool's signature."""
        return tuple(inspect.signature(vars(self.apis[class_name])[tool_name]).parameters)[1:]


def load() -> Official:
    """Reads the installed wheel. Raises ModuleNotFoundError, which says what to do, if there is none."""
    # The wheel makes folders on import; here they are temporary, and not among the installed packages.
    with tempfile.TemporaryDirectory(prefix="bfcl-") as package_folder:
        os.environ["BFCL_PROJECT_ROOT"] = package_folder
        try:
            checker = importlib.import_module(f"{_CHECKER_PACKAGE}.multi_turn_checker")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{error}: this runs inside the benchmark's virtual environment; cojax install bfcl"
            ) from error
        backend = importlib.import_module("bfcl_eval.constants.executable_backend_config")
        prompt_module = importlib.import_module("bfcl_eval.constants.default_prompts")
        apis = {name: vars(importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name]))[name] for name in CLASSES}
        del os.environ["BFCL_PROJECT_ROOT"]
    # The first use imports modules, which must not happen in a child.
    datetime.datetime.strptime("2024", "%Y")
    data = Path(inspect.getfile(checker)).parents[2] / "data"
    docs = data / "multi_turn_func_doc"
    return Official(
        documentation={
            name: tuple(map(_convert, _read(docs / backend.MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]))) for name in CLASSES
        },
        entries={
            category: tuple(zip(_read(data / file_name), _read(data / "possible_answer" / file_name), strict=True))
            for category in CATEGORIES
            for file_name in [f"BFCL_v4_multi_turn_{category}.json"]
        },
        apis=apis,
        max_steps=prompt_module.MAXIMUM_STEP_LIMIT + 1,
        same_state=checker.state_checker,
        same_responses=checker.response_checker,
    )


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _convert(tool_doc: Mapping[str, Any]) -> Mapping[str, Any]:
    """The documentation as an OpenAI function. Like the benchmark, it leaves out the description of the response."""
    return to_document(tool_doc["name"], tool_doc["description"], _to_json_schema(tool_doc["parameters"]))


def _to_json_schema(schema_node: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(schema_node)
    type_name = schema.pop("type", None)
    if type_name is not None and type_name != "any":
        schema["type"] = _JSON_TYPES.get(type_name, type_name)
    if "properties" in schema:
        schema["properties"] = {name: _to_json_schema(subschema) for name, subschema in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = _to_json_schema(schema["items"])
    return schema

"""Reads calls from literal-only Python, limits them, runs them on an episode's APIs; renders results and states."""

import ast
import copy
import dataclasses
import inspect
import itertools
import json
import math
import pickle
from collections.abc import Callable, Collection, Mapping
from typing import Any

from cojax.types import Call, canonical, content_hash

# Limits on arguments; a call beyond them gets an error.
_MAX_ARGUMENT_DEPTH = 16
_MAX_ARGUMENT_VALUES = 5_000
_MAX_ARGUMENT_CHARS = 100_000
_MAX_NUMBER = 10**300
# A longer result is cut here.
_MAX_RESULT_CHARS = 200_000

ERROR_PREFIX = "Error during execution: "


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name, positional and keyword arguments of one call written in Python.

    Raises ValueError for anything but a bare name called with literals that JSON has. Attributes, nested calls, stars
    and operators are refused.
    """
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("it is no call of a bare name")
        keywords = {keyword.arg: _read_literal(keyword.value) for keyword in node.keywords if keyword.arg is not None}
        if len(keywords) < len(node.keywords):
            raise ValueError("it has a starred or repeated argument")
        return node.func.id, list(map(_read_literal, node.args)), keywords
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:100]!r} is not read: expected name(argument=literal, ...), each name once") from error


def _read_literal(node: ast.expr) -> Any:
    """The value of a literal as JSON. Raises ValueError or TypeError if the node is none."""
    key_nodes = [key_node for subnode in ast.walk(node) if isinstance(subnode, ast.Dict) for key_node in subnode.keys]
    if not all(isinstance(key_node, ast.Constant) and isinstance(key_node.value, str) for key_node in key_nodes):
        raise ValueError("a key of a dictionary is no text")
    return json.loads(json.dumps(ast.literal_eval(node)))


def explain_refusal(arguments: Mapping[str, Any]) -> str:
    """Says why these arguments are refused; "" if they are accepted."""
    value_count, character_count, pending_values = 0, 0, [(1, item) for pair in arguments.items() for item in pair]
    while pending_values:
        depth, value = pending_values.pop()
        value_count += 1
        if value_count > _MAX_ARGUMENT_VALUES:
            return f"more than {_MAX_ARGUMENT_VALUES} values in the arguments"
        if depth > _MAX_ARGUMENT_DEPTH:
            return f"arguments nested deeper than {_MAX_ARGUMENT_DEPTH}"
        if isinstance(value, str):
            character_count += len(value)
        elif isinstance(value, Mapping):
            pending_values += [(depth + 1, item) for pair in value.items() for item in pair]
        elif isinstance(value, (list, tuple)):
            pending_values += [(depth + 1, item) for item in value]
        elif isinstance(value, float) and not math.isfinite(value):
            return "an argument is no finite number"
        elif isinstance(value, int) and abs(value) > _MAX_NUMBER:
            return "a number is too large"
        elif value is not None and not isinstance(value, (bool, int, float)):
            return f"an argument is of type {type(value).__name__}; JSON has none"
        if character_count > _MAX_ARGUMENT_CHARS:
            return f"more than {_MAX_ARGUMENT_CHARS} characters in the arguments"
    return ""


def render(result: Any) -> str:
    """Renders the result as the benchmark does: text unchanged, a dict as JSON if possible, anything else by `str`."""
    if isinstance(result, str):
        text = result
    elif isinstance(result, dict):
        try:
            text = json.dumps(result)
        except (TypeError, ValueError, RecursionError):
            text = str(result)
    else:
        text = str(result)
    return (
        text
        if len(text) <= _MAX_RESULT_CHARS
        else f"{text[:_MAX_RESULT_CHARS]} [{len(text) - _MAX_RESULT_CHARS} characters cut]"
    )


def is_failure(result: Any) -> bool:
    """Whether an API reports a failure: an `error` entry, also in a list's only element, or text that begins so."""
    if isinstance(result, list) and len(result) == 1:
        result = result[0]
    return (isinstance(result, dict) and "error" in result) or (
        isinstance(result, str) and result.startswith(("Error:", ERROR_PREFIX))
    )


def shorten(value: Any, max_characters: int = 500) -> Any:
    """Returns the value, or its hash if its JSON is longer than `max_characters`. Equal values stay equal."""
    return value if len(canonical(value)) <= max_characters else f"hash:{content_hash(value)}"


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a call: its text, whether it worked, and the value behind the text."""

    text: str
    ok: bool
    value: Any = None


class Apis:
    """API instances by class, and the class of each tool. It runs only these tools."""

    def __init__(self, instances: Mapping[str, Any], class_of_tool: Mapping[str, str]):
        self.instances = dict(instances)
        self.class_of_tool = {tool: class_name for tool, class_name in class_of_tool.items() if class_name in instances}

    def run(self, call: Call, allowed_tools: Collection[str] | None = None, target_instance: Any = None) -> Result:
        """Runs the call if its tool is among `allowed_tools`, by default all. A failure of an API becomes a result.

        It runs on `target_instance` if one is given, else on the instance of the tool's class.
        """
        if call.name not in (self.class_of_tool if allowed_tools is None else allowed_tools):
            return Result(f"{ERROR_PREFIX}there is no function {call.name!r:.100}", ok=False)
        if reason := explain_refusal(call.arguments):
            return Result(f"{ERROR_PREFIX}{reason}", ok=False)
        instance = self.instances[self.class_of_tool[call.name]] if target_instance is None else target_instance
        method = vars(type(instance))[call.name]
        try:
            # A copy, as an API may store its arguments, and calls must not share a default list.
            value = method(instance, **copy.deepcopy({**_find_mutable_defaults(method), **call.arguments}))
            return Result(render(value), not is_failure(value), value)
        except Exception as error:
            return Result(render(f"{ERROR_PREFIX}{_write_error(error)}"), ok=False)

    def pickle_instances(self) -> bytes:
        """Pickles all instances as they are now. Raises RecursionError for endless folders."""
        return pickle.dumps(self.instances)

    def make_trial(self) -> Callable[[Call], Result]:
        """Returns a function that runs each call on a copy of the present instances. Raises RecursionError as above."""
        pickle_by_class = {class_name: pickle.dumps(instance) for class_name, instance in self.instances.items()}
        return lambda call: self.run(call, target_instance=pickle.loads(pickle_by_class[self.class_of_tool[call.name]]))


def _find_mutable_defaults(method: Callable[..., Any]) -> dict[str, Any]:
    """Finds default arguments that a call could change for all later ones."""
    return {
        parameter_name: parameter.default
        for parameter_name, parameter in inspect.signature(method).parameters.items()
        if isinstance(parameter.default, (list, dict, set))
    }


def _write_error(error: Exception) -> str:
    try:
        return str(error)
    except ValueError:
        return type(error).__name__


# Limits of a state: calls can put a folder inside itself, or into others many times over.
_MAX_STATE_DEPTH = 40
_MAX_STATE_VALUES = 20_000
# Larger numbers become hexadecimal: Python writes no decimal of more than 4,300 digits.
_MAX_DECIMAL = 10**4000


def copy_state(instance: Any) -> dict[str, Any]:
    """The public attributes of an instance, which the official checker compares."""
    value_counter = itertools.count(1)

    def convert_attributes(instance: Any, depth: int) -> dict[str, Any]:
        return {
            attribute: convert(value, depth + 1)
            for attribute, value in vars(instance).items()
            # A folder's position already shows its parent.
            if not attribute.startswith("_") and attribute != "parent"
        }

    def convert(value: Any, depth: int) -> Any:
        if next(value_counter) > _MAX_STATE_VALUES or depth > _MAX_STATE_DEPTH:
            return "..."
        match value:
            case None | bool():
                return value
            case int():
                return value if abs(value) < _MAX_DECIMAL else hex(value)
            case str():
                return shorten(value)
            case float():
                return value if math.isfinite(value) else f"float:{value!r}"
            case dict():
                # A number and the text of its digits must stay different keys.
                entries = ((key if isinstance(key, str) else f"key:{key!r}", item) for key, item in value.items())
                return {key: convert(item, depth + 1) for key, item in entries}
            case list() | tuple():
                return [convert(item, depth + 1) for item in value]
            case set() | frozenset():
                return {"set": sorted(map(repr, value))}
        return {type(value).__name__: convert_attributes(value, depth)}

    return convert_attributes(instance, 0)

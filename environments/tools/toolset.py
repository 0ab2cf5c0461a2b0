"""Tools from functions and documents: their documentation, and calls of them on a world."""

import contextlib
import copy
import dataclasses
import inspect
import json
import math
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cojax.environment import EnvironmentFailure
from cojax.types import Call

# The most characters of a result, of which `play` keeps fewer.
_MAX_TEXT = 200_000
# The observation of a call that returns nothing.
DONE_REPLY = "ok"
_TOOL_NAME_PATTERN = re.compile(r"\w[\w./:-]{0,127}")


class Refused(Exception):
    """A call that the world does not carry out; the message is the observation."""


def to_document(tool_name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI function format."""
    return {"type": "function", "function": {"name": tool_name, "description": description, "parameters": parameters}}


@dataclasses.dataclass(frozen=True)
class Tool:
    """A tool: its name, its documentation, and the function that carries it out, or None if the world does."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[[Any, Mapping[str, Any]], Any] | None = None

    def document(self) -> dict[str, Any]:
        """The tool in OpenAI function format."""
        return to_document(self.name, self.description, self.parameters)

    @property
    def first_parameter(self) -> str | None:
        """The name of its first parameter, None if it has none."""
        return next(iter(self.parameters.get("properties", {})), None)

    def call(self, world: Any, arguments: Any) -> str:
        """The observation of a call. Raises Refused, or TypeError for a result that is neither text nor JSON.

        The world gets a copy of the arguments, which it may keep and change: records, replays and solutions hold the
        call itself.
        """
        if not isinstance(arguments, Mapping):
            raise Refused(f"expected an object of arguments for {self.name}")
        if self.function is None:
            _require_finite(arguments)
        try:
            world_arguments = copy.deepcopy(dict(arguments))
            result = self.function(world, world_arguments) if self.function else world.call(self.name, world_arguments)
        except (Refused, EnvironmentFailure, MemoryError):
            raise
        except Exception as error:
            raise Refused(_explain_error(error)) from error
        if isinstance(result, Mapping) and (reason := find_error(result)):
            raise Refused(reason)
        return _write_text(self.name, result)


def find_error(result: Any) -> str:
    """What the key `error` of a result says, "" if there is no such key or it says nothing."""
    reason = result.get("error") if isinstance(result, Mapping) else None
    return reason if isinstance(reason, str) else json.dumps(reason, default=str) if reason else ""


def read_tools(tools: Iterable[Callable[..., Any] | Mapping[str, Any]], *, allow_none: bool = False) -> dict[str, Tool]:
    """The tools by name. Raises ValueError for one that cannot be read, for two with one name, and for no tool at all
    unless `allow_none` allows that."""
    tool_by_name: dict[str, Tool] = {}
    for index, source in enumerate(tools, 1):
        tool = _read_document(source, index) if isinstance(source, Mapping) else _read_function(source, index)
        if tool.name in tool_by_name:
            raise ValueError(f"two tools are called {tool.name!r}; give each a name of its own")
        tool_by_name[tool.name] = tool
    if not tool_by_name and not allow_none:
        raise ValueError("there are no tools; expected functions, or documents with name and parameters")
    return tool_by_name


def perform_call(tools: Mapping[str, Tool], world: Any, call: Call) -> str:
    """The observation of a call of one of the tools. Raises Refused."""
    tool = tools.get(call.name) if isinstance(call.name, str) else None
    if tool is None:
        raise Refused(f"there is no tool {call.name!r:.100}")
    return tool.call(world, call.arguments)


def _read_document(document: Mapping[str, Any], position: int) -> Tool:
    """The tool of a document in our form, OpenAI's, or MCP's."""
    spec = document["function"] if isinstance(document.get("function"), Mapping) else document
    name, parameters = spec.get("name"), spec.get("parameters") or spec.get("inputSchema") or {}
    if not (isinstance(name, str) and _TOOL_NAME_PATTERN.fullmatch(name)):
        raise ValueError(f"tool {position} has the name {name!r:.100}; expected letters, digits and any of _ . - / :")
    try:
        schema = json.loads(json.dumps(parameters, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the parameters of tool {name!r} are not JSON: {error}") from error
    if not (isinstance(schema, dict) and isinstance(schema.setdefault("properties", {}), dict)):
        raise ValueError(
            f"the parameters of tool {name!r} are {parameters!r:.100}; expected a JSON schema of an object"
        )
    return Tool(name, str(spec.get("description") or ""), {"type": "object", **schema})


def _read_function(function: Any, position: int) -> Tool:
    """The tool of a function whose first parameter is the world; pydantic reads the others and checks arguments."""
    if not callable(function):
        raise ValueError(f"tool {position} is of type {type(function).__name__}; expected a function or a document")
    tool_name = getattr(function, "__name__", "")
    if not _TOOL_NAME_PATTERN.fullmatch(tool_name) or tool_name == "<lambda>":
        raise ValueError(f"tool {position}, {function!r:.100}, has no name; define it with `def`")
    inputs = list(inspect.signature(function).parameters.values())
    if not inputs or inputs[0].kind not in (inputs[0].POSITIONAL_ONLY, inputs[0].POSITIONAL_OR_KEYWORD):
        raise ValueError(f"tool {tool_name!r} takes no world; its first parameter must be the world that it acts on")
    parameters = inputs[1:]
    if unnamed := [p.name for p in parameters if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]:
        raise ValueError(
            f"tool {tool_name!r} has the parameter {unnamed[0]!r}, which has no fixed name; name each parameter"
        )
    schema, check_arguments = _make_checker(function, parameters)

    def run(world: Any, arguments: Mapping[str, Any]) -> Any:
        return function(world, **check_arguments(arguments))

    description = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
    return Tool(tool_name, description, schema, run)


def _make_checker(
    function: Callable[..., Any], parameters: list[inspect.Parameter]
) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], dict[str, Any]]]:
    """The JSON schema of the parameters, and a function that checks and converts arguments, or raises Refused."""
    # Only functions need it, and an interpreter of a worker may lack it.
    import pydantic
    from pydantic_core import ArgsKwargs, to_jsonable_python

    try:
        type_hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ValueError(f"the type hints of tool {function.__name__!r} cannot be read: {error}") from error

    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    keyword_parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    collect.__signature__ = inspect.Signature(keyword_parameters)  # type: ignore[attr-defined]
    collect.__annotations__ = {p.name: type_hints[p.name] for p in parameters if p.name in type_hints}
    try:
        type_adapter: Any = pydantic.TypeAdapter(collect)  # type: ignore[arg-type]
        schema = type_adapter.json_schema()
    except pydantic.PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the type hints of tool {function.__name__!r} make no JSON schema: {reason}") from error
    schema.setdefault("properties", {})

    def check_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            values = type_adapter.validate_python(ArgsKwargs((), dict(arguments)))
        except pydantic.ValidationError as error:
            problems = (f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
            raise Refused("; ".join(problems)[:1_000]) from error
        except TypeError as error:  # a name that is no text
            raise Refused(str(error)) from error
        # Text such as "nan" has become a number by now, also within a model of the user's. Defaults are the tool's own.
        explicit_arguments = {p.name: values[p.name] for p in parameters if values[p.name] is not p.default}
        with contextlib.suppress(ValueError):  # nested too deeply to be read
            _require_finite(to_jsonable_python(explicit_arguments, serialize_unknown=True, bytes_mode="base64"))
        return values

    return schema, check_arguments


def _require_finite(arguments: Mapping[str, Any]) -> None:
    """Raises Refused for an argument with a number that is not finite: no state with it would be JSON."""
    for argument_name, argument in arguments.items():
        pending_values = [argument]
        while pending_values:
            match pending_values.pop():
                case float(number) if not math.isfinite(number):
                    raise Refused(f"{argument_name}: found {number}; expected a finite number")
                case dict(members):
                    pending_values += members.values()
                case list(members):
                    pending_values += members


def _explain_error(error: Exception) -> str:
    """What a refusal says: the message, with the type before it if the message alone would not explain it."""
    message = " ".join(str(error).split())
    is_plain = isinstance(error, (ValueError, RuntimeError)) or type(error) is Exception
    return (message if is_plain and message else f"{type(error).__name__}: {message}".rstrip(": "))[:2_000]


def _write_text(tool_name: str, result: Any) -> str:
    if result is None:
        return DONE_REPLY
    if not isinstance(result, str):
        try:
            result = json.dumps(result, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(
                f"tool {tool_name!r} returned {type(result).__name__}; expected text, JSON or None: {error}"
            ) from error
    return result if len(result) <= _MAX_TEXT else f"{result[:_MAX_TEXT]}\n[{len(result) - _MAX_TEXT} characters cut]"

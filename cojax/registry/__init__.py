"""Registries: finds an entry by name, or outside the package as 'package.module:function', and checks its settings.

An entry declares its settings as keyword-only parameters, or as the fields of a dataclass. Their annotations say which
values are allowed (annotations.py).
"""

import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from cojax import imports
from cojax.registry.annotations import Range, RegistryError, convert_setting, from_text, say_type

__all__ = [
    "REQUIRED", "DeclaredSetting", "Range", "RegistryError", "check_call", "check_settings", "find", "from_text",
    "settings", "suggest_names",
]  # fmt: skip

T = TypeVar("T")
REQUIRED: Any = inspect.Parameter.empty


@dataclasses.dataclass(frozen=True)
class DeclaredSetting:
    """A setting that an entry declares: its annotation and its default, REQUIRED where it has none."""

    annotation: Any
    default: Any = REQUIRED


def find(kind: str, name: str, entries: Mapping[str, T | str]) -> T:
    """Finds the entry of that name, or the callable that 'package.module:function' names.

    An entry that is text names one of ours, which is imported when it is asked for. Modules in the current folder can
    be imported. Raises RegistryError if there is no such entry or callable.
    """
    if name in entries:
        entry = entries[name]
        if not isinstance(entry, str):
            return entry
        path, _, attribute = entry.partition(":")
        return vars(importlib.import_module(path) if path.startswith("cojax.") else import_own_module(path))[attribute]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise RegistryError(
            f"{kind} {name!r} not found; available: {', '.join(entries)}, or package.module:name from outside"
        )
    module = _import_module(kind, name, module_name)
    named_object = vars(module).get(attribute)
    if named_object is None:
        location = module.__file__ or module_name
        raise RegistryError(f"{kind} {name!r} not found: {location} defines no {attribute!r}{_name_clash(module_name)}")
    if not callable(named_object):
        raise RegistryError(f"{kind} {name!r} is of type {type(named_object).__name__}; expected a function or a class")
    return named_object


def import_own_module(module_name: str) -> types.ModuleType:
    """Imports a module of `environments` or `experiments`, which a wheel holds within `cojax`.

    Raises RegistryError if this process has a user's package in the folder's place.
    """
    imports.import_ours_first()
    folder_name = module_name.partition(".")[0]
    package = importlib.import_module(imports.resolve(folder_name))
    if os.path.realpath(str(package.__file__)) != str(imports.FOLDERS[folder_name] / "__init__.py"):
        location = package.__file__ or list(package.__path__)
        raise RegistryError(f"{location} hides cojax's {imports.resolve(module_name)}, {imports.RENAME_FIX}")
    return importlib.import_module(imports.resolve(module_name))


def settings(function: Callable[..., Any]) -> dict[str, DeclaredSetting]:
    """The settings that an entry declares, by name. Raises RegistryError for an annotation that cannot be read."""
    if isinstance(function, type) and dataclasses.is_dataclass(function):
        defaults = {field.name: _get_field_default(field) for field in dataclasses.fields(function) if field.init}
        hints = _read_type_hints(function, function)
    else:
        parameters = inspect.signature(function).parameters.values()
        keyword_parameters = [parameter for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY]
        defaults = {parameter.name: parameter.default for parameter in keyword_parameters}
        annotations = {parameter.name: parameter.annotation for parameter in keyword_parameters}
        hints = _read_type_hints(function, types.SimpleNamespace(__annotations__=annotations), _get_namespace(function))
    return {name: DeclaredSetting(_infer_type(hints[name], default), default) for name, default in defaults.items()}


def check_settings(
    kind: str, name: str, function: Callable[..., Any], overrides: Mapping[str, Any], prefix: str = ""
) -> dict[str, Any]:
    """Converts the given settings to their declared types, if nothing is lost.

    `prefix` precedes the name of a setting in messages. Raises RegistryError for an unknown name, for a value that is
    not allowed, and for a required setting that is missing.
    """
    declarations = settings(function)
    for setting in overrides:
        if setting not in declarations:
            choices_text = f"it has {', '.join(declarations)}" if declarations else "it has none"
            hint = suggest_names(setting, declarations, prefix)
            raise RegistryError(f"{kind} {name!r} has no setting {prefix}{setting}; {hint}{choices_text}")
    for setting, declaration in declarations.items():
        if declaration.default is REQUIRED and setting not in overrides:
            values_text = say_type(declaration.annotation)
            raise RegistryError(f"{kind} {name!r} needs its setting {prefix}{setting}: {values_text}")
    return {
        setting: convert_setting(f"{prefix}{setting}", declarations[setting].annotation, value)
        for setting, value in overrides.items()
    }


def suggest_names(name: str, known_names: Iterable[str], prefix: str = "") -> str:
    """Suggests, for an error about an unknown name, known ones that are spelled alike, with `prefix` before them."""
    matches = difflib.get_close_matches(name.lower(), known_names, cutoff=0.7)
    return f"did you mean {' or '.join(prefix + candidate for candidate in matches)}? " if matches else ""


def check_call(
    kind: str, name: str, function: Callable[..., Any], argument_names: Sequence[str], keywords: Mapping[str, Any]
) -> None:
    """Raises RegistryError for an entry that cannot be called with the arguments of its kind and these settings."""
    try:
        inspect.signature(function).bind(*argument_names, **keywords)
    except TypeError as error:
        arguments_text = ", ".join(argument_names) or "nothing"
        raise RegistryError(
            f"{kind} {name!r} is called with {arguments_text} and its settings, which stand after a *: {error}"
        ) from error


def _import_module(kind: str, name: str, module_name: str) -> types.ModuleType:
    """Imports the module of that name. Raises RegistryError if it is missing or cannot be imported."""
    folder = os.getcwd()
    imports.add_current_folder()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise RegistryError(
                f"{kind} {name!r} not found: no module {missing!r} in {folder} or among the installed packages"
                f"{_name_clash(module_name)}"
            ) from error
        raise RegistryError(f"{kind} {name!r} cannot be imported: it needs {missing!r}, which is not there") from error
    except (Exception, SystemExit) as error:  # a module may raise anything
        reason = " ".join(str(error).split())
        raise RegistryError(f"{kind} {name!r} cannot be imported: {type(error).__name__}: {reason}") from error


def _name_clash(module_name: str) -> str:
    """Adds to an error that the user has a module of that name, which cannot be imported."""
    return f"; {file} cannot be imported, {imports.RENAME_FIX}" if (file := imports.find_hidden(module_name)) else ""


def _get_field_default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def _get_namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the names that a function's annotations may use."""
    inner: Any = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    return vars(sys.modules[inner.__module__]) if getattr(inner, "__module__", None) in sys.modules else {}


def _read_type_hints(function: Callable[..., Any], holder: Any, scope: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the annotations of `holder`, quoted ones resolved. Raises RegistryError for one that cannot be read."""
    try:
        return typing.get_type_hints(holder, globalns=scope, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as error:
        name = getattr(function, "__qualname__", str(function))
        raise RegistryError(f"the settings of {name} cannot be read: {error}; annotate them with types") from error


def _infer_type(annotation: Any, default: Any) -> Any:
    """The annotation, or the default's type where there is none."""
    if annotation is not REQUIRED:
        return annotation
    return Any if default is REQUIRED or default is None else type(default)

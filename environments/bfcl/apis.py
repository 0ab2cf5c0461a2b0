"""The API instances of one episode: runs calls on them, copies them, and tries calls on copies."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from cojax.types import Call
from .calls import ERROR, examine, is_failure, render


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a call: the text shown, whether it worked, and the value behind the text."""

    text: str
    ok: bool
    value: Any = None


class Apis:
    """API instances by class, and the class of each tool. Only these tools can be run."""

    def __init__(self, instances: Mapping[str, Any], classes: Mapping[str, str]):
        self.instances = dict(instances)
        self.classes = {tool: name for tool, name in classes.items() if name in instances}

    def run(self, call: Call, on: Any = None) -> Result:
        """The result of the call, on the instances `on` if given, else on its own. Never raises an API's error."""
        if call.name not in self.classes:
            return Result(f"{ERROR}there is no function {call.name!r:.100}", ok=False)
        if reason := examine(call.arguments):
            return Result(f"{ERROR}{reason}", ok=False)
        instance = self.instances[self.classes[call.name]] if on is None else on
        method = vars(type(instance))[call.name]
        try:
            # Copies, as an API may keep its arguments, and a default list must not be shared between calls.
            value = method(instance, **copy.deepcopy({**_changeable(method), **call.arguments}))
            return Result(render(value), not is_failure(value), value)
        except Exception as error:
            return Result(render(f"{ERROR}{_error_text(error)}"), ok=False)

    def photograph(self) -> bytes:
        """A copy of all instances as they are now, for `develop`. Raises RecursionError for endless folders."""
        return pickle.dumps(self.instances)

    def trial(self) -> Callable[[Call], Result]:
        """Runs calls on copies of the instances, each from the present state. Raises RecursionError as above."""
        copies = {name: pickle.dumps(instance) for name, instance in self.instances.items()}
        return lambda call: self.run(call, on=pickle.loads(copies[self.classes[call.name]]))


def develop(photograph: bytes) -> dict[str, Any]:
    """The instances from a photograph that this process took."""
    return pickle.loads(photograph)


def _changeable(method: Callable[..., Any]) -> dict[str, Any]:
    """Default arguments that a call could change for all later ones."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(method).parameters.items()
        if isinstance(parameter.default, (list, dict, set))
    }


def _error_text(error: Exception) -> str:
    try:
        return str(error)
    except ValueError:
        return type(error).__name__

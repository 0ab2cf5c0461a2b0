"""Finds the calls that would work now, by trying arguments on copies of the instances."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence

from cojax.types import Call
from .apis import Apis
from .arguments import TRIED
from .scene import OMIT, Scene

# The most calls offered in all, offered of one tool, and tried of one tool.
_OFFERED = 150
_OF_TOOL = 6
_TRIES = 10


def offers(apis: Apis, scene: Scene, tools: Sequence[str], salt: str) -> list[Call]:
    """At most 150 different calls of these tools that work now, drawn by `salt`: of each tool one, then a second, …"""
    tried = apis.trial()
    found = []
    for tool in tools:
        calls = _combinations(tool, scene, random.Random(repr((tool, salt))))
        working = (call for call in itertools.islice(calls, _TRIES) if tried(call).ok)
        found.append(list(itertools.islice(working, _OF_TOOL)))
    layers = itertools.zip_longest(*found)
    return [call for layer in layers for call in layer if call is not None][:_OFFERED]


def _combinations(tool: str, scene: Scene, rng: random.Random) -> Iterator[Call]:
    """Different calls of the tool in random order, no two arguments alike."""
    options = {name: list(source(scene)) for name, source in TRIED[tool].items()}
    if not all(options.values()):
        return
    known: set[str] = set()
    for _ in range(3 * _TRIES):
        chosen = {name: rng.choice(values) for name, values in options.items()}
        arguments = {name: value for name, value in chosen.items() if value is not OMIT}
        texts = [json.dumps(value) for value in arguments.values()]
        key = json.dumps(arguments)
        if key not in known and len(set(texts)) == len(texts):
            known.add(key)
            yield Call(tool, arguments)

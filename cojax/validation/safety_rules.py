"""The rules of the safety filter, read from safety_rules.txt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_IN_ACTIONS = "in actions: "
_FAMILY = re.compile(r"([A-Z_]+) = (.*)")
_NAMED = re.compile(r"<([A-Z_]+)>")


def _read(lines: list[str]) -> Mapping[str, re.Pattern[str]]:
    """Rule → one pattern that matches where any of its lines does. Raises KeyError for a family not yet named."""
    families: dict[str, str] = {}
    rules: dict[str, list[str]] = {}
    rule = ""
    for line in lines:
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]"):
            rule = line[1:-1]
            continue
        family = _FAMILY.fullmatch(line)
        pattern = _NAMED.sub(lambda name: families[name[1]], family[2] if family else line)
        if family:
            families[family[1]] = pattern
        else:
            rules.setdefault(rule, []).append(pattern)
    return {name: re.compile("|".join(patterns)) for name, patterns in rules.items()}


_RULES = _read(Path(__file__).with_suffix(".txt").read_text().splitlines())
# Rule → its pattern for the query of a draft, and for its actions.
QUERY_RULES = {name: pattern for name, pattern in _RULES.items() if not name.startswith(_IN_ACTIONS)}
ACTION_RULES = {name.removeprefix(_IN_ACTIONS): _RULES[name] for name in _RULES if name.startswith(_IN_ACTIONS)}

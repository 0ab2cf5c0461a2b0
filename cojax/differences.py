"""How two configurations differ."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any


def differences(before: Mapping[str, Any], now: Mapping[str, Any], free: Container[str] = ()) -> str:
    """Which settings differ but for the `free` ones, dotted, with the values of the first; empty where none does."""
    different = sorted(_differences(before, now, free))
    if not different:
        return ""
    name = different[0]
    return f"{', '.join(different)} ({name} was {_at(before, name)!r}, now {_at(now, name)!r})"


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], free: Container[str], prefix: str = "") -> set[str]:
    """Dotted names of the settings that differ."""
    names: set[str] = set()
    for name in before.keys() | now.keys():
        path = f"{prefix}{name}"
        one, other = before.get(name), now.get(name)
        if path in free:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names |= _differences(one, other, free, f"{path}.")
        elif one != other:
            names.add(path)
    return names


def _at(config: Mapping[str, Any], name: str) -> Any:
    for part in name.split("."):
        config = config.get(part, "absent") if isinstance(config, Mapping) else "absent"  # type: ignore[assignment]
    return config

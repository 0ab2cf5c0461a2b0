"""Configurations as config.json stores them, and how two of one run differ in their settings and their code."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from cojax.storage.checksums import has_valid_checksum
from cojax.storage.files import read_json


def list_differences(old_config: Mapping[str, Any], new_config: Mapping[str, Any], free: Container[str] = ()) -> str:
    """The dotted names of the settings that differ, without the `free` ones, and the values of the first.

    Empty if none differs.
    """
    setting_names = sorted(_find_names(old_config, new_config, free))
    if not setting_names:
        return ""
    name = setting_names[0]
    return f"{', '.join(setting_names)} ({name} was {value_at(old_config, name)!r}, now {value_at(new_config, name)!r})"


def list_changes(old_config: Mapping[str, Any], new_config: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The dotted name of every setting that differs → its values before and now, None if it is not set."""
    differing_names = sorted(_find_names(old_config, new_config, ("workdir",)))
    return {name: [value_at(old_config, name, None), value_at(new_config, name, None)] for name in differing_names}


def history(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> dict[str, list[Any]]:
    """The entry `history` of config.json: all changes of a run's settings and code so far.

    The changes from `before` to `now`, both contents of config.json, are added under this step. Empty if nothing ever
    changed.
    """
    settings = list_changes(before["config"], now["config"]) if before else {}
    old_code, new_code = before.get("code", {}), now.get("code", {})
    code = {name: [old_code[name].get("hash"), new_code[name]["hash"]] for name in old_code.keys() & new_code.keys()}
    code = {name: hashes for name, hashes in code.items() if ":" in new_code[name]["name"] and hashes[0] != hashes[1]}
    entry = {"step": step, **({"settings": settings} if settings else {}), **({"code": code} if code else {})}
    entries = [*before.get("history", []), *([entry] if len(entry) > 1 else [])]
    return {"history": entries} if entries else {}


def check_facts(record: Mapping[str, Any]) -> None:
    """Raises ValueError if the `code` or `history` in config.json is not what a run writes."""
    code, past_changes = record.get("code", {}), record.get("history", [])
    if not isinstance(code, Mapping) or not isinstance(past_changes, list):
        raise ValueError("its `code` is not a section, or its `history` is not a list")
    entries = list(code.values())
    if not all(isinstance(entry, Mapping) for entry in (*entries, *past_changes)):
        raise ValueError("its `code` or its `history` holds something that is not a section")
    if not all(isinstance(entry.get("name", ""), str) for entry in entries):
        raise ValueError("its `code` holds a name that is not text")


def list_changed_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The settings that name an entry from outside the package whose source file has changed; empty if none has.

    Entries that `before` does not hold are not compared.
    """
    entry_names = [name for name, entry in now.items() if ":" in entry["name"] and before.get(name, entry) != entry]
    changes = [f"{name} ({now[name]['path']})" for name in entry_names if before[name].get("hash") != now[name]["hash"]]
    return ", ".join(changes)


def _find_names(before: Mapping[str, Any], now: Mapping[str, Any], free: Container[str], prefix: str = "") -> set[str]:
    """Dotted names of the settings that differ."""
    differing_names: set[str] = set()
    for key in before.keys() | now.keys():
        dotted_name = f"{prefix}{key}"
        old_value, new_value = before.get(key), now.get(key)
        if dotted_name in free:
            continue
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            differing_names |= _find_names(old_value, new_value, free, f"{dotted_name}.")
        elif old_value != new_value:
            differing_names.add(dotted_name)
    return differing_names


def value_at(config: Mapping[str, Any], setting: str, default: Any = "absent") -> Any:
    """The setting of a dotted name; `default` if there is none."""
    value: Any = config
    for key in setting.split("."):
        value = value.get(key, default) if isinstance(value, Mapping) else default
    return value


def read_stored_config(path: Path) -> dict[str, Any]:
    """The content of a config.json. Raises OSError like `open_file`, ValueError or KeyError for other content."""
    record = read_json(path)
    if not isinstance(record["config"], dict):
        raise ValueError("it holds no settings")
    has_valid_checksum(record)
    return record

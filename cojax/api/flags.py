"""Configurations and settings as the flags of a command."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from cojax import imports

Config: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
_GIVEN = imports.FOLDERS["experiments"] / "given.py"


def flags_of(settings: Mapping[str, Any]) -> list[str]:
    """--config.NAME=VALUE of each setting. A mapping is a section: {"learner": {"loss": "ppo"}} sets learner.loss."""
    return [f"--config.{name}={_text(value)}" for name, value in _leaves(settings)]


@contextlib.contextmanager
def config_flag(config: Config | None) -> Iterator[list[str]]:
    """--config=… of a file, or of an object, which is kept in a file until the block ends; nothing for None.

    Raises TypeError for an object that is no configuration.
    """
    if config is None or isinstance(config, (str, os.PathLike)):
        yield [] if config is None else [f"--config={os.fspath(config)}"]
        return
    resolved = config.copy_and_resolve_references() if hasattr(config, "copy_and_resolve_references") else config
    plain = resolved.to_dict() if hasattr(resolved, "to_dict") else resolved
    if not isinstance(plain, Mapping):
        raise TypeError(
            f"config is of type {type(config).__name__}; expected a file, a ConfigDict or a dict of settings"
        )
    nested: dict[str, Any] = {}
    for name, value in _leaves(plain):
        *sections, leaf = name.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    try:
        text = json.dumps(nested, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"config holds what is no setting: {error}; expected numbers, text, tuples and None") from error
    with tempfile.TemporaryDirectory(prefix="cojax-") as folder:
        file = Path(folder, "config.json")
        file.write_text(text, encoding="utf-8")
        yield [f"--config={_GIVEN}:{file}"]


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if hasattr(value, "item"):  # a NumPy scalar
        value = value.item()
    return repr(tuple(value) if isinstance(value, list) else value)

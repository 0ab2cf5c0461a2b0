"""Presets: `--config.policy=NAME` applies the settings of one size of policy; a flag overrides its preset.

presets.toml defines them.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from cojax.settings.base import at, choose
from cojax.settings.ranges import leaves

_TABLES = tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def _make_preset(like: str = "", **settings: Any) -> dict[str, Any]:
    """Returns the settings by their dotted names; they override those of the preset `like`."""
    return {**(_make_preset(**_TABLES["policies"][like]) if like else {}), **dict(leaves(settings))}


# Name → dotted setting → value.
PRESETS: dict[str, dict[str, Any]] = {name: _make_preset(**settings) for name, settings in _TABLES["policies"].items()}
# (preset, environment) → further settings.
ENVIRONMENT_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    (policy, addition["environment"]): _make_preset(**addition["settings"])
    for addition in _TABLES["in_environment"]
    for policy in addition["policies"]
}


def apply_preset(config: ConfigDict, flags: Iterable[str] = ()) -> ConfigDict:
    """Applies the settings of the configuration's preset `policy`, except those that `flags` name.

    Raises ValueError for an unknown preset, and for one that names a setting that this experiment does not have.
    """
    resolved_config = config.copy_and_resolve_references()
    if not config.policy:
        return resolved_config
    flag_names = tuple(flags)
    preset: Mapping[str, Any] = choose(PRESETS, config.policy, "policy")
    for setting, value in {**preset, **ENVIRONMENT_PRESETS.get((config.policy, config.environment.name), {})}.items():
        if any(setting == flag or setting.startswith(f"{flag}.") for flag in flag_names):
            continue
        section_name, _, leaf_key = setting.rpartition(".")
        try:
            parent_section = at(resolved_config, section_name) if section_name else resolved_config
            if leaf_key not in parent_section:
                raise KeyError(f"no {leaf_key!r} there")
            parent_section[leaf_key] = value
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"preset {config.policy!r} sets {setting} to {value!r}, which this experiment does not take: {error}. "
                "Correct it in cojax/settings/presets.toml"
            ) from error
    return resolved_config

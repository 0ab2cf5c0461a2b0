"""The configuration that the flags of a command give: the file, its preset, and what other flags set."""

from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

from cojax.run import entries, trust
from cojax.settings import compatibility, presets
from cojax.settings.config_file import EXPERIMENTS, located, source
from cojax.settings.flags import CONFIG, CONTINUED, OF_ENTRIES, TRUSTED
from cojax.storage.files import read_json


def configuration() -> ConfigDict:
    """The configuration that the flags give, its preset written in.

    Raises ValueError for an unknown preset and for a folder that is not there, and RegistryError for an unknown entry
    and for code that a run directory names and the flags do not.
    """
    flag = flags.FLAGS["config"]
    typed = (*config_flags.get_override_values(flag), *OF_ENTRIES)
    config = CONFIG.value
    trust.make_importable(TRUSTED.value)
    workdir = _continued_run()
    if workdir:
        trust.check(config, workdir, typed, TRUSTED.value)
    # The configuration of a run that goes on holds its preset's settings, and what flags once set instead.
    if not workdir or config.policy != compatibility.settings_of(workdir)["policy"]:
        config = presets.resolve(config, typed)
    return entries.overridden(config, OF_ENTRIES)


def file_given() -> dict[str, dict[str, str]]:
    """For config.json: where the configuration's file comes from. A run that goes on by its folder keeps what it says.

    Empty where there was no file of the user's, as for objects that a program passes on.
    """
    flag = flags.FLAGS["config"]
    if not flag.present:
        return {}
    if workdir := _continued_run():
        stored = read_json(workdir / "config.json").get("file")
        return {"file": stored} if isinstance(stored, dict) else {}
    path = located(config_flags.get_config_filename(flag).partition(":")[0])
    return {} if path.resolve() == (EXPERIMENTS / "given.py").resolve() else {"file": source(path)}


def _continued_run() -> Path | None:
    """The folder of the run whose own settings are the configuration; None for an experiment's file."""
    file, _, workdir = config_flags.get_config_filename(flags.FLAGS["config"]).partition(":")
    return Path(workdir) if located(file).resolve() == Path(CONTINUED).resolve() else None

"""Set-up of a command's process: a cache of compiled programs, and a log file."""

import logging
from pathlib import Path

import jax

from cojax import warm_start
from cojax.durable import own_file
from cojax.unicode_forms import plain


class _Plain(logging.Formatter):
    """A line without control characters: texts of models and environments stand in warnings."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def keep_compiled() -> None:
    """Keeps compiled programs on disk: a second start needs seconds where the first took half a minute."""
    jax.config.update("jax_compilation_cache_dir", str(warm_start.cache() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def log_to(path: Path) -> None:
    """Logs everything to the file at `path`, and warnings to the terminal as well."""
    handler = logging.FileHandler(path, delay=True)
    handler.setStream(open(path, "a", opener=own_file))  # noqa: SIM115  the handler closes it
    handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    for other in list(root.handlers):
        other.setLevel(logging.WARNING)
        other.setFormatter(_Plain("warning: %(message)s"))
    root.addHandler(handler)
    logging.getLogger("cojax").setLevel(logging.INFO)


def in_words(error: BaseException) -> str:
    """What a command says of an error: one of memory may have no words of its own."""
    if not isinstance(error, MemoryError):
        return str(error)
    found = f" ({error})" if str(error) else ""
    return f"this host's memory is used up{found}: free some, then run the same command again to go on"

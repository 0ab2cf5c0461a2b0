"""Finds Java. Standard library only."""

import shutil
from pathlib import Path

from ..worker.venv import InstallError

PACKAGE = "apt-get install default-jre-headless"
_LIBRARY = "lib/server/libjvm.so"


def jvm() -> str:
    """The library of the JVM of the `java` on PATH. Raises InstallError, which says what to do."""
    found = shutil.which("java")
    if found is None:
        raise InstallError(
            f"ScienceWorld runs on Java, and there is no `java` on PATH; on Debian and Ubuntu: {PACKAGE}"
        )
    home = Path(found).resolve().parents[1]
    # Java 8 has its runtime deeper.
    for library in (home / _LIBRARY, *home.glob("**/server/libjvm.so")):
        if library.exists():
            return str(library)
    raise InstallError(
        f"{found} belongs to {home}, which has no {_LIBRARY}; put the bin folder of a whole Java runtime first "
        f"on PATH, on Debian and Ubuntu by {PACKAGE}"
    )


def files(library: str) -> tuple[str, ...]:
    """The folders that this JVM reads: its home, and those to which links in it lead."""
    home = next(parent for parent in Path(library).parents if (parent / "bin").is_dir())
    linked = {str(path.resolve().parent) for path in home.rglob("*") if path.is_symlink()}
    return (str(home), *sorted(folder for folder in linked if not Path(folder).is_relative_to(home)))

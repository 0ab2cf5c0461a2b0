"""The commit of a file of code, as its git repository tells it."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

UNKNOWN = "unknown"
_PYTHON = (":(top,glob)**/*.py",)
# Where packages are installed, also in a virtual environment that lies within somebody's repository.
_INSTALLED = {"site-packages", "dist-packages"}


def commit(file: str | Path, code: Sequence[str] = _PYTHON) -> str:
    """The commit of the repository that the file belongs to, with " with changes" where its code has changed since.

    `code` are git's patterns of that code. A file that is not yet added counts as a change. "unknown" for a file that
    belongs to no repository: one that is ignored or installed does not belong to the repository around it.
    """
    file = Path(file).resolve()
    commands = (
        ["ls-files", "-t", "--cached", "--others", "--exclude-standard", "--", f":(literal){file.name}"],
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no", "--", *code],
    )
    try:
        listed, head, changed = (
            subprocess.run(
                ["git", *one], cwd=file.parent, capture_output=True, text=True, timeout=10, check=True
            ).stdout
            for one in commands
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    new = listed.startswith("?")
    if not listed or (new and _INSTALLED & set(file.parts)):
        return UNKNOWN
    return head.strip() + (" with changes" if new or changed.strip() else "")


def shortened(commit: str) -> str:
    """Ten digits of the hash, and what follows it: " with changes" or nothing."""
    head, space, changes = commit.partition(" ")
    return head[:10] + space + changes

"""Where the code of an entry comes from: its package, the SHA-256 of its file, the commit of its repository."""

import functools
import hashlib
import importlib.metadata
import inspect
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cojax import imports

UNKNOWN = "unknown"
_PYTHON_FILES = (":(top,glob)**/*.py",)
# Where packages are installed, also in a virtual environment that lies within somebody's repository.
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


def describe_source(name: str, function: Callable[..., Any]) -> dict[str, str]:
    """Describes where an entry comes from: its module and name, the version of its package, the SHA-256 of its file.

    If `name` is 'package.module:function', the folder of the package and the commit of its repository are added. If the
    function is defined in another file, the SHA-256 covers both files: a partial, for example, holds arguments that its
    own file gives.
    """
    module_name, colon, attribute = name.partition(":")
    defining_module = sys.modules.get(function.__module__) if hasattr(function, "__module__") else None
    module = defining_module or sys.modules[module_name]
    if colon and not (inspect.isroutine(function) or inspect.isclass(function) or hasattr(function, "__wrapped__")):
        # An object such as a partial names the module of its class.
        module = sys.modules[module_name]
    elif hasattr(function, "__qualname__"):
        attribute = function.__qualname__
    modules = [module, *([sys.modules[module_name]] if colon else [])]
    module_files = dict.fromkeys(vars(owner)["__file__"] for owner in modules if vars(owner).get("__file__"))
    file_contents = b"".join(Path(module_file).read_bytes() for module_file in module_files)
    repository_fields = {}
    if colon and (module_file := vars(sys.modules[module_name]).get("__file__")):
        # The folder from which the module, or the package that holds it, is imported.
        module_path = Path(module_file).absolute()
        folder = module_path.parents[sys.modules[module_name].__name__.count(".") + (module_path.name == "__init__.py")]
        repository_fields = {"folder": str(folder), "commit": commit(module_file)}
    return {
        "path": f"{module.__name__}:{attribute}",
        "version": _find_version(module),
        "hash": hashlib.sha256(file_contents).hexdigest() if module_files else "",
        **repository_fields,
    }


def _find_version(module: types.ModuleType) -> str:
    """Returns the version of the distribution, else the module's `__version__`, else ""."""
    package = module.__name__.partition(".")[0]
    # An editable install lists the packages of a wheel. Asking for cojax by its name need not read all distributions.
    is_ours = package in ("cojax", *imports.SHARED_NAMES)
    distributions = ["cojax"] if is_ours else _distributions().get(package, [])
    try:
        return importlib.metadata.version(distributions[0])
    except (IndexError, importlib.metadata.PackageNotFoundError):
        return str(vars(module).get("__version__", ""))


# Top-level package → its distributions. Cached, because this reads files of every installed distribution.
_distributions = functools.cache(importlib.metadata.packages_distributions)


def commit(code_file: str | Path, patterns: Sequence[str] = _PYTHON_FILES) -> str:
    """Returns the commit of the file's repository, followed by " with changes" if its code has changed since.

    `patterns` are git's, of that code. A file that is not yet added counts as a change. "unknown" for a file that
    belongs to no repository: one that is ignored or installed does not belong to the repository around it.
    """
    code_file = Path(code_file).resolve()
    commands = (
        ["ls-files", "-t", "--cached", "--others", "--exclude-standard", "--", f":(literal){code_file.name}"],
        ["rev-parse", "HEAD"],
        ["status", "--porcelain", "--untracked-files=no", "--", *patterns],
    )
    try:
        listing, head_commit, status_text = (
            subprocess.run(
                ["git", *command], cwd=code_file.parent, capture_output=True, text=True, timeout=10, check=True
            ).stdout
            for command in commands
        )
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    is_new = listing.startswith("?")
    if not listing or (is_new and _PACKAGE_FOLDERS & set(code_file.parts)):
        return UNKNOWN
    return head_commit.strip() + (" with changes" if is_new or status_text.strip() else "")


def shorten_commit(commit: str) -> str:
    """Returns ten digits of the hash, and what follows it: " with changes" or nothing."""
    commit_hash, space, changes_note = commit.partition(" ")
    return commit_hash[:10] + space + changes_note

"""Where cojax's folders `environments` and `experiments` are, and the import path of its command.

A wheel holds them within the package `cojax`, so that they do not collide with a user's packages of these names. In a
checkout, and an editable install of one, they are beside it. There the command imports ours, and no module of a user's
package of the same name; `find_hidden` finds such a module.

Standard library only: workers import it.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_COJAX = Path(__file__).resolve().parent
_PARENT_FOLDER = str(_COJAX.parent)
# The end of an error about a user's package that cannot be imported.
RENAME_FIX = "as cojax has a package of that name in a checkout: rename yours, or install cojax without --editable"


def resolve(module: str) -> str:
    """Returns the name of a module of `environments` or `experiments` in this installation: `cojax.…` in a wheel."""
    return f"cojax.{module}" if (_COJAX / module.partition(".")[0] / "__init__.py").exists() else module


# Name → folder.
FOLDERS = {top: (_COJAX.parent if resolve(top) == top else _COJAX) / top for top in ("experiments", "environments")}
# The names of folders beside `cojax`, which a user's package can have too.
SHARED_NAMES = tuple(name for name in FOLDERS if resolve(name) == name)


def import_ours_first() -> None:
    """Imports the packages beside `cojax` from there, whatever the import path is, unless they are already imported."""
    for package in (package_name for package_name in SHARED_NAMES if package_name not in sys.modules):
        spec = importlib.machinery.PathFinder.find_spec(package, [_PARENT_FOLDER])
        if spec is not None and spec.loader is not None:
            sys.modules[package] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[package])


def add_current_folder() -> None:
    """Imports our packages, then makes modules of the current folder importable after all others.

    An editable install has the checkout on the import path. The current folder comes before it, because the checkout
    holds more than our packages.
    """
    import_ours_first()
    current_folder = os.getcwd()
    if "" not in sys.path and current_folder not in sys.path:
        has_checkout = _PARENT_FOLDER in sys.path and os.path.exists(os.path.join(_PARENT_FOLDER, "setup.py"))
        sys.path.insert(sys.path.index(_PARENT_FOLDER) if has_checkout else len(sys.path), current_folder)


def find_hidden(module_name: str) -> str:
    """Finds the user's module of that name, which cannot be imported as its package has our package's name; "" if none.

    A package beside a package `cojax` is ours, or another copy's.
    """
    package, *submodules = module_name.split(".")
    for folder in sys.path if package in SHARED_NAMES else ():
        if os.path.exists(os.path.join(folder, "cojax", "__init__.py")):
            continue
        path_stem = os.path.join(os.path.abspath(folder), package, *submodules)
        for file in (f"{path_stem}.py", os.path.join(path_stem, "__init__.py")):
            if os.path.isfile(file):
                return file
    return ""


def find_folders(module_name: str) -> list[str]:
    """Returns the folders, links resolved, from which the package of a module would be imported. Imports nothing.

    Empty if there is no such package, and for Python's own modules.
    """
    package = module_name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(package)
    except (ValueError, ImportError, OSError):
        return []
    if spec is None or spec.name != package or not (spec.has_location or spec.submodule_search_locations):
        return []
    locations = spec.submodule_search_locations or [str(spec.origin)]
    return [str(Path(os.path.realpath(location)).parent) for location in locations]

"""Which `experiments` and `environments` an import finds: ours first, then the modules of a user's own packages.

A user's project may hold packages of these names too. Three rules decide:

1. `experiments`, `environments` and each module that cojax has in them are cojax's, whatever stands on the import path.
2. A module that cojax does not have there is that of the user's package on the import path, or in the current folder,
   which comes last. The user's `__init__.py` is run before the first of them, and its names can be imported too.
3. A user's module with the name of one of cojax's cannot be imported; `hidden` names it.

Standard library only: workers import it.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SHARED = ("experiments", "environments")
_ROOT = str(Path(__file__).resolve().parents[1])
# Package → further folders of a user's package of that name, which are not on the import path.
_FURTHER: dict[str, tuple[str, ...]] = {}
# A user's folder → what its __init__.py defines; the entry is made before that is run.
_BEGUN: dict[str, ModuleType] = {}


def ours_first() -> None:
    """Puts the rules into effect in this process."""
    if not any(isinstance(finder, _Ours) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Ours())
        sys.meta_path.append(_Theirs())


def with_current_folder() -> None:
    """The same, with modules of the current folder importable after all others.

    An editable install has the checkout on the import path, with more than our packages in it: that comes after it.
    """
    ours_first()
    here = os.getcwd()
    if "" not in sys.path and here not in sys.path:
        checkout = _ROOT in sys.path and os.path.exists(os.path.join(_ROOT, "setup.py"))
        sys.path.insert(sys.path.index(_ROOT) if checkout else len(sys.path), here)


def admit(folders: Mapping[str, Sequence[str]]) -> None:
    """The same, with `folders` of user packages by name, as a process without the user's import path needs them."""
    _FURTHER.update({package: tuple(found) for package, found in folders.items()})
    ours_first()


def folders(package: str) -> list[str]:
    """The folders of the user's packages of that name. Beside a package `cojax` they are ours, or another copy's."""
    places = [os.path.abspath(place) for place in sys.path if isinstance(place, str)]
    users = [os.path.join(place, package) for place in places if not os.path.exists(f"{place}/cojax/__init__.py")]
    return [place for place in dict.fromkeys((*users, *_FURTHER.get(package, ()))) if os.path.isdir(place)]


def is_of_user(module: str) -> bool:
    """Whether a module's name begins as a package of ours, and names a module that only a user's package has."""
    package, _, rest = module.partition(".")
    return package in SHARED and bool(rest) and not _has(rest.partition(".")[0], [os.path.join(_ROOT, package)])


def places(module: str) -> list[str]:
    """The folders of the import path, links resolved, from which the package of a module would come. Imports nothing.

    Empty where there is no such package, and for what Python itself is made of.
    """
    package, _, rest = module.partition(".")
    try:
        if is_of_user(module):
            name, above = f"{package}.{rest.partition('.')[0]}", 2
            spec = importlib.machinery.PathFinder.find_spec(name, folders(package))
        else:
            name, above = package, 1
            spec = importlib.util.find_spec(package)
    except (ValueError, ImportError, OSError):
        return []
    if spec is None or spec.name != name or not (spec.has_location or spec.submodule_search_locations):
        return []
    found = spec.submodule_search_locations or [str(spec.origin)]
    return [str(Path(os.path.realpath(one)).parents[above - 1]) for one in found]


def hidden() -> Iterator[str]:
    """The files of the user's modules that cannot be imported, as cojax has modules of their names."""
    for package in SHARED:
        ours = {module.name for module in pkgutil.iter_modules([os.path.join(_ROOT, package)])}
        for folder in folders(package):
            for module in pkgutil.iter_modules([folder]):
                if module.name in ours:
                    yield os.path.join(folder, module.name if module.ispkg else f"{module.name}.py")


def attribute(package: str, name: str) -> Any:
    """What the `__init__.py` of a user's package defines under that name. Raises AttributeError if nothing."""
    dunder = name.startswith("__") and name.endswith("__")
    # The import system asks for an attribute first, then for a module.
    if not dunder and not _has(name, [os.path.join(_ROOT, package)]):
        for module in _begun(package):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {package!r} has no attribute {name!r}")


class _Ours:
    """Finds our packages, whatever stands before them on the import path."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(name, [_ROOT]) if name in SHARED else None


class _Theirs:
    """Finds the modules of users' packages. It is asked last, so only for modules that ours do not have."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, module = name.partition(".")
        if package not in SHARED or not module or "." in module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, folders(package))
        if spec is not None:
            _begun(package)
        return spec


def _has(module: str, places: Sequence[str]) -> bool:
    return importlib.machinery.PathFinder.find_spec(module, places) is not None


def _begun(package: str) -> list[ModuleType]:
    """What the `__init__.py` of each of the user's packages of that name defines; they are run once."""
    found = []
    for folder in folders(package):
        file = os.path.join(folder, "__init__.py")
        if folder not in _BEGUN and os.path.isfile(file):
            spec = importlib.util.spec_from_file_location(package, file, submodule_search_locations=[folder])
            assert spec is not None
            assert spec.loader is not None
            module = _BEGUN[folder] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del _BEGUN[folder]
                raise
        found += [_BEGUN[folder]] if folder in _BEGUN else []
    return found

